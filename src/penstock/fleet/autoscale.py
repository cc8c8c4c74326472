"""Numbers of replicas of a fleet that others start: gateways tell what comes, and a command has it be so."""

import asyncio
import contextlib
import logging
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.fleet.budget import afford
from penstock.fleet.description import FleetDescription, plain_name
from penstock.fleet.following import Following
from penstock.fleet.gateway_view import GatewayView
from penstock.fleet.totals import Totals
from penstock.gateway.demand import Demand
from penstock.routing.autoscaling import Counted

logger = logging.getLogger("penstock.fleet")

# Between two looks at the gateways.
LOOK_SECONDS = 1.0
# For a command.
_COMMAND_SECONDS = 60.0


class Change(msgspec.Struct, frozen=True):
    """A model is to have another number of replicas."""

    model: str
    replicas: int
    before: int
    why: str


# Has a change be so; whether that worked.
CarryOut = Callable[[Change], Awaitable[bool]]


def together(told: Sequence[Demand], counted: Counted) -> Demand:
    """What all gateways tell of a model: what waits in each, and what is at replicas, which each of them sees."""
    held = sum(each.held_tokens for each in told)
    return Demand(
        model=told[0].model,
        counted=counted,
        ready=max(each.ready for each in told),
        speed=next((each.speed for each in told if each.speed is not None), None),
        waiting=held + max(each.waiting - each.held_tokens for each in told),
        held=sum(each.held for each in told),
        requests=max(each.requests for each in told),
        held_tokens=held,
    )


class Outside:
    """Decides for a fleet whose replicas it does not start."""

    def __init__(
        self,
        fleet: FleetDescription,
        gateways: Sequence[GatewayView],
        carry_out: CarryOut,
        following: Following,
        keep: Callable[[float], None] = lambda now: None,
    ) -> None:
        """`keep` is called at each look, to write now and then what `following` has learnt."""
        self._fleet, self._gateways, self._carry_out = fleet, gateways, carry_out
        self._following, self._totals = following, Totals()
        self._keep = keep
        # What each model is to have by this; before anything was decided, the most that there was.
        self._asked: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._answered = True

    async def run(self, ending: asyncio.Event) -> None:
        """Look and decide until it is to end; a command that runs then is waited for."""
        while not ending.is_set():
            await self.look(time.monotonic(), time.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await ending.wait()

    async def look(self, now: float, at: float) -> None:
        """Decide once, where it is time. `at` are seconds since 1970, `now` on any clock."""
        views = await asyncio.gather(*(each.look() for each in self._gateways))
        told: dict[str, list[Demand]] = {}
        counted: dict[str, Counted] = {}
        for number, view in enumerate(views):
            for model, demand in ({} if view is None else view.demands).items():
                told.setdefault(model, []).append(demand)
                counted[model] = self._totals.add(number, model, demand.counted)
        self._say_answered(any(view is not None for view in views))
        await self._decide({name: together(each, counted[name]) for name, each in told.items()}, now, at)
        self._keep(now)

    async def _decide(self, demands: Mapping[str, Demand], now: float, at: float) -> None:
        ready = {name: demand.ready for name, demand in demands.items()}
        for name, number in ready.items():
            self._seen[name] = max(self._seen.get(name, 0), number)
        counts = {each.name: self._asked.get(each.name, self._seen.get(each.name, 0)) for each in self._fleet.model}
        decisions = self._following.decide(self._fleet, counts, ready, demands, now, at)
        afforded = afford(self._fleet, counts, decisions)
        for name, decision in afforded.decisions.items():
            if (refused := afforded.refused.get(name, "")) and not self._refused.get(name):
                logger.warning("%s", refused)
            self._refused[name] = refused
            if decision.replicas == counts[name]:
                continue
            if await self._carry_out(Change(name, decision.replicas, counts[name], decision.why)):
                self._asked[name] = decision.replicas

    def _say_answered(self, answered: bool) -> None:
        if not answered and self._answered:
            logger.warning("No gateway tells what comes: nothing is decided until one does.")
        self._answered = answered


def command_of(text: str) -> Callable[[Change], list[str]]:
    """A command line with {model}, {name} (as names of Kubernetes are) and {replicas}, without a shell.

    Raises ConfigurationError where it is none.
    """
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"--exec {text!r} is no command line: {error}.") from None
    if not parts or not any("{replicas}" in each for each in parts):
        raise ConfigurationError(
            f"--exec {text!r} does not say the number; write {{replicas}} where it goes, such as "
            "kubectl scale deployment/{name} --replicas={replicas}."
        )

    def made(change: Change) -> list[str]:
        places = {"{model}": change.model, "{name}": plain_name(change.model), "{replicas}": str(change.replicas)}
        found = parts
        for place, value in places.items():
            found = [each.replace(place, value) for each in found]
        return found

    return made


async def execute(command: Sequence[str]) -> bool:
    """Run a command to its end; whether it worked. What it says is passed on where it did not."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        logger.warning("%s cannot be run: %s. It is tried again.", command[0], error)
        return False
    try:
        async with asyncio.timeout(_COMMAND_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        logger.warning("%s did not end within %g s, and was killed. It is tried again.", command[0], _COMMAND_SECONDS)
        return False
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        logger.warning("%s ended with status %d: %s. It is tried again.", command[0], process.returncode, last)
    return process.returncode == 0
