"""What a supervisor knows of its fleet: which replicas there are, what is wanted, and what failed. Pure."""

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.fleet.description import FleetDescription, ModelDescription
from penstock.fleet.reconcile import MOST_FAILED_STARTS, Member, Phase, Wanted

# Failures that are further apart have nothing to do with each other.
_APART_SECONDS = 120.0
# A replica that cannot be asked for so long is replaced.
_UNREADY_SECONDS = 60.0
_MOST_TOLD = 20


class Replica(msgspec.Struct):
    """A replica that was started.

    Attributes:
        slot: its place among what replicas of its model may use.
        since: when it was started, and `changed` when its phase began, in seconds.
        why: it cannot be asked, or is ending.
    """

    name: str
    model: ModelDescription
    slot: int
    since: float
    changed: float
    phase: Phase = Phase.STARTING
    requests: int = 0
    why: str = ""

    def enter(self, phase: Phase, why: str, now: float) -> bool:
        """It is in a phase; whether that is news."""
        news = phase != self.phase
        if news:
            self.phase, self.changed = phase, now
        self.why = why
        return news


class Model(msgspec.Struct):
    """A model that replicas are wanted of.

    Attributes:
        wanted: what they are to be.
        count: how many.
        before: what they were before an update that has not shown to work yet.
        failures: of replicas, lately; `failed` when the last one did.
        never_ready: starts in a row that did not come to be ready.
        restarts: replicas that ended without having been asked to, ever.
        why: its number was changed last.
        refused: what the budget has no room for.
    """

    wanted: ModelDescription
    count: int
    before: ModelDescription | None = None
    proven: bool = False
    failures: int = 0
    failed: float = float("-inf")
    never_ready: int = 0
    restarts: int = 0
    why: str = ""
    refused: str = ""


