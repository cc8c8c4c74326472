"""Numbers of replicas that follow the load: of each model whose description has bounds for it. Pure."""

from collections.abc import Mapping, Sequence
from math import inf

from penstock.configuration.slo import parse_slo
from penstock.fleet.description import Between, FleetDescription, ModelDescription
from penstock.fleet.reconcile import Member, Phase
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
# Of a model none of whose replicas has told its speed.
_UNKNOWN = Speed(prefill=1000.0, decode=0.05)


def rules_of(model: ModelDescription, start_seconds: float = _START_SECONDS) -> Rules:
    """What a model's number of replicas may do."""
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
        floors=model.bounds.floors,
    )


class Following:
    """Decides how many replicas each model has, while a person has not said it."""

    def __init__(self) -> None:
        self._scalers: dict[str, Autoscaler] = {}
        self._bounds: dict[str, Between] = {}
        self._fixed: set[str] = set()
        self._due: dict[str, float] = {}
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
        members: Sequence[Member],
        demands: Mapping[str, Demand],
        now: float,
        today: float,
    ) -> dict[str, Decision]:
        """The numbers of models for which it is time. `today` are the seconds since the day began, in UTC."""
        found: dict[str, Decision] = {}
        for model in fleet.model:
            demand = demands.get(model.name)
            if demand is None or not self.follows(model):
                continue
            staying = [each for each in members if each.model == model.name and each.phase != Phase.DRAINING]
            starting = sum(each.phase == Phase.STARTING for each in staying)
            if now < self._due.get(model.name, 0.0) and not (demand.held and not staying):
                continue
            self._due[model.name] = now + DECISION_SECONDS
            moment = Moment(
                at=now,
                hour=self._hour(model, today),
                ready=len(staying) - starting,
                starting=starting,
                speed=demand.speed or _UNKNOWN,
                counted=demand.counted,
                waiting=demand.waiting,
                held=demand.held,
                running=demand.requests,
            )
            found[model.name] = self._scaler(model).decide(moment)
        return found

    def _hour(self, model: ModelDescription, today: float) -> int:
        """This one, or the next where that has a higher floor and replicas that start now are there by then."""
        ahead = self._starts.get(model.name, _START_SECONDS)
        hours, floors = (int(each / _HOUR) % 24 for each in (today, today + ahead)), model.bounds.floors
        return max(hours, key=lambda hour: floors.get(hour, 0))

    def _scaler(self, model: ModelDescription) -> Autoscaler:
        rules = rules_of(model, self._starts.get(model.name, _START_SECONDS))
        scaler = self._scalers.setdefault(model.name, Autoscaler(rules))
        # What it has seen stays, whatever is described anew.
        scaler.rules = rules
        return scaler
