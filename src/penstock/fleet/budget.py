"""What all replicas of a fleet may cost together: more begin only while the budget has room for them. Pure."""

from collections.abc import Mapping

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.fleet.description import EXACT, FleetDescription
from penstock.routing.autoscaling import Decision


class Afforded(msgspec.Struct, frozen=True):
    """Decisions that the budget has room for.

    Attributes:
        decisions: by model.
        refused: by model, what there is no room for, for people.
    """

    decisions: dict[str, Decision]
    refused: dict[str, str]


def afford(fleet: FleetDescription, counts: Mapping[str, int], decisions: Mapping[str, Decision]) -> Afforded:
    """Bound decisions by the fleet's budget. `counts` are the replicas that each model is to have now.

    Models take from the budget in the order in which they are described; what ends in the same moment makes room.
    """
    if fleet.budget_per_hour is None:
        return Afforded(dict(decisions), {})
    fewer = {name: min(each.replicas, counts[name]) for name, each in decisions.items()}
    then = {**counts, **fewer}
    found, refused = dict(decisions), dict[str, str]()
    for model in fleet.model:
        wanted, have = decisions.get(model.name), then[model.name]
        if wanted is None or wanted.replicas <= have:
            continue
        cost = model.cost_per_hour or 0.0
        room = fleet.budget_per_hour - _cost(fleet, then)
        more = int(room / cost + EXACT) if cost else wanted.replicas
        then[model.name] = min(wanted.replicas, have + max(0, more))
        if then[model.name] < wanted.replicas:
            refused[model.name] = (
                f"{model.name} has {then[model.name]} replicas instead of {wanted.replicas}: the budget of "
                f"{fleet.budget_per_hour:g} dollars an hour has no room for more."
            )
            found[model.name] = Decision(then[model.name], f"{wanted.why}, and the budget has no room for more")
    return Afforded(found, refused)


def check_affordable(fleet: FleetDescription, before: Mapping[str, int], then: Mapping[str, int]) -> None:
    """Raises ConfigurationError where numbers of replicas cost more than the budget, and than those before."""
    budget, cost = fleet.budget_per_hour, _cost(fleet, then)
    if budget is not None and cost > max(budget, _cost(fleet, before)) + EXACT:
        raise ConfigurationError(
            f"That would cost {cost:g} dollars an hour, and budget_per_hour of the fleet is {budget:g}; have fewer "
            "replicas, or update the fleet with a larger budget."
        )


def _cost(fleet: FleetDescription, counts: Mapping[str, int]) -> float:
    """Dollars an hour."""
    return sum((each.cost_per_hour or 0.0) * counts.get(each.name, 0) for each in fleet.model)