class Books:
    """All of it. Times are in seconds on one clock."""

    def __init__(self, fleet: FleetDescription) -> None:
        self.fleet = fleet
        self.models = {each.name: Model(each, _within(each, each.bounds.least)) for each in fleet.model}
        self.replicas: dict[str, Replica] = {}
        # What happened, for people; the newest last.
        self.told: list[str] = []

    def tell(self, what: str) -> None:
        """Keep a sentence for who asks."""
        self.told = [*self.told, what][-_MOST_TOLD:]

    def describe(self, fleet: FleetDescription) -> None:
        """An update: from now on the fleet is to be like this."""
        self.fleet, counts = fleet, self.counts_by(fleet)
        for each in fleet.model:
            known = self.models.get(each.name)
            if known is None:
                self.models[each.name] = Model(each, counts[each.name])
                continue
            if each.version != known.wanted.version:
                known.before = known.wanted if known.proven else known.before
                known.proven, known.failures, known.never_ready = False, 0, 0
            known.wanted, known.count, known.refused = each, counts[each.name], ""
        names = {each.name for each in fleet.model}
        self.models = {name: model for name, model in self.models.items() if name in names}

    def scale(self, name: str, count: int) -> None:
        """Want another number of replicas of a model. Raises ConfigurationError where it may not have them."""
        bounds = self.fleet.of(name).bounds
        if not bounds.least <= count <= bounds.most:
            allowed = f"from {bounds.least} to {bounds.most}" if bounds.least < bounds.most else f"{bounds.least}"
            raise ConfigurationError(
                f"{name} has {allowed} replicas by its description, not {count}; change `replicas` there, to bounds "
                "such as { least = 1, most = 4 }, and update the fleet."
            )
        self.models[name].count, self.models[name].why, self.models[name].refused = count, "as asked", ""

    def follow(self, name: str, count: int, why: str) -> bool:
        """The load wants a number of replicas; whether that is another one."""
        model = self.models[name]
        news = model.count != count
        model.count = count
        if news:
            model.why = why
        return news

    def refuse(self, name: str, why: str) -> bool:
        """A model does not get all replicas that its load wants, unless `why` is empty; whether it did before."""
        news = bool(why) and not self.models[name].refused
        self.models[name].refused = why
        return news

    @property
    def ready(self) -> dict[str, int]:
        """How many replicas of each model can be asked, or could be a moment ago."""
        found = dict.fromkeys(self.models, 0)
        for each in self.replicas.values():
            if each.model.name in found and each.phase in (Phase.READY, Phase.UNREADY):
                found[each.model.name] += 1
        return found

    def counts_by(self, fleet: FleetDescription) -> dict[str, int]:
        """How many replicas each model is to have once the fleet is like this."""
        found = {}
        for each in fleet.model:
            known, fixed = self.models.get(each.name), each.bounds.least == each.bounds.most
            found[each.name] = _within(each, each.bounds.least if fixed or known is None else known.count)
        return found

    @property
    def counts(self) -> dict[str, int]:
        """How many replicas each model is to have."""
        return {name: each.count for name, each in self.models.items()}

    def wanted(self) -> list[Wanted]:
        """As `reconcile` takes it."""
        return [
            Wanted(name, each.wanted.version, each.count, self.fleet.surge, each.failures, each.failed)
            for name, each in self.models.items()
        ]

    def members(self) -> list[Member]:
        """As `reconcile` takes them."""
        return [
            Member(each.name, each.model.name, each.model.version, each.phase, each.since, each.requests)
            for each in self.replicas.values()
        ]

    def free_slot(self, name: str, slots: int) -> int:
        """The one of a model's slots that the fewest of its replicas have: an update has more of these than slots."""
        taken = [each.slot for each in self.replicas.values() if each.model.name == name]
        return min(range(slots), key=taken.count)

    def started(self, name: str, model: ModelDescription, slot: int, now: float) -> Replica:
        """A replica was started, in a slot; it has to become ready in its time."""
        self.replicas[name] = Replica(name, model, slot, now, now)
        return self.replicas[name]

    def seen(self, name: str, *, ready: bool, why: str, requests: int, now: float) -> bool:
        """How the gateway sees a replica; whether that is news."""
        replica = self.replicas[name]
        replica.requests = requests
        if replica.phase == Phase.DRAINING:
            return False
        if ready:
            self._is_proven(replica)
            return replica.enter(Phase.READY, "", now)
        return replica.enter(Phase.STARTING if replica.phase == Phase.STARTING else Phase.UNREADY, why, now)

    def _is_proven(self, replica: Replica) -> None:
        model = self.models.get(replica.model.name)
        if model is not None and model.wanted.version == replica.model.version:
            model.proven, model.before, model.never_ready = True, None, 0

    def draining(self, name: str, why: str, now: float) -> None:
        """A replica was asked to end."""
        self.replicas[name].enter(Phase.DRAINING, why, now)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Replicas that do not become what they should, and are better ended, with why."""
        found = []
        for each in self.replicas.values():
            since = now - each.changed
            if each.phase == Phase.STARTING and since > each.model.start_seconds:
                found.append((each.name, f"it was not ready within {each.model.start_seconds:g} s"))
            elif each.phase == Phase.UNREADY and since > _UNREADY_SECONDS:
                found.append((each.name, f"it could not be asked for {_UNREADY_SECONDS:g} s ({each.why})"))
            elif each.phase == Phase.DRAINING and since > each.model.drain_seconds + _UNREADY_SECONDS:
                found.append((each.name, "it did not end in its time"))
        return found

    def ended(self, name: str, how: str, now: float) -> None:
        """A replica is there no longer."""
        replica = self.replicas.pop(name)
        if replica.phase == Phase.DRAINING:
            return
        self.failed(replica.model, f"{name}: {how}", now, was_ready=replica.phase != Phase.STARTING)

    def failed(self, described: ModelDescription, how: str, now: float, *, was_ready: bool = False) -> None:
        """A replica ended without having been asked to, or could not be started."""
        self.tell(how)
        model = self.models.get(described.name)
        if model is None or model.wanted.version != described.version:
            return
        model.restarts += 1
        model.failures = 1 if now - model.failed > _APART_SECONDS else model.failures + 1
        model.failed = now
        model.never_ready = 0 if was_ready else model.never_ready + 1
        if model.never_ready >= MOST_FAILED_STARTS and model.before is not None:
            self.tell(
                f"The update of {described.name} is taken back: {model.never_ready} replicas in a row did not become "
                f"ready ({how})."
            )
            model.wanted, model.before, model.proven = model.before, None, True
            model.failures = model.never_ready = 0

    @property
    def settled(self) -> bool:
        """Whether all is as it is wanted."""
        return all(self._is_settled(name) for name in self.models) and all(
            each.model.name in self.models for each in self.replicas.values()
        )

    @property
    def tried(self) -> bool:
        """Whether each model is as it is wanted, or has failed to become so."""
        return all(self._is_settled(name) or model.failures for name, model in self.models.items())

    def _is_settled(self, name: str) -> bool:
        model = self.models[name]
        own = [each for each in self.replicas.values() if each.model.name == name]
        return len(own) == model.count and all(
            each.phase == Phase.READY and each.model.version == model.wanted.version for each in own
        )


def _within(model: ModelDescription, count: int) -> int:
    """The number of replicas that is nearest to one and may be."""
    bounds = model.bounds
    return min(max(count, bounds.least), bounds.most)
