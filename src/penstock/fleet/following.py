"""Numbers of replicas that follow the load: of each model whose description has bounds for it. Pure."""

from collections.abc import Mapping
from math import inf

import msgspec

from penstock.configuration.slo import parse_slo
from penstock.fleet.description import FleetDescription, ModelDescription
from penstock.fleet.habits import Habits
from penstock.gateway.demand import Demand
from penstock.routing.autoscaling import Autoscaler, Decision, Moment, Rules
from penstock.routing.scaling import Targets
from penstock.routing.speed import Speed

# Between two decisions, unless requests wait and no replica is there.
DECISION_SECONDS = 5.0
# Within which a first token comes, where the description says nothing.
USUAL_TTFT = 5.0
# What a start is taken to last until one was seen, and the weight of the newest.
_START_SECONDS, _NEWEST = 10.0, 0.3
_HOUR = 3600.0
# Between two decisions, where a supervisor slept longer than it was there.
_MOST_SECONDS = 60.0
# Of a model none of whose replicas has told its speed.
_UNKNOWN = Speed(prefill=1000.0, decode=0.05)


def rules_of(model: ModelDescription, start_seconds: float = _START_SECONDS) -> Rules:
    """What a model's number of replicas may do, whatever the hour is."""
    slo = parse_slo(model.slo)
    tpot = None if slo is None else slo.tpot or slo.itl
    ttft = None if slo is None else slo.ttft
    return Rules(
        targets=Targets(ttft or (USUAL_TTFT if tpot is None else inf), tpot or inf),
        least=model.bounds.least,
        most=model.bounds.most,
        down_seconds=model.down_seconds,
        pause_seconds=model.down_seconds / 5,
        start_seconds=start_seconds,
    )


class Following:
    """Decides how many replicas each model has, while a person has not said it.

    Attributes:
        habits: what hours of the last days needed.
    """

    def __init__(self, habits: Habits | None = None) -> None:
        self.habits = habits or Habits()
        self._scalers: dict[str, Autoscaler] = {}
        self._fixed: set[str] = set()
        self._decided: dict[str, float] = {}
        self._starts: dict[str, float] = {}

    def fix(self, model: str, *, fixed: bool) -> None:
        """A person says how many replicas a model has, or leaves it to the load again."""
        if fixed:
            self._fixed.add(model)
        else:
            self._fixed.discard(model)

    def follows(self, model: ModelDescription) -> bool:
        """Whether its number of replicas follows the load."""
        return model.bounds.least < model.bounds.most and model.name not in self._fixed

    def started(self, model: str, seconds: float) -> None:
        """A replica was ready that long after its start."""
        before = self._starts.get(model, seconds)
        self._starts[model] = before + _NEWEST * (seconds - before)

    def decide(
        self,
        fleet: FleetDescription,
        counts: Mapping[str, int],
        ready: Mapping[str, int],
        demands: Mapping[str, Demand],
        now: float,
        at: float,
    ) -> dict[str, Decision]:
        """The numbers of models for which it is time.

        Args:
            fleet: as it is described.
            counts: how many replicas each model is to have by now; an update has more for a time, and some may fail.
            ready: how many can be asked.
            demands: what comes.
            now: seconds, on any clock.
            at: that time, in seconds since 1970.
        """
        found: dict[str, Decision] = {}
        for model in fleet.model:
            demand = demands.get(model.name)
            if demand is None or not self.follows(model):
                continue
            count, before = counts[model.name], self._decided.get(model.name)
            if before is not None and now < before + DECISION_SECONDS and not (demand.held and not count):
                continue
            there = min(ready.get(model.name, 0), count)
            self._decided[model.name] = now
            moment = Moment(
                at=now,
                hour=int(at / _HOUR) % 24,
                ready=there,
                starting=count - there,
                speed=demand.speed or _UNKNOWN,
                counted=demand.counted,
                waiting=demand.waiting,
                held=demand.held,
                running=demand.requests,
            )
            found[model.name] = self._scaler(model, at).decide(moment)
            passed = 0.0 if before is None else min(now - before, _MOST_SECONDS)
            self.habits.note(model.name, at, found[model.name].needed, passed)
        return found

    def _floor(self, model: ModelDescription, at: float) -> int:
        """The fewest of this hour, or of the next where that has more and replicas that start now are there by then."""
        ahead = self._starts.get(model.name, _START_SECONDS)
        return max(self._fewest(model, each) for each in (at, at + ahead))

    def _fewest(self, model: ModelDescription, at: float) -> int:
        said = model.bounds.floors.get(int(at / _HOUR) % 24, 0)
        expected = self.habits.expected(model.name, at) if model.bounds.forecast else 0
        return max(said, min(expected, model.bounds.most))

    def _scaler(self, model: ModelDescription, at: float) -> Autoscaler:
        rules = rules_of(model, self._starts.get(model.name, _START_SECONDS))
        rules = msgspec.structs.replace(rules, floors={int(at / _HOUR) % 24: self._floor(model, at)})
        scaler = self._scalers.setdefault(model.name, Autoscaler(rules))
        # What it has seen stays, whatever is described anew.
        scaler.rules = rules
        return scaler
