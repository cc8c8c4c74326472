"""Starts a gateway."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING

from penstock.access.exposure import Access
from penstock.api.policies import FieldPolicies
from penstock.api.reading import Reading
from penstock.assembly.picking import check_pickable, picker
from penstock.configuration.stores import VALKEY_SCHEMES
from penstock.core.errors import ConfigurationError
from penstock.database.errors import DatabaseUnavailable
from penstock.engine.interface import ModelInfo
from penstock.gateway.app import MAX_BODY_BYTES, create_gateway
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.join import JoinApi
from penstock.gateway.joining import VARIABLE
from penstock.gateway.members import Members
from penstock.gateway.options import FleetOptions
from penstock.gateway.relay import Relay
from penstock.http import descriptors
from penstock.http.body import BodyReader
from penstock.http.edge import EdgeOptions
from penstock.http.limits import ConnectionOptions, resolve_connections
from penstock.http.tls import Tls
from penstock.observability.tracing import Tracing
from penstock.server.dialects import DIALECTS
from penstock.server.notify import READY, notify
from penstock.server.prompts import PromptReader
from penstock.server.serve import DRAIN_SECONDS, bind, inherited, serve
from penstock.storage.directory import data_root
from penstock.tenancy.oidc_options import IssuerOptions

if TYPE_CHECKING:
    from penstock.access.fleet_allowances import FleetAllowances
    from penstock.database.connection import Database
    from penstock.gateway.shared_answers import SharedAnswers
    from penstock.gateway.tenants import Tenants
    from penstock.tenancy.oidc import Issuer


OnServing = Callable[[tuple[str, int], int | None], None]


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """What a gateway is asked for, beside its replicas.

    Attributes:
        host, port: where it listens; port 0 is any free one.
        listen_fd: the descriptor of a socket that listens already, in their place; None: there is none.
        drain_timeout: seconds for running requests to finish in.
        connections: how many there are, and for how long.
        edge: how it speaks with those in front of it.
        tls: what connections are encrypted with, None where they are not.
        join_token: that replicas need to join; None: none may.
        otlp_endpoint: of a collector that traces are sent to; None: none are made.
        database: URL of that of tenants, their keys and the ledger; None: there are none.
        limits_store: URL of the Valkey or Redis where limits are counted for several gateways; None: in memory.
        answer_store: URL of the one where several gateways keep answers; None: in memory.
        ext_proc_port: where Envoy asks which replica a request goes to; None: it does not.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    listen_fd: int | None = None
    drain_timeout: float = DRAIN_SECONDS
    connections: ConnectionOptions = ConnectionOptions()
    edge: EdgeOptions = EdgeOptions()
    tls: Tls | None = None
    join_token: str | None = None
    otlp_endpoint: str | None = None
    database: str | None = None
    limits_store: str | None = None
    answer_store: str | None = None
    ext_proc_port: int | None = None


def fleet_allowances(url: str) -> "FleetAllowances":
    """What counts for several gateways. Raises ConfigurationError."""
    with _using_store("--limits-store"):
        from penstock.access.fleet_allowances import FleetAllowances

        return FleetAllowances(_store("--limits-store", url))


def shared_answers(url: str, seconds: float) -> "SharedAnswers":
    """Where several gateways keep answers, which has some seconds to say what it has. Raises ConfigurationError."""
    with _using_store("--answer-store"):
        from penstock.gateway.shared_answers import SharedAnswers

        return SharedAnswers(_store("--answer-store", url), seconds)


def _store(option: str, url: str) -> str:
    """The URL of a store as its client wants it. Raises ConfigurationError."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in VALKEY_SCHEMES or not rest:
        raise ConfigurationError(
            f"{option} must be a URL such as redis://10.0.0.9:6379/0, with one of {', '.join(VALKEY_SCHEMES)}."
        )
    return f"{VALKEY_SCHEMES[scheme]}://{rest}"


@contextlib.contextmanager
def _using_store(option: str) -> Iterator[None]:
    """Raises ConfigurationError where the client of a store is not there, or does not take the URL."""
    try:
        yield
    except ImportError:
        raise ConfigurationError(f"{option} needs the extra gateway: pip install 'penstock[gateway]'.") from None
    except ValueError as error:
        raise ConfigurationError(f"{option} cannot be used: {error}.") from None


def tenants_in(url: str, oidc: IssuerOptions | None) -> "Tenants":
    """What follows a database of tenants, whose tables are those of this version then.

    Args:
        oidc: whose tokens are taken beside keys.

    Raises ConfigurationError, also where it does not answer: without it no key would be known.
    """
    database = open_database(url)
    from penstock.gateway.tenants import Tenants

    try:
        database.upgrade()
    except DatabaseUnavailable as error:
        raise ConfigurationError(error.message) from None
    journals = data_root() / "ledgers" / hashlib.blake2b(database.name.encode(), digest_size=8).hexdigest()
    return Tenants(database, journals, None if oidc is None else _issuer(oidc))


def _issuer(oidc: IssuerOptions) -> "Issuer":
    try:
        from penstock.tenancy.oidc import Issuer
    except ImportError:
        raise ConfigurationError("oidc needs the extra gateway: pip install 'penstock[gateway]'.") from None
    return Issuer(oidc)


class Files:
    """The files and batches that a gateway keeps in its database."""

    def __init__(self, url: str, tenants: "Tenants", dispatch: Dispatch) -> None:
        """Raises ConfigurationError."""
        from penstock.gateway.batches import fleet_batches, fleet_store

        directory = tenants.following.directory
        self._store = fleet_store(url, directory)
        relay = Relay(dispatch, BodyReader(MAX_BODY_BYTES), DIALECTS)
        self.api = fleet_batches(self._store, relay, directory, dispatch.figures)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run batches while the block does; then the store is closed."""
        with contextlib.closing(self._store):
            async with self.api.running():
                yield


