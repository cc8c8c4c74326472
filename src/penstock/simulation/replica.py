"""One replica in simulated time: the scheduler that serves, with steps that take what the latency model says."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil, inf, sqrt
from typing import NamedTuple, Protocol

import msgspec

from penstock.core.events import SampleOutput
from penstock.core.kv_events import KVEvent
from penstock.core.plan import StepPlan, StepResult, Transfer
from penstock.core.request import Request
from penstock.routing.speed import Speed
from penstock.scheduler.scheduler import Scheduler
from penstock.simulation.loop import own_tokens
from penstock.simulation.sources import Ended
from penstock.simulation.times import StepTimes

# Digits of the seconds by which gaps are counted: microseconds. Of steps that are played together, those are counted
# together whose gaps differ by less than this part.
_DIGITS = 6
_ALIKE = 1e-3
# More than a replica serves, mostly.
_SEQUENCES = 1 << 20


class Served(msgspec.Struct, gc=False):
    """What became of a simulated request; times are in seconds on the simulated clock, at the client.

    Attributes:
        replica: which one served it.
        first, last: when its first and its last output token came.
        longest_gap: between two of them.
        handed_over: whether one computed its prompt, and another one, `replica`, went on with it.
    """

    arrived: float
    prompt_tokens: int
    replica: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first: float = inf
    last: float = inf
    longest_gap: float = 0.0
    handed_over: bool = False


class Figures(msgspec.Struct):
    """What is counted over a run, of one replica or of several.

    Attributes:
        steps, busy: how many there were, and seconds that they took together.
        most_waiting: the most requests at a time that a replica's step left out.
        most_blocks: the most blocks in use on a replica.
        preemptions: how often a sequence lost its blocks.
        disk_hit_tokens: tokens that were read from a disk instead of being computed.
        disk_written, disk_dropped: slots that were written there, and that were not since it was too slow.
        gaps: seconds between tokens, to the microsecond or to a thousandth, and how often there were.
    """

    steps: int = 0
    busy: float = 0.0
    most_waiting: int = 0
    most_blocks: int = 0
    preemptions: int = 0
    disk_hit_tokens: int = 0
    disk_written: int = 0
    disk_dropped: int = 0
    gaps: Counter[float] = msgspec.field(default_factory=Counter)


class Beside(Protocol):
    """What a replica reads blocks from beside its pool, and may write them to (`SimulatedDisk`, `SimulatedPeer`)."""

    def tell(self, now: float) -> None:
        """Have the books of the cache learn what is there no more, before a plan is made."""

    def begin(self, transfers: Iterable[Transfer], now: float) -> None:
        """Those of a plan begin as soon as the ones before them are over."""

    def waiting_ends(self, now: float) -> float:
        """When a plan ends that has nothing to compute before something is over."""

    def reported(self, result: StepResult, now: float) -> StepResult:
        """The result of a step that ends now, with what is over by then."""


class Finished(NamedTuple):
    """What a replica's steps brought.

    Attributes:
        answering: requests that got their first token.
        ended: requests that ended.
    """

    answering: Sequence[int] = ()
    ended: Sequence[Ended] = ()


class _Computing(msgspec.Struct):
    """A plan that is being computed for a number of steps.

    Attributes:
        first, longer: seconds of its first step, and by how much each further one is longer than the one before.
    """

    plan: StepPlan
    began: float
    first: float
    longer: float
    steps: int

    def seconds(self, steps: int) -> float:
        """Of its first steps."""
        return steps * self.first + self.longer * (steps * (steps - 1) / 2)

    def steps_until(self, at: float) -> int:
        """How many of its steps begin before a time."""
        passed = at - self.began
        if self.longer > 0:
            half = self.first / self.longer - 0.5
            steps = ceil(sqrt(half * half + 2 * max(0.0, passed) / self.longer) - half)
        else:
            steps = ceil(passed / self.first) if self.first else self.steps
        steps = max(1, min(self.steps, steps))
        # The root is not exact.
        while steps > 1 and self.seconds(steps - 1) >= passed:
            steps -= 1
        while steps < self.steps and self.seconds(steps) < passed:
            steps += 1
        return steps


class Replica:
    """A scheduler whose steps are played. Requests come in ascending order of time.

    Steps that would decide nothing are played together, until a request comes: the result is the same as if each was
    planned by itself, where each takes what it should. What bounds a batch by a time learns their mean, though. Where
    steps vary, those that are played together vary together, and less; a request that comes meanwhile changes nothing
    of that. With something beside the pool, each is played by itself.

    Attributes:
        ends: when what it computes ends, or when it begins; infinite where it has nothing to do.
        load: requests that have not ended.
    """

    def __init__(self, scheduler: Scheduler, times: StepTimes, number: int = 0, beside: Beside | None = None) -> None:
        self.ends = inf
        self.load = 0
        self._scheduler = scheduler
        self._times = times
        self._number = number
        self._beside = beside
        self._computing: _Computing | None = None
        self._served: dict[int, Served] = {}
        # Whose first token comes again, since another replica has told it.
        self._again: set[int] = set()
        self._figures = Figures()

    @property
    def speed(self) -> Speed:
        """How fast its steps are."""
        return self._times.speed(self._scheduler.config.max_num_batched_tokens)

    @property
    def busy(self) -> float:
        """Seconds that its steps took together, but for the one that is computed."""
        return self._figures.busy

    @property
    def block_size(self) -> int:
        """Tokens of a block of its cache."""
        return self._scheduler.cache.spec.block_size

    @property
    def figures(self) -> Figures:
        """What was counted so far."""
        load = self._scheduler.snapshot()
        disk = load.shelf("disk")
        return msgspec.structs.replace(
            self._figures,
            preemptions=load.preemptions,
            disk_written=disk.written,
            disk_dropped=disk.dropped,
        )

    def take(self, at: float, request: Request) -> Served:
        """A request comes; what becomes of it is noted as it does. Raises RequestError as the scheduler does."""
        served = Served(at, len(request.prompt_token_ids), self._number)
        self._add(at, request, served)
        return served

    def go_on(self, at: float, request: Request, served: Served) -> None:
        """A request comes whose prompt and first token another replica has computed, which comes again."""
        served.handed_over, served.replica = True, self._number
        self._again.add(request.request_id)
        self._add(at, request, served)

    def _add(self, at: float, request: Request, served: Served) -> None:
        self._scheduler.add(request)
        self._served[request.request_id] = served
        self.load += 1
        if self._computing is None:
            # It begins once all that come at this time have come.
            self.ends = min(self.ends, at)
        elif self._computing.steps > 1:
            # From the end of the step on that is computed when it comes, it is part of what is decided.
            self._computing.steps = self._computing.steps_until(at)
            self.ends = self._computing.began + self._computing.seconds(self._computing.steps)

    @property
    def tells_events(self) -> bool:
        """Whether its cache notes what changes in it."""
        return self._scheduler.cache.tells_events

    def events(self) -> Sequence[KVEvent]:
        """What has changed in its prefix cache since this was asked before, where its cache notes it."""
        return self._scheduler.cache.take_events()

    def finish(self) -> Finished:
        """What is computed ends, if anything is, and the next begins."""
        computing = self._computing
        if computing is None:
            self._begin(self.ends)
            return Finished()
        plan = computing.plan
        if computing.steps > 1:
            plan = self._scheduler.extended(plan, computing.steps)
            self._note_blocks()
        result = own_tokens(plan, self.ends - computing.began, self._number * _SEQUENCES)
        if self._beside is not None:
            result = self._beside.reported(result, self.ends)
        outputs = self._scheduler.commit(plan, result)
        came = (each for fetched in self._scheduler.facts.fetched for each in fetched.came)
        self._figures.disk_hit_tokens += sum(each.tokens for each in came if each.tier == "disk")
        finished = self._note(computing, outputs)
        self._begin(self.ends)
        return finished

    def _begin(self, now: float) -> None:
        if not self._scheduler.has_work:
            self._computing, self.ends = None, inf
            return
        if self._beside is not None:
            self._beside.tell(now)
        plan = self._scheduler.plan(now)
        if plan is None:
            raise RuntimeError("requests are waiting but nothing can be computed: the scheduler is stuck")
        if not plan.rows:
            self._wait(plan, now)
            return
        first, longer = self._times.of(plan)
        steps = self._scheduler.most_steps()
        chance = self._times.chance(steps)
        self._computing = _Computing(plan, now, first * chance, longer * chance, steps)
        self._begin_beside(plan, now)
        self.ends = now + self._computing.seconds(self._computing.steps)
        self._figures.most_waiting = max(self._figures.most_waiting, self.load - len(plan.rows))
        self._note_blocks()

    def _wait(self, plan: StepPlan, now: float) -> None:
        """A plan that only begins transfers takes no time; one that waits for them ends with the next."""
        self._computing = _Computing(plan, now, 0.0, 0.0, 1)
        self._begin_beside(plan, now)
        self.ends = self._beside.waiting_ends(now) if plan.waits and self._beside is not None else now

    def _begin_beside(self, plan: StepPlan, now: float) -> None:
        if self._beside is not None:
            self._beside.begin(plan.transfers, now)

    def _note_blocks(self) -> None:
        pool = self._scheduler.cache.pool
        self._figures.most_blocks = max(self._figures.most_blocks, pool.num_used + pool.num_retiring)

    def _note(self, computing: _Computing, outputs: list[SampleOutput]) -> Finished:
        """What requests gained by a plan's steps."""
        figures, after = self._figures, self._times.after
        if not computing.plan.rows:
            return Finished()
        figures.steps += computing.steps
        figures.busy += self.ends - computing.began
        began, first = computing.began + after, computing.began + computing.first + after
        going_on = gaining = 0
        answering: list[int] = []
        ended: list[Ended] = []
        longest = computing.first + computing.longer * (computing.steps - 1)
        for output in outputs:
            served = self._served[output.request_id]
            if output.cached_tokens and not served.handed_over:
                served.cached_tokens = output.cached_tokens
            count = len(output.gained.tokens)
            if count and output.request_id in self._again:
                # Beside a shelf, each step is played by itself.
                self._again.remove(output.request_id)
                answering.append(output.request_id)
                count = 0
            if count:
                gaining += 1
                if served.output_tokens == 0:
                    served.first = first
                    answering.append(output.request_id)
                elif served.last == began:
                    going_on += 1
                    served.longest_gap = max(served.longest_gap, longest)
                else:
                    gap = round(first - served.last, _DIGITS)
                    figures.gaps[gap] += 1
                    served.longest_gap = max(served.longest_gap, gap, longest if count > 1 else 0.0)
                served.output_tokens += count
                served.last = self.ends + after
            if output.gained.ending is not None:
                self.load -= 1
                del self._served[output.request_id]
                ended.append(Ended(output.request_id, *output.gained.tokens[-1:]))
        if going_on:
            figures.gaps[round(computing.first, _DIGITS)] += going_on
        more = computing.steps - 1
        parts = min(more, 1 + int(computing.longer * more / (_ALIKE * computing.first)))
        begun = 0
        for part in range(1, parts + 1):
            end = more * part // parts
            mean = computing.first + computing.longer * (begun + 1 + end) / 2
            figures.gaps[round(mean, _DIGITS)] += gaining * (end - begun)
            begun = end
        return Finished(answering, ended)
