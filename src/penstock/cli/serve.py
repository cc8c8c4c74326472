"""`penstock serve`: the API process, with the engine in a process of its own."""

import asyncio
import contextlib
import gc
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from starlette.applications import Starlette

from penstock.access.admission import AdmissionControl
from penstock.access.limits import AdmissionLimits, AdmissionOptions, resolve_admission
from penstock.access.tenants import Tenant
from penstock.api.policies import FieldPolicies
from penstock.assembly.prepare import Prepared, engine_command, prepare
from penstock.batches.stored import NO_STORE
from penstock.cli.keys import Access
from penstock.configuration.options import EngineOptions
from penstock.core.config import EngineConfig, Reason
from penstock.core.errors import ConfigurationError
from penstock.core.sampling import SamplingDefaults
from penstock.engine.client import Engine
from penstock.engine.messages import Ready, StageTime
from penstock.engine.process import EngineProcess
from penstock.engine.watch import Patience
from penstock.http import descriptors
from penstock.http.edge import EdgeOptions
from penstock.http.limits import ConnectionOptions, resolve_connections
from penstock.http.tls import NO_TLS, Tls
from penstock.observability import tracing
from penstock.observability.accounts import Accounts
from penstock.observability.explain.explain import Figures
from penstock.observability.recent import Recent
from penstock.observability.settings import FigureOptions
from penstock.server.admin import admin_socket, create_admin_app
from penstock.server.app import create_app
from penstock.server.capacity import capacity_of, make_admission
from penstock.server.serve import beside, bind, run_loop, serve
from penstock.storage.directory import choose_folder
from penstock.storage.errors import StorageUnavailable
from penstock.storage.store import Store
from penstock.text.chat_template import NO_TOKENIZER_FOR_TEMPLATE, ChatEncoder, ChatTemplate, load_chat_template
from penstock.text.output_format import OutputFormat, check_parsers, choose_format
from penstock.text.tokenizer import Tokenizer

# When the API process looks for garbage in cycles, as `gc.set_threshold` takes it: after this many new objects, and
# through older ones once in this many times. It holds up every request for about a millisecond a thousand objects, and
# finds little: what a request leaves behind is in no cycle (tests/server/test_garbage.py).
GARBAGE = (5_000, 10, 10)

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class ServeOptions:
    """Of `penstock serve`, what does not concern the engine.

    Attributes:
        names: under which the model is served; its own where there are none.
        chat_template: the file with it; None where the model's own is used.
        parsers: of tool calls and of reasoning.
        data_dir: as asked for.
        drain_timeout: seconds for running requests to finish in.
        admin_socket: path of the operator's socket.
        admission: which requests are taken on, as it was asked for.
        connections: how many there are, and for how long, as it was asked for.
        edge: how the server speaks with those in front of it.
        policies: what becomes of unknown fields, and of a max_tokens that the context has no room for.
        figures: what requests are judged by, and what the machine costs.
        watchdog: seconds without progress after which the engine is started again.
        tls: what connections are encrypted with, None where they are not.
        explain_prompts: whether prompts are kept with the accounts of recent requests.
        otlp_endpoint: of the collector that traces are sent to; None where they are not.
    """

    host: str
    port: int
    names: tuple[str, ...]
    chat_template: str | None
    parsers: tuple[str, str]
    data_dir: str | None
    drain_timeout: float
    watchdog: float
    admin_socket: str | None
    admission: AdmissionOptions
    connections: ConnectionOptions
    edge: EdgeOptions
    policies: FieldPolicies
    figures: FigureOptions
    tls: Tls | None
    explain_prompts: bool
    otlp_endpoint: str | None


def run_serve(options: dict[str, Any], serving: ServeOptions, access: Access, *, explain_only: bool) -> int:
    """Serve until a signal ends it; returns the exit status. `options` are the engine's."""
    check_parsers(*serving.parsers)
    started = time.monotonic()
    files = descriptors.raise_limit()
    if explain_only:
        # Where the output is no terminal, nothing is cut to the width of a screen.
        wide = None if sys.stdout.isatty() else 1000
        prepared = prepare(EngineOptions.of(**options), api_beside=True)
        reading = _read_output(prepared.load_tokenizer(), serving)
        _, why = choose_folder(serving.data_dir, prepared.served_names(serving.names)[0])
        encrypted = NO_TLS if serving.tls is None else serving.tls.reason
        _, bounds = resolve_admission(serving.admission, capacity_of(prepared.config))
        _, connected = resolve_connections(serving.connections, descriptors.limit())
        traced = tracing.reason_of(serving.otlp_endpoint)
        ends = prepared.end_tokens(reading.tokenizer).reason
        told = (*bounds, *connected, *serving.edge.reasons, *serving.policies.reasons, *serving.figures.reasons, traced)
        kept = (ends, why, access.reason, encrypted, files, *told)
        Console(width=wide).print(_reasons_table([*prepared.reasons, *reading.reasons, *kept]))
        return 0
    # The port is taken first: if it is in use, nothing needs to be loaded to say so.
    listener = bind(serving.host, serving.port)
    with contextlib.closing(listener):
        access.check_exposed(listener)
        return run_loop(_serve(EngineOptions.of(**options), serving, access, listener, started, files))


