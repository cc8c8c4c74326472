"""What a server tells of itself: all it counts, as Prometheus' text and as the answer of `/v1/stats`."""

import time
from collections.abc import Callable
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

    def exposition(self, *, ending: bool = False) -> bytes:
        """Everything, in Prometheus' text format. `ending`: the server takes on nothing more."""
        values: dict[str, Value] = {
            **values_of(self._metrics),
            **settings_values(self._known(), self._metrics.now() - self._metrics.began),
            **process_values(self._processes()),
            "penstock_ready": int(self._why_not(ending) is None),
        }
        if self._storage is not None:
            values |= storage_values(self._storage)
        if self._traces is not None:
            values |= traces_values(self._traces)
        return exposition(values)

    def stats(self, *, ending: bool = False) -> Stats:
        """Everything, as of now. `ending`: the server takes on nothing more."""
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
