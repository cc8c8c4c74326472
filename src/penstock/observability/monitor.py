"""What a server tells of itself: all it counts, as Prometheus' text and as the answer of `/v1/stats`."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from penstock import __version__
from penstock.core.errors import EngineUnavailable
from penstock.core.facts import WAITS
from penstock.engine.interface import EngineClient, model_name
from penstock.observability.exposition import (
    Storage,
    Traces,
    Value,
    exposition,
    exposition_of,
    process_values,
    settings_values,
    storage_values,
    traces_values,
    values_of,
)
from penstock.observability.metrics import Metrics
from penstock.observability.processes import ProcessProbe
from penstock.observability.report import life_of, minute_of, now_of, timeline_of
from penstock.observability.stats import ProcessFigures, Settings, Stats

# Of the metrics that each monitor has, those that are the server's: the first model's has them.
_OF_SERVER = ("penstock_batch_lines_total", "penstock_batch_lines_running", "penstock_uptime_seconds")


class Monitor:
    """The figures of one server, from all their sources."""

    def __init__(
        self,
        engine: EngineClient,
        metrics: Metrics,
        settings: Settings | None = None,
        storage: Storage | None = None,
        traces: Traces | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`storage` is None where nothing is kept, `traces` where none are made."""
        self._engine = engine
        self._metrics = metrics
        self._settings = settings or Settings()
        self._storage = storage
        self._traces = traces
        self._wall_clock = wall_clock
        self._probe = ProcessProbe()

    @property
    def name(self) -> str | None:
        """Of the model whose figures they are; None before there is one."""
        return model_name(self._engine)

    def exposition(self, *, ending: bool = False) -> bytes:
        """Everything, in Prometheus' text format. `ending`: the server takes on nothing more."""
        own, common = self.parts(ending=ending)
        return exposition({**own, **common, **process_values(self._processes())})

    def parts(self, *, ending: bool) -> tuple[dict[str, Value], dict[str, Value]]:
        """What is the model's, and what is the server's, by name of metric; without what processes take."""
        values = values_of(self._metrics) | {"penstock_ready": int(self._why_not(ending) is None)}
        common = {name: values.pop(name) for name in _OF_SERVER}
        common |= settings_values(self._known(), self._metrics.now() - self._metrics.began)
        if self._storage is not None:
            common |= storage_values(self._storage)
        if self._traces is not None:
            common |= traces_values(self._traces)
        return values, common

    def engine_values(self) -> dict[str, Value]:
        """What the engine's process takes, by name of metric."""
        return process_values({"engine": self._processes()["engine"]})

    def api_values(self) -> dict[str, Value]:
        """What this process takes, by name of metric."""
        return process_values({"api": self._processes()["api"]})

    def stats(self, *, ending: bool = False, models: Sequence[str] = ()) -> Stats:
        """Everything, as of now. `ending`: the server takes on nothing more; `models`: all that it serves."""
        metrics, settings = self._metrics, self._known()
        now, at = metrics.now(), self._wall_clock()
        sums, uptime, why_not = metrics.sums(), now - metrics.began, self._why_not(ending)
        return Stats(
            version=__version__,
            model=model_name(self._engine),
            at=at,
            uptime=uptime,
            ready=why_not is None,
            why_not=why_not,
            restarts=sums.load.restarts,
            settings=settings,
            waits=WAITS,
            now=now_of(metrics, sums),
            life=life_of(metrics, sums, uptime, settings),
            minute=minute_of(metrics, sums, now, settings),
            timeline=timeline_of(metrics.marks, at - now),
            processes=self._processes(),
            models=list(models),
        )

    def _known(self) -> Settings:
        """The settings, with what the engine has measured of its machine."""
        settings, ceilings = self._settings, self._engine.ceilings
        if settings.max_model_len is not None:
            with suppress(EngineUnavailable):
                settings = msgspec.structs.replace(settings, max_model_len=self._engine.model.max_model_len)
        if ceilings is None:
            return settings
        rounded = settings.quantization not in (None, "none")
        format = (settings.quantization if rounded else settings.dtype) or "float32"
        return msgspec.structs.replace(
            settings,
            memory_bytes_per_second=ceilings.read * 1e9,
            operations_per_second=ceilings.peak(format) * 1e9 or None,
        )

    def _why_not(self, ending: bool) -> str | None:
        if ending:
            return "The server is stopping: what runs may finish, and nothing new begins."
        try:
            self._engine.check_ready()
        except EngineUnavailable as error:
            return error.message
        return None

    def _processes(self) -> dict[str, ProcessFigures]:
        return {"api": self._probe.own(), "engine": self._probe.look(self._engine.process_id)}


class Monitors:
    """The figures of a server by model: each has a monitor, and the first one tells what is the server's."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = monitors

    def exposition(self, *, ending: bool = False) -> bytes:
        """Everything, in Prometheus' text format. Where there are several models, what is a model's says so."""
        first = self._monitors[0]
        if len(self._monitors) == 1:
            return first.exposition(ending=ending)
        # Of a model that is not there yet there are no figures.
        there = [each for each in self._monitors if each.name is not None]
        own = [(each.name, {**each.parts(ending=ending)[0], **each.engine_values()}) for each in there]
        return exposition_of([(None, {**first.parts(ending=ending)[1], **first.api_values()}), *own])

    def stats(self, number: int, *, ending: bool = False) -> Stats:
        """Everything of a model, as of now."""
        names = [each.name for each in self._monitors if each.name is not None]
        return self._monitors[number].stats(ending=ending, models=names)