async def _serve(
    options: EngineOptions,
    serve_options: ServeOptions,
    access: Access,
    listener: socket.socket,
    started: float,
    files: Reason,
) -> int:
    progress = _LoadProgress()
    # The engine imports torch while this process finds out what to load.
    patience = Patience(hang_seconds=serve_options.watchdog)
    engine = await Engine.start(lambda: EngineProcess.start(engine_command(sys.executable), progress.update), patience)
    storage, tls = _Storage(), serve_options.tls
    traces: tracing.Tracing | None = None
    serving: asyncio.Future[None] | None = None
    try:
        prepared = await asyncio.to_thread(prepare, options, api_beside=True)
        limits, _ = resolve_admission(serve_options.admission, capacity_of(prepared.config))
        connections, connected = resolve_connections(serve_options.connections, descriptors.limit())
        admission = make_admission(limits.bounds, prepared.config)
        name = prepared.served_names(serve_options.names)[0]
        await asyncio.to_thread(storage.open, serve_options.data_dir, name, access.keys.tenants)
        engine.configure(prepared.config)
        with progress:
            before = time.monotonic()
            tokenizer = await asyncio.to_thread(prepared.load_tokenizer)
            reading = _read_output(tokenizer, serve_options)
            tokenizer_seconds = time.monotonic() - before
            text = None if tokenizer is None else partial(tokenizer.decode, skip_special=False)
            traces = await asyncio.to_thread(_make_traces, serve_options)
            accounts = Accounts(engine, Recent(keep_prompts=serve_options.explain_prompts), text, traces)
            app = _make_app(engine, prepared, reading, storage, access, limits, admission, serve_options, accounts)
            serving = asyncio.ensure_future(
                serve(
                    app,
                    listener,
                    drain_seconds=serve_options.drain_timeout,
                    stall_timeout=connections.stall_timeout,
                    max_connections=connections.max_connections,
                    tls=None if tls is None else tls.context,
                    edge=serve_options.edge,
                )
            )
            table = tokenizer.table if tokenizer else None
            ready = asyncio.ensure_future(engine.ready(prepared.model_info(tokenizer, serve_options.names), table))
            # A signal while the model loads ends the server, and with it the wait.
            await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                ready.cancel()
                serving.result()
                return 0
            message = ready.result()
            accounts.figures = Figures(message.work, message.ceilings)
        _spare_what_stays()
        _print_budget(message, tokenizer_seconds, time.monotonic() - started)
        limits, bounds = _measured_limits(serve_options.admission, prepared.config, message)
        admission.bounds = limits.bounds
        ends = prepared.end_tokens(tokenizer).reason
        reasons = _settled([*prepared.reasons, *reading.reasons, ends, *bounds, *connected], message)
        _print_notes(prepared, reading, reasons, message)
        encrypted = [] if tls is None else [_note(tls.reason)]
        for note in (storage.note, _note(files), _note(access.reason), *access.warnings, *encrypted):
            console.print(escape(note), soft_wrap=True)
        _print_address(engine.model.name, listener, encrypted=tls is not None)
        async with _admin(engine, serve_options, reasons, accounts):
            await serving
        return 0
    finally:
        if serving is not None:
            await _cancel(serving)
        await engine.close()
        storage.close()
        if traces is not None:
            traces.close()


def _make_traces(options: ServeOptions) -> tracing.Tracing | None:
    """What sends traces, where they are wanted."""
    if options.otlp_endpoint is None:
        return None
    return tracing.Tracing(options.otlp_endpoint, "http" if options.tls is None else "https")


def _spare_what_stays() -> None:
    """What is there now stays; to look through it for garbage held up every stream for 50 to 80 ms."""
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def _make_app(
    engine: Engine,
    prepared: Prepared,
    reading: "_Reading",
    storage: "_Storage",
    access: Access,
    limits: AdmissionLimits,
    admission: AdmissionControl,
    options: ServeOptions,
    accounts: Accounts,
) -> Starlette:
    return create_app(
        engine,
        reading.tokenizer,
        template=reading.template,
        output_format=reading.output_format,
        defaults=SamplingDefaults.from_generation_config(prepared.checkpoint.generation_config),
        store=storage.store,
        why_no_store=storage.why_none,
        keys=access.keys,
        admission=admission,
        request_timeout=limits.request_timeout,
        local=not access.no_auth,
        settings=options.figures.settings(prepared.config, limits.bounds.requests),
        accounts=accounts,
        allowed_origins=options.edge.allowed_origins,
        policies=options.policies,
    )


@contextlib.asynccontextmanager
async def _admin(
    engine: Engine, options: ServeOptions, reasons: list[Reason], accounts: Accounts
) -> AsyncIterator[None]:
    """Serve the operator's requests while the block runs, where that was asked for."""
    if options.admin_socket is None:
        yield
        return
    with admin_socket(Path(options.admin_socket)) as listener:
        async with beside(create_admin_app(engine, reasons, accounts), listener):
            yield


