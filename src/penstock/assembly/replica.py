"""One server with its engine: what it is made of, from its start to its end."""

import asyncio
import contextlib
import dataclasses
import hashlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from starlette.applications import Starlette

from penstock.access.exposure import Access
from penstock.access.limits import AdmissionLimits, AdmissionOptions, resolve_admission
from penstock.assembly.joining import joining
from penstock.assembly.keeping import Keeping
from penstock.assembly.server_options import ServeOptions
from penstock.assembly.starting import EngineStart
from penstock.core.config import EngineConfig, Reason
from penstock.core.errors import ConfigurationError
from penstock.core.kv_places import KVPlaces
from penstock.engine.messages import Ready
from penstock.http import descriptors
from penstock.http.limits import resolve_connections
from penstock.observability import tracing
from penstock.observability.accounts import Accounts
from penstock.observability.explain.explain import Figures
from penstock.observability.recent import Recent
from penstock.server.admin import admin_socket, create_admin_app
from penstock.server.app import create_app
from penstock.server.capacity import capacity_of, make_admission
from penstock.server.kv_publisher import KVPublisher
from penstock.server.replica_state import Telling
from penstock.server.serve import beside, serve
from penstock.text.chat_template import NO_TOKENIZER_FOR_TEMPLATE, ChatEncoder, ChatTemplate, load_chat_template
from penstock.text.output_format import OutputFormat, choose_format
from penstock.text.tokenizer import Tokenizer

NO_TEXT = "The model has no tokenizer.json: prompts must be token ids, and outputs are ids without text."


@dataclass(frozen=True)
class Started:
    """A server that serves, as its start tells it.

    Attributes:
        model: its name.
        address: host and port that it listens on.
        encrypted: whether with TLS.
        ready: what the engine said.
        tokenizer_seconds, seconds: that the tokenizer took, beside the engine, and the start in all.
        notes: what users should know of the model.
        reasons: all settings of engine and model.
        told: of these, those that say what can be asked of the server, and what the model's files made otherwise.
        remarks: what the start says of the data directory, the process, and who may ask.
    """

    model: str
    address: tuple[str, int]
    encrypted: bool
    ready: Ready
    tokenizer_seconds: float
    seconds: float
    notes: tuple[str, ...]
    reasons: tuple[Reason, ...]
    told: tuple[Reason, ...]
    remarks: tuple[str, ...]


