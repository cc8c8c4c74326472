"""Starts a server. The command line tells a person what happens; a program may start one as well.

Either is told of the start by a `StartWatcher`.
"""

import contextlib
import time
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import structs

from penstock.access.exposure import Access
from penstock.access.limits import resolve_admission
from penstock.assembly.keeping import where_kept
from penstock.assembly.prepare import Prepared
from penstock.assembly.replica import Replica, Started
from penstock.assembly.served_model import ServedModel, text_settings
from penstock.assembly.server_options import ModelOptions, ServeOptions
from penstock.assembly.starting import EngineStart
from penstock.assembly.together import prepare_together
from penstock.configuration.options import EngineOptions
from penstock.core.config import Reason
from penstock.engine.watch import Patience
from penstock.http import descriptors
from penstock.http.limits import resolve_connections
from penstock.http.tls import NO_TLS
from penstock.observability import tracing
from penstock.observability.settings import FigureOptions
from penstock.server.capacity import capacity_of
from penstock.server.notify import READY, notify
from penstock.server.serve import bind, inherited
from penstock.text.output_format import check_parsers


class StartWatcher(Protocol):
    """Is told of a start."""

    def progress(self, done: int, total: int) -> None:
        """Bytes of weights that are in place, and of all."""

    def loading(self) -> AbstractContextManager[object]:
        """Around the time in which the model loads."""

    def serves(self, started: Started) -> None:
        """The model is loaded, and requests are computed."""


class Unwatched:
    """A watcher that does nothing."""

    def progress(self, done: int, total: int) -> None:
        """Leave it at that: no person waits."""

    def loading(self) -> AbstractContextManager[object]:
        """A context in which nothing is shown."""
        return contextlib.nullcontext()

    def serves(self, started: Started) -> None:
        """Leave it at that: the program will ask."""


def explain_server(options: EngineOptions, serving: ServeOptions, access: Access) -> list[Reason]:
    """Every setting of a server that would be started like this, and why it has its value. Raises StartupError."""
    models = serving.models(options)
    for each in models:
        check_parsers(*each.served.parsers)
    access.check_counted()
    files = descriptors.raise_limit()
    engines, names = [_aimed(each.engine, serving.figures) for each in models], [each.served.names for each in models]
    together = prepare_together(engines, names, memory=serving.memory)
    reasons: list[Reason] = []
    for each, prepared in zip(models, together.models, strict=True):
        own = _settings_of(prepared, each.served, serving)
        name = f"{prepared.served_names(each.served.names)[0]}: " if len(models) > 1 else ""
        reasons += [structs.replace(reason, setting=name + reason.setting) for reason in own]
    kept = where_kept(serving, together.models[0].served_names(serving.model.names)[0])
    encrypted = NO_TLS if serving.tls is None else serving.tls.reason
    _, connected = resolve_connections(serving.connections, descriptors.limit())
    traced = tracing.reason_of(serving.otlp_endpoint)
    return [
        *reasons,
        *together.shared,
        kept,
        access.reason,
        encrypted,
        files,
        *connected,
        *serving.edge.reasons,
        *serving.policies.reasons,
        *serving.figures.reasons,
        traced,
    ]


def _settings_of(prepared: Prepared, served: ModelOptions, serving: ServeOptions) -> list[Reason]:
    """Those of one model."""
    reading = text_settings(prepared.load_tokenizer(), served)
    _, admitted = resolve_admission(serving.admission, capacity_of(prepared.config))
    return [*prepared.reasons, *reading.reasons, prepared.end_tokens(reading.tokenizer).reason, *admitted]


async def serve_model(
    options: EngineOptions,
    serving: ServeOptions,
    access: Access | None = None,
    *,
    watcher: StartWatcher | None = None,
) -> None:
    """Serve a model, and others beside it, until a signal ends the server, or the call is cancelled.

    Args:
        options: of the model's engine.
        serving: of all else, the other models among it.
        access: who may ask; by default every client, of a server that listens on an address of this machine alone.
        watcher: is told of the start.

    Raises StartupError where it cannot start, EngineError where the engine ends for good.
    """
    began = time.monotonic()
    access, watcher = access or Access(), watcher or Unwatched()
    for each in serving.models(options):
        check_parsers(*each.served.parsers)
    files = descriptors.raise_limit()
    # The port is taken first: if it is in use, nothing needs to be loaded to say so.
    given = serving.listen_fd
    with contextlib.closing(bind(serving.host, serving.port) if given is None else inherited(given)) as listener:
        access.check_counted()
        access.check_exposed(listener)
        models = serving.models(options)
        starts, shared = await EngineStart.begin_together(
            [_aimed(each.engine, serving.figures) for each in models],
            [each.served.names for each in models],
            watcher.progress,
            Patience(hang_seconds=serving.watchdog),
            serving.memory,
        )
        served = [ServedModel(start, each.served, serving) for start, each in zip(starts, models, strict=True)]
        replica = Replica(served, serving, access, files, shared)
        try:
            await replica.open()
            with watcher.loading():
                if not await replica.serves(listener):
                    return
            watcher.serves(replica.told(listener, time.monotonic() - began))
            notify(READY)
            await replica.until_the_end()
        finally:
            await replica.close()


def _aimed(options: EngineOptions, figures: FigureOptions) -> EngineOptions:
    """The engine's options, whose steps aim for the service levels unless something else was asked for."""
    target = figures.target_itl(options.batch.target_itl)
    return structs.replace(options, batch=structs.replace(options.batch, target_itl=target))
