"""One server with its engine: what it is made of, from its start to its end."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from starlette.applications import Starlette

from penstock.access.exposure import Access
from penstock.assembly.joining import joining
from penstock.assembly.keeping import Keeping
from penstock.assembly.served_model import ServedModel, StartedModel, prompt_identity
from penstock.assembly.server_options import ServeOptions
from penstock.core.config import EngineConfig, Reason
from penstock.core.errors import ConfigurationError
from penstock.core.handover import Role
from penstock.core.kv_places import KVPlaces
from penstock.http import descriptors
from penstock.http.drain import LAST_WORDS_SECONDS
from penstock.http.limits import resolve_connections
from penstock.observability import tracing
from penstock.server.admin import admin_socket, create_admin_app
from penstock.server.app import create_app
from penstock.server.kv_publisher import KVPublisher
from penstock.server.notices import Look, look_of, wait_for_notice
from penstock.server.replica_state import Telling
from penstock.server.serve import CLOSE_SECONDS, beside, serve

logger = logging.getLogger("penstock.server")

# For what was computed to be written at the end of a server.
FLUSH_SECONDS = 5.0
# Of the time that a notice leaves, what is not for requests.
RESERVED_SECONDS = LAST_WORDS_SECONDS + CLOSE_SECONDS + FLUSH_SECONDS


@dataclass(frozen=True)
class Started:
    """A server that serves, as its start tells it.

    Attributes:
        models: that it serves.
        address: host and port that it listens on.
        encrypted: whether with TLS.
        seconds: that the start took in all.
        reasons: settings of the server.
        remarks: what the start says of the data directory, the process, and who may ask.
    """

    models: tuple[StartedModel, ...]
    address: tuple[str, int]
    encrypted: bool
    seconds: float
    reasons: tuple[Reason, ...]
    remarks: tuple[str, ...]


class Replica:
    """A server that starts, serves and ends.

    Args:
        models: that it serves, one at least.
        access: who may ask.
        files: the reason of how many files may be open.
        shared: how its models share the machine; nothing is to be told of one alone.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        serving: ServeOptions,
        access: Access,
        files: Reason,
        shared: Sequence[Reason] = (),
    ) -> None:
        self._models, self._first = models, models[0]
        self._options, self._access, self._files, self._shared = serving, access, files, shared
        self._storage = Keeping()
        self._traces: tracing.Tracing | None = None
        self._serving: asyncio.Future[bool] | None = None
        self._publisher: KVPublisher | None = None
        self._look: Look | None = None
        self._open = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Find out what is taken on, and take the data directory and further ports. Raises ConfigurationError."""
        if self._options.notice is not None:
            self._look = look_of(self._options.notice)
        if self._options.kv_events is not None:
            await self._publish(*self._options.kv_events)
        for model in self._models:
            model.open()
        self._connections, self._connected = resolve_connections(self._options.connections, descriptors.limit())
        name = self._first.names[0]
        await asyncio.to_thread(self._storage.open, self._options, name, self._access.keys.tenants)

    async def _publish(self, host: str, port: int) -> None:
        """Tell what changes in the prefix cache."""
        start = self._first.start
        config = start.prepared.config
        if not config.cache.prefix_caching:
            raise ConfigurationError("--kv-events needs the prefix cache, which --no-enable-prefix-caching turns off.")
        if config.scheduler.max_source is not None:
            raise ConfigurationError(
                "--kv-events tells of the blocks of prompts, and an encoder–decoder's are of its outputs; leave it out."
            )
        told = replace(config, cache=replace(config.cache, events=True))
        start.prepared = dataclasses.replace(start.prepared, config=told)
        self._publisher = KVPublisher(config.cache.spec.block_size)
        await self._open.enter_async_context(self._publisher.publishing(start.engine.watch_cache, host, port))

    async def serves(self, listener: socket.socket) -> bool:
        """Load the models and wait for them, while health is answered; False where a signal came before."""
        self._traces = await asyncio.to_thread(_make_traces, self._options)
        for model in self._models:
            await model.load(self._traces)
        self._serving = asyncio.ensure_future(self._listen(listener))
        options = self._options
        await self._open.enter_async_context(
            joining(options.join, listener, options.edge.root_path, encrypted=options.tls is not None)
        )
        ready = asyncio.gather(*(model.wait() for model in self._models))
        try:
            # A signal while the models load ends the server, and with it the wait.
            await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
            # Nor does one begin to serve that has closed its port, and is about to end.
            if self._serving.done() or listener.fileno() < 0:
                await self._serving
                return False
            ready.result()
            return True
        finally:
            ready.cancel()

    async def _listen(self, listener: socket.socket) -> bool:
        options = self._options
        return await serve(
            self._application(),
            listener,
            drain_seconds=options.drain_timeout,
            stall_timeout=self._connections.stall_timeout,
            max_connections=self._connections.max_connections,
            tls=None if options.tls is None else options.tls.context,
            edge=options.edge,
            taken=None if self._look is None else functools.partial(_taken, self._look),
        )

    def _application(self) -> Starlette:
        options, first = self._options, self._first
        return create_app(
            **vars(first.parts()),
            beside=[model.parts() for model in self._models[1:]],
            store=self._storage.store,
            why_no_store=self._storage.why_none,
            keys=self._access.keys,
            request_timeout=first.limits.request_timeout,
            local=not self._access.no_auth,
            allowed_origins=options.edge.allowed_origins,
            policies=options.policies,
            telling=Telling(
                texts=" ".join(model.text_identity for model in self._models),
                prompts=prompt_identity(first.reading),
                most_running=sum(model.start.prepared.config.scheduler.max_num_seqs for model in self._models),
                store="" if self._storage.store is None else self._storage.store.id,
                role=self._role,
                kv_places=self._kv_places,
            ),
        )

    def told(self, listener: socket.socket, seconds: float) -> Started:
        """What there is to tell of the start, once it serves."""
        tls, access = self._options.tls, self._access
        host, port = listener.getsockname()[:2]
        encrypted = [] if tls is None else [str(tls.reason)]
        return Started(
            models=tuple(model.told() for model in self._models),
            address=(host, port),
            encrypted=tls is not None,
            seconds=seconds,
            reasons=tuple(self._own_reasons),
            remarks=(
                *map(str, self._shared),
                self._storage.note,
                str(self._files),
                str(access.reason),
                *access.warnings,
                *encrypted,
                *self._told_events(),
            ),
        )

    @property
    def _role(self) -> Role:
        part = self._first.start.prepared.config.cache.handover
        return "both" if part is None else part.role

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

    async def until_the_end(self) -> None:
        """Serve clients, and the operator where that was asked for."""
        assert self._serving is not None
        async with self._operator():
            if await self._serving:
                await self._write_what_was_computed()

    async def _write_what_was_computed(self) -> None:
        """Leave to the next server, and to others with the same store, what this one has computed."""
        configs = {model.engine: model.start.prepared.config for model in self._models}
        writing = [engine for engine, config in configs.items() if _writes(config)]
        there = await asyncio.gather(*(engine.flush(FLUSH_SECONDS) for engine in writing))
        if not all(there):
            logger.warning(
                "Not all that was computed is on the disk or in the store after %g s; it is computed again.",
                FLUSH_SECONDS,
            )

    @contextlib.asynccontextmanager
    async def _operator(self) -> AsyncIterator[None]:
        if self._options.admin_socket is None:
            yield
            return
        engines = {name: model.engine for model in self._models for name in model.names}
        reasons = [*(reason for model in self._models for reason in self._named(model)), *self._own_reasons]
        app = create_admin_app(engines, reasons, [model.accounts for model in self._models])
        with admin_socket(Path(self._options.admin_socket)) as listener:
            async with beside(app, listener):
                yield

    def _named(self, model: ServedModel) -> list[Reason]:
        """A model's settings; where there are several models, with its name."""
        if len(self._models) == 1:
            return model.reasons
        return [replace(reason, setting=f"{model.names[0]}: {reason.setting}") for reason in model.reasons]

    @property
    def _own_reasons(self) -> list[Reason]:
        """The server's settings."""
        return [*self._shared, *self._connected]

    async def close(self) -> None:
        """End it at once, unless it has ended."""
        if self._serving is not None:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        await self._open.aclose()
        await asyncio.gather(*(model.engine.close() for model in self._models))
        self._storage.close()
        if self._traces is not None:
            self._traces.close()


async def _taken(look: Look) -> float:
    """Wait until there is a notice; the seconds that running requests have then."""
    notice = await wait_for_notice(look)
    seconds = max(0.0, notice.seconds - RESERVED_SECONDS)
    logger.warning(
        "%s, in %.0f s: nothing new is taken on, running requests have %.0f s, and go on elsewhere then.",
        notice.why,
        notice.seconds,
        seconds,
    )
    return seconds


def _make_traces(options: ServeOptions) -> tracing.Tracing | None:
    """What sends traces, where they are wanted."""
    if options.otlp_endpoint is None:
        return None
    return tracing.Tracing(options.otlp_endpoint, "http" if options.tls is None else "https")


def _writes(config: EngineConfig) -> bool:
    """Whether an engine writes anything that outlives it."""
    counts = None if config.ranks is None else config.ranks.counts
    return any(each is not None for each in (config.cache.disk, config.cache.store, counts))