def open_database(url: str) -> "Database":
    """A database of tenants, which is asked for nothing yet. Raises ConfigurationError."""
    from penstock.database.connection import Database

    return Database.open(url)


def join_token() -> str | None:
    """The token that replicas need to join, where the environment has one."""
    return os.environ.get(VARIABLE) or None


def prompt_reader(model: str) -> PromptReader:
    """Reads prompts as replicas of a model do, from what is beside its weights. Raises StartupError."""
    from penstock.assembly.served_model import TextSettings, prompt_identity, text_settings
    from penstock.assembly.server_options import ModelOptions
    from penstock.loading.checkpoint import open_checkpoint
    from penstock.loading.fitting import model_of
    from penstock.loading.hub import resolve_model
    from penstock.loading.tokenizers import tokenizer_in
    from penstock.loading.vector_modules import modules_of

    path = resolve_model(model)
    checkpoint = open_checkpoint(path, weights=False)
    declaration = model_of(checkpoint)
    vectors = modules_of(checkpoint, declaration)
    settings: TextSettings = text_settings(tokenizer_in(path, declaration.vocab_size), ModelOptions())
    if settings.tokenizer is None:
        raise ConfigurationError(f"--prompts {model}: it has no tokenizer, and so no prompts that could be read.")
    # A replica may refuse what is let through here, which is its own matter.
    policies = FieldPolicies(unknown_fields="tell")
    reading = Reading(settings.tokenizer, settings.template, settings.output_format, policies=policies)
    info = ModelInfo(
        name=model,
        max_model_len=declaration.max_position_embeddings,
        vocab_size=declaration.vocab_size,
        embedding_size=vectors.size(declaration.decoder.width),
        vectors=vectors,
        generates=declaration.decoder.generates,
    )
    return PromptReader(reading, info, prompt_identity(settings))


def _check_access(listener: socket, fleet: FleetOptions, options: GatewayOptions, access: Access) -> None:
    """Raises ConfigurationError where who may ask is said twice, or not as it must be."""
    if options.database is None:
        access.check_exposed(listener)
        if fleet.oidc is not None:
            raise ConfigurationError("oidc needs --database: tokens are for projects, which are there.")
    elif access.keys or access.no_auth:
        raise ConfigurationError("--database has the keys that are taken; leave the other options of keys out.")
    if options.ext_proc_port is not None:
        check_pickable(fleet, keyed=bool(access.keys) or options.database is not None)


async def serve_gateway(fleet: FleetOptions, options: GatewayOptions, access: Access, on_serving: OnServing) -> None:
    """Pass requests on until a signal ends it.

    `on_serving` is told host and port once connections are accepted, and the port where Envoy asks, if it does.

    Raises StartupError where it cannot start.
    """
    descriptors.raise_limit()
    given = options.listen_fd
    with contextlib.closing(bind(options.host, options.port) if given is None else inherited(given)) as listener:
        _check_access(listener, fleet, options, access)
        limits, _ = resolve_connections(options.connections, descriptors.limit())
        readers = {model: prompt_reader(model) for model in fleet.prompts}
        tracing = None if options.otlp_endpoint is None else Tracing(options.otlp_endpoint, service="penstock-gateway")
        shared = None if options.limits_store is None else fleet_allowances(options.limits_store)
        kept_apart = (
            None
            if options.answer_store is None
            else shared_answers(options.answer_store, fleet.answer_cache.store_seconds)
        )
        tenants = None if options.database is None else tenants_in(options.database, fleet.oidc)
        dispatch = Dispatch(
            fleet,
            readers,
            keyed=bool(access.keys) or tenants is not None,
            tracing=tracing,
            allowances=shared,
            ledger=tenants,
            answers=kept_apart,
        )
        members = Members(dispatch, fleet)
        files = None if tenants is None or options.database is None else Files(options.database, tenants, dispatch)
        application = create_gateway(
            dispatch,
            DIALECTS,
            join=JoinApi(members, options.join_token),
            keys=access.keys,
            tenants=tenants,
            files=None if files is None else files.api,
            local=not access.no_auth,
            allowed_origins=options.edge.allowed_origins,
        )
        host, port = listener.getsockname()[:2]

        asked = options.ext_proc_port
        picks: contextlib.AbstractAsyncContextManager[int | None] = contextlib.nullcontext()
        if asked is not None:
            picks = picker(dispatch, host, asked, options.drain_timeout)

        watched = contextlib.nullcontext() if shared is None else shared.watched()
        followed = contextlib.nullcontext() if tenants is None else tenants.watched(dispatch)
        kept = contextlib.nullcontext() if kept_apart is None else kept_apart.watched()
        batches = contextlib.nullcontext() if files is None else files.running()
        async with members.looked_after(), _closed(tracing), watched, followed, kept, batches, picks as picks_at:

            def started() -> None:
                on_serving((host, port), picks_at)
                notify(READY)

            await serve(
                application,
                listener,
                on_started=started,
                drain_seconds=options.drain_timeout,
                stall_timeout=limits.stall_timeout,
                max_connections=limits.max_connections,
                tls=None if options.tls is None else options.tls.context,
                edge=options.edge,
                hands_over=options.listen_fd is not None,
            )


@contextlib.asynccontextmanager
async def _closed(tracing: Tracing | None) -> AsyncIterator[None]:
    """Send what is left of traces when the block ends."""
    try:
        yield
    finally:
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