@dataclass(frozen=True)
class _Reading:
    """How conversations become prompts and outputs become answers, and why; empty without a tokenizer."""

    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    output_format: OutputFormat | None = None
    reasons: Sequence[Reason] = ()


def _read_output(tokenizer: Tokenizer | None, options: ServeOptions) -> _Reading:
    if tokenizer is None:
        if options.chat_template is not None:
            raise ConfigurationError(NO_TOKENIZER_FOR_TEMPLATE)
        return _Reading()
    template = load_chat_template(tokenizer, options.chat_template)
    output_format, reasons = choose_format(template, tokenizer, *options.parsers)
    return _Reading(tokenizer, template, output_format, [*ChatEncoder(tokenizer, template).reasons, *reasons])


def address_markup(host: str, port: int, encrypted: bool = False) -> str:
    """The API's URL for rich, to which the brackets around an IPv6 address would mean markup."""
    scheme = "https" if encrypted else "http"
    return escape(f"{scheme}://[{host}]:{port}/v1" if ":" in host else f"{scheme}://{host}:{port}/v1")


async def _cancel(serving: "asyncio.Future[None]") -> None:
    """End it at once, unless it has ended."""
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


class _Storage:
    """The data directory, where one is kept.

    Attributes:
        store: None where nothing is kept; then `why_none` is what clients are told.
        note: what the start says.
    """

    def __init__(self) -> None:
        self.store: Store | None = None
        self.why_none = NO_STORE
        self.note = ""

    def open(self, asked: str | None, model: str, tenants: Sequence[Tenant]) -> None:
        """Take the folder. Where it was `asked` for, raises ConfigurationError; otherwise the server goes without."""
        folder, reason = choose_folder(asked, model)
        self.note = _note(reason)
        if folder is None:
            return
        try:
            self.store = Store.open(folder, tenants=tenants)
        except (ConfigurationError, StorageUnavailable) as error:
            if asked is not None:
                raise
            self.why_none = "This server keeps no files, and so runs no batches; its start said why."
            self.note = f"No files are kept, and there are no batches: {error.message}"

    def close(self) -> None:
        """Let another server have it."""
        if self.store is not None:
            self.store.close()


class _LoadProgress:
    """A bar in a terminal while weights load."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("loading weights"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), console=console
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "_LoadProgress":
        if console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if console.is_terminal:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """Take in how many bytes of weights are in place."""
        if self._task is None:
            self._task = self._bar.add_task("weights", total=total)
        self._bar.update(self._task, completed=done)


def _note(reason: Reason) -> str:
    """A setting as the start tells it."""
    return f"{reason.setting}: {reason.value} ({reason.why})"


def _reasons_table(reasons: list[Reason]) -> Table:
    table = Table("setting", "value", "why", box=None, pad_edge=False, header_style="bold")
    for reason in reasons:
        table.add_row(escape(reason.setting), escape(reason.value), escape(reason.why))
    return table


def _print_budget(ready: Ready, tokenizer_seconds: float, total: float) -> None:
    stages = [*ready.stages, StageTime("load tokenizer (beside it)", tokenizer_seconds)]
    width = max(len(stage.stage) for stage in stages)
    console.print("Start-up budget:")
    for stage in stages:
        console.print(f"  {stage.stage:<{width}}  {stage.seconds:6.2f} s")
    console.print(f"  {'ready after':<{width}}  {total:6.2f} s")


def _measured_limits(
    options: AdmissionOptions, config: EngineConfig, ready: Ready
) -> tuple[AdmissionLimits, list[Reason]]:
    """The limits, and why, with the pool that the engine has; on a GPU it was estimated before."""
    cache = replace(config.cache, num_blocks=ready.limits.num_blocks, wish=None)
    return resolve_admission(options, capacity_of(replace(config, cache=cache)))


def _settled(reasons: list[Reason], ready: Ready) -> list[Reason]:
    """The reasons, with what the engine has found out in the place of what was estimated."""
    found = {reason.setting: reason for reason in ready.settled}
    return [found.get(reason.setting, reason) for reason in reasons]


def _print_address(model: str, listener: socket.socket, *, encrypted: bool) -> None:
    host, port = listener.getsockname()[:2]
    address = address_markup(host, port, encrypted)
    console.print(f"Serving [bold]{escape(model)}[/bold] on {address}, with a page at /")


def _print_notes(prepared: Prepared, reading: "_Reading", reasons: list[Reason], ready: Ready) -> None:
    notes = list(ready.notes)
    if reading.template is not None:
        notes += reading.template.notes
    if reading.tokenizer is None:
        notes.append("The model has no tokenizer.json: prompts must be token ids, and outputs are ids without text.")
    else:
        notes += reading.tokenizer.check_against(prepared.declaration.vocab_size)
    for note in notes:
        console.print(f"[dim]{escape(note)}[/dim]", soft_wrap=True)
    for reason in reasons:
        if reason.at_start or reason in prepared.found:
            console.print(escape(_note(reason)), soft_wrap=True)
    console.print("--explain-config shows every setting with its reason.")