class Replica:
    """A server that starts, serves and ends."""

    def __init__(self, start: EngineStart, serving: ServeOptions, access: Access, files: Reason) -> None:
        self._engine, self._prepared, self._start = start.engine, start.prepared, start
        self._options, self._access, self._files = serving, access, files
        self._storage = Keeping()
        self._traces: tracing.Tracing | None = None
        self._serving: asyncio.Future[None] | None = None
        self._publisher: KVPublisher | None = None
        self._open = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Find out what is taken on, and take the data directory and further ports. Raises ConfigurationError."""
        if self._options.kv_events is not None:
            await self._publish(*self._options.kv_events)
        self._limits, _ = resolve_admission(self._options.admission, capacity_of(self._prepared.config))
        self._connections, self._connected = resolve_connections(self._options.connections, descriptors.limit())
        self._admission = make_admission(self._limits.bounds, self._prepared.config)
        name = self._prepared.served_names(self._options.names)[0]
        await asyncio.to_thread(self._storage.open, self._options, name, self._access.keys.tenants)

    async def _publish(self, host: str, port: int) -> None:
        """Tell what changes in the prefix cache."""
        config = self._prepared.config
        if not config.cache.prefix_caching:
            raise ConfigurationError("--kv-events needs the prefix cache, which --no-enable-prefix-caching turns off.")
        told = replace(config, cache=replace(config.cache, events=True))
        self._prepared = self._start.prepared = dataclasses.replace(self._prepared, config=told)
        self._publisher = KVPublisher(config.cache.spec.block_size)
        await self._open.enter_async_context(self._publisher.publishing(self._engine.watch_cache, host, port))

    async def serves(self, listener: socket.socket) -> bool:
        """Load the model and wait for it, while health is answered; False where a signal came before."""
        before = time.monotonic()
        tokenizer = await self._start.load()
        self._reading = text_settings(tokenizer, self._options)
        self._tokenizer_seconds = time.monotonic() - before
        self._traces = await asyncio.to_thread(_make_traces, self._options)
        text = None if tokenizer is None else partial(tokenizer.decode, skip_special=False)
        recent = Recent(keep_prompts=self._options.explain_prompts)
        self._accounts = Accounts(self._engine, recent, text, self._traces)
        self._serving = asyncio.ensure_future(self._listen(listener))
        options = self._options
        await self._open.enter_async_context(
            joining(options.join, listener, options.edge.root_path, encrypted=options.tls is not None)
        )
        ready = asyncio.ensure_future(self._start.ready(tokenizer, self._options.names))
        try:
            # A signal while the model loads ends the server, and with it the wait.
            await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
            if self._serving.done():
                self._serving.result()
                return False
            self._take_in(ready.result())
            return True
        finally:
            ready.cancel()

    async def _listen(self, listener: socket.socket) -> None:
        options = self._options
        await serve(
            self._application(),
            listener,
            drain_seconds=options.drain_timeout,
            stall_timeout=self._connections.stall_timeout,
            max_connections=self._connections.max_connections,
            tls=None if options.tls is None else options.tls.context,
            edge=options.edge,
        )

    def _application(self) -> Starlette:
        options, reading, prepared = self._options, self._reading, self._prepared
        return create_app(
            self._engine,
            reading.tokenizer,
            template=reading.template,
            output_format=reading.output_format,
            defaults=prepared.sampling,
            store=self._storage.store,
            why_no_store=self._storage.why_none,
            keys=self._access.keys,
            admission=self._admission,
            request_timeout=self._limits.request_timeout,
            local=not self._access.no_auth,
            settings=options.figures.settings(prepared.config, self._limits.bounds.requests),
            accounts=self._accounts,
            allowed_origins=options.edge.allowed_origins,
            policies=options.policies,
            telling=Telling(
                texts=self._text_identity(),
                prompts=prompt_identity(reading),
                most_running=prepared.config.scheduler.max_num_seqs,
                store="" if self._storage.store is None else self._storage.store.id,
                kv_places=self._kv_places,
            ),
        )

    def _text_identity(self) -> str:
        """The same for replicas that make the same prompts of requests, and the same answers of tokens."""
        reading = self._reading
        parts = [
            b"" if reading.template is None else reading.template.source.encode(),
            repr(reading.output_format).encode(),
            repr(sorted(self._prepared.checkpoint.generation_config.items())).encode(),
            repr(self._options.policies).encode(),
            b"" if reading.tokenizer is None else reading.tokenizer.identity,
        ]
        return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).hexdigest()

    def _take_in(self, ready: Ready) -> None:
        """What the engine has found out takes the place of what was estimated."""
        self._ready = ready
        self._accounts.figures = Figures(ready.work, ready.ceilings)
        limits, bounds = measured_limits(self._options.admission, self._prepared.config, ready)
        self._admission.bounds = limits.bounds
        ends = self._prepared.end_tokens(self._reading.tokenizer).reason
        resolved = [*self._prepared.reasons, *self._reading.reasons, ends, *bounds, *self._connected]
        self._reasons = settled(resolved, ready)

    def told(self, listener: socket.socket, seconds: float) -> Started:
        """What there is to tell of the start, once it serves."""
        tls, access = self._options.tls, self._access
        host, port = listener.getsockname()[:2]
        encrypted = [] if tls is None else [str(tls.reason)]
        return Started(
            model=self._engine.model.name,
            address=(host, port),
            encrypted=tls is not None,
            ready=self._ready,
            tokenizer_seconds=self._tokenizer_seconds,
            seconds=seconds,
            notes=self._notes(),
            reasons=tuple(self._reasons),
            told=tuple(each for each in self._reasons if each.at_start or each in self._prepared.found),
            remarks=(
                self._storage.note,
                str(self._files),
                str(access.reason),
                *access.warnings,
                *encrypted,
                *self._told_events(),
            ),
        )

    def _kv_places(self) -> KVPlaces | None:
        return None if self._publisher is None else self._publisher.places

    def _told_events(self) -> tuple[str, ...]:
        """Where events of the prefix cache are, and who can read them."""
        places = self._kv_places()
        if places is None or self._options.kv_events is None:
            return ()
        return (
            f"Events of the prefix cache are told at port {places.events} of {self._options.kv_events[0]}, and again "
            f"at {places.replay}, without a key; they have the tokens of prompts.",
        )

    def _notes(self) -> tuple[str, ...]:
        notes, reading = list(self._ready.notes), self._reading
        if reading.template is not None:
            notes += reading.template.notes
        if reading.tokenizer is None:
            notes.append(NO_TEXT)
        else:
            notes += reading.tokenizer.check_against(self._prepared.declaration.vocab_size)
        return tuple(notes)

    async def until_the_end(self) -> None:
        """Serve clients, and the operator where that was asked for."""
        assert self._serving is not None
        async with self._operator():
            await self._serving

    @contextlib.asynccontextmanager
    async def _operator(self) -> AsyncIterator[None]:
        if self._options.admin_socket is None:
            yield
            return
        with admin_socket(Path(self._options.admin_socket)) as listener:
            async with beside(create_admin_app(self._engine, self._reasons, self._accounts), listener):
                yield

    async def close(self) -> None:
        """End it at once, unless it has ended."""
        if self._serving is not None:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        await self._open.aclose()
        await self._engine.close()
        self._storage.close()
        if self._traces is not None:
            self._traces.close()


@dataclass(frozen=True)
class TextSettings:
    """How conversations become prompts and outputs become answers, and why; empty without a tokenizer."""

    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    output_format: OutputFormat | None = None
    reasons: Sequence[Reason] = ()


def text_settings(tokenizer: Tokenizer | None, options: ServeOptions) -> TextSettings:
    if tokenizer is None:
        if options.chat_template is not None:
            raise ConfigurationError(NO_TOKENIZER_FOR_TEMPLATE)
        return TextSettings()
    template = load_chat_template(tokenizer, options.chat_template)
    output_format, reasons = choose_format(template, tokenizer, *options.parsers)
    return TextSettings(tokenizer, template, output_format, [*ChatEncoder(tokenizer, template).reasons, *reasons])


def prompt_identity(reading: TextSettings) -> str:
    """The same for readers that make the same prompts of requests; empty where prompts are token ids only."""
    if reading.tokenizer is None:
        return ""
    template = b"" if reading.template is None else reading.template.source.encode()
    reasons = reading.output_format is not None and reading.output_format.reasoning
    parts = (template, b"reasons" if reasons else b"", reading.tokenizer.identity)
    return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).hexdigest()


def _make_traces(options: ServeOptions) -> tracing.Tracing | None:
    """What sends traces, where they are wanted."""
    if options.otlp_endpoint is None:
        return None
    return tracing.Tracing(options.otlp_endpoint, "http" if options.tls is None else "https")


def measured_limits(
    options: AdmissionOptions, config: EngineConfig, ready: Ready
) -> tuple[AdmissionLimits, list[Reason]]:
    """The limits, and why, with the pool that the engine has; on a GPU it was estimated before."""
    cache = replace(config.cache, num_blocks=ready.limits.num_blocks, wish=None)
    return resolve_admission(options, capacity_of(replace(config, cache=cache)))


def settled(reasons: list[Reason], ready: Ready) -> list[Reason]:
    """The reasons, with what the engine has found out in the place of what was estimated."""
    found = {reason.setting: reason for reason in ready.settled}
    return [found.get(reason.setting, reason) for reason in reasons]
