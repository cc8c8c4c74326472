"""How many replicas a model is to have now, from what has come lately: pure, the same in simulations and in service.

More come at once, and fewer one after the other. What is to come is taken to be like the busiest of some windows of the
past: a short one, which notices a rise, and a long one, which chance moves less. Replicas that start are counted as if
they were there, so that none is asked for twice.
"""

from collections import deque
from math import ceil, inf

import msgspec

from penstock.routing.scaling import Stream, Targets, needed, work_of
from penstock.routing.speed import Speed

# Seconds that windows reach back.
WINDOWS = (20.0, 60.0, 240.0)
# Over which it is learnt how bursty requests are.
BURST_SECONDS = 3600.0
# Requests without which a window says too little.
_LEAST_REQUESTS = 5


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of replicas may do.

    Attributes:
        targets: within which requests are to be answered.
        least, most: bounds of the number.
        down_part: one replica less has to be enough for this part of the targets,
        down_seconds: and has to have been for so long.
        pause_seconds: between two steps down, and after a step up.
        start_seconds: until a new replica answers.
        floors: numbers that hours of the day, in UTC, are not to have less than, by hour.
    """

    targets: Targets
    least: int = 1
    most: int = 1_000_000
    down_part: float = 0.8
    down_seconds: float = 300.0
    pause_seconds: float = 60.0
    start_seconds: float = 10.0
    floors: dict[int, int] = {}


class Counted(msgspec.Struct, frozen=True):
    """Counts since the start of what came for a model.

    Attributes:
        requests: that came.
        prompt: tokens of prompts that no cache had.
        outputs, output: answers that ended, and their tokens.
        context: tokens of all prompts, in caches or not.
    """

    requests: int = 0
    prompt: float = 0.0
    outputs: int = 0
    output: float = 0.0
    context: float = 0.0


class Moment(msgspec.Struct, frozen=True):
    """What is seen at a time.

    Attributes:
        at: seconds, on any clock.
        hour: of the day, in UTC.
        ready, starting: replicas that can be asked, and that will be.
        speed: of a replica.
        counted: what came.
        waiting: tokens of prompts that are not computed yet, at replicas and before them.
        held: requests that wait although no replica is there.
        running: requests that are under way.
    """

    at: float
    hour: int
    ready: int
    starting: int
    speed: Speed
    counted: Counted
    waiting: float = 0.0
    held: int = 0
    running: int = 0


class Decision(msgspec.Struct, frozen=True):
    """How many replicas there are to be, and why.

    Attributes:
        needed: by what came and what waits, whatever else bounds the number.
    """

    replicas: int
    why: str
    needed: int = 0


class Autoscaler:
    """Decides for one model; remembers what it saw."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._seen: deque[Moment] = deque()
        # What would have been enough with a margin, with when that was.
        self._enough: deque[tuple[float, int]] = deque()
        self._changed = -inf
        # Work that came between two moments, and how long that was.
        self._came: deque[tuple[float, float, float]] = deque()
        self._bursty = 0.0

    def decide(self, moment: Moment) -> Decision:
        """How many replicas there are to be from now on. Moments come in ascending order of time."""
        self._remember(moment)
        self._bursty = self.burst
        rules, have = self.rules, moment.ready + moment.starting
        needed, why = self._now(moment, rules.targets)
        # What runs is not cut off.
        floor = max(rules.least, rules.floors.get(moment.hour, 0), min(1, moment.running))
        if floor > needed:
            why = f"{floor} are the fewest there may be now"
        now = min(max(needed, floor), rules.most)
        margin = min(max(self._now(moment, rules.targets.part(rules.down_part))[0], floor, now), rules.most)
        self._enough.append((moment.at, margin))
        # The last one before is what holds at the beginning of these seconds.
        while len(self._enough) > 1 and self._enough[1][0] <= moment.at - rules.down_seconds:
            self._enough.popleft()
        if now > have:
            self._changed = moment.at
            return Decision(now, why, needed)
        return self._down(moment, have, needed)

    def _down(self, moment: Moment, have: int, needed: int) -> Decision:
        rules = self.rules
        busiest = max(count for _, count in self._enough)
        whole = moment.at - self._enough[0][0] >= rules.down_seconds
        if busiest >= have or not whole or moment.at - self._changed < rules.pause_seconds or moment.starting:
            return Decision(min(have, rules.most), "as many as are needed", needed)
        self._changed = moment.at
        why = f"{busiest} were enough for {rules.down_part:.0%} of the targets for {rules.down_seconds:g} s"
        return Decision(have - 1, why, needed)

    def _remember(self, moment: Moment) -> None:
        if self._seen:
            self._note_work(self._seen[-1], moment)
        self._seen.append(moment)
        while len(self._seen) > 2 and self._seen[1].at <= moment.at - WINDOWS[-1]:
            self._seen.popleft()

    def _note_work(self, before: Moment, moment: Moment) -> None:
        old, new = before.counted, moment.counted
        count = new.requests - old.requests
        output = new.output / new.outputs if new.outputs else 0.0
        context = (new.context - old.context) / count if count else 0.0
        work = work_of(moment.speed, new.prompt - old.prompt, output * count, context)
        self._came.append((moment.at, work, moment.at - before.at))
        while self._came[0][0] < moment.at - BURST_SECONDS:
            self._came.popleft()

    @property
    def burst(self) -> float:
        """The variance of the work that came in an interval by its mean, in seconds, over the last hour."""
        seconds = sum(each for _, _, each in self._came)
        work = sum(each for _, each, _ in self._came)
        if not work:
            return 0.0
        rate = work / seconds
        return sum((each - rate * passed) ** 2 for _, each, passed in self._came) / work

    @staticmethod
    def _work(stream: Stream, speed: Speed) -> float:
        return work_of(speed, stream.prompt, stream.output, stream.context)

    @property
    def _windows(self) -> tuple[float, ...]:
        """None reaches back further than a step down waits for."""
        most = self.rules.down_seconds
        return tuple(each for each in WINDOWS if each <= most) or (most,)

    def _now(self, moment: Moment, targets: Targets) -> tuple[int, str]:
        """Replicas that what comes needs, and what already waits; and why."""
        found, why = 0, "nothing comes"
        for seconds in self._windows:
            stream = self._stream(moment, seconds)
            if stream is None:
                continue
            count = needed(stream, moment.speed, targets)
            if count > found:
                found = count
                why = f"{stream.rate:.3g} requests a second in the last {seconds:g} s need {count} replicas"
        behind = self._behind(moment, targets)
        if behind > found:
            found, why = behind, f"{moment.waiting:.0f} tokens of prompts wait"
        if moment.held and not found:
            found, why = 1, f"{moment.held} requests wait for the first replica"
        return found, why

    def _behind(self, moment: Moment, targets: Targets) -> int:
        """Replicas that compute what waits by the time that new ones take to come, beside what comes."""
        stream = self._stream(moment, self._windows[0])
        own = 0.0 if stream is None else stream.rate * self._work(stream, moment.speed)
        waiting = moment.waiting / moment.speed.prefill
        # What is answered within the target anyway waits for nothing.
        late = waiting - (moment.ready + moment.starting) * min(targets.ttft, self.rules.start_seconds)
        if late <= 0:
            return 0
        return ceil(own + waiting / max(self.rules.start_seconds, min(targets.ttft, 3600.0)))

    def _stream(self, moment: Moment, seconds: float) -> Stream | None:
        """What came in a window; None where that is too little to say anything."""
        first = next((each for each in self._seen if each.at >= moment.at - seconds), moment)
        passed = moment.at - first.at
        count = moment.counted.requests - first.counted.requests
        if passed <= 0 or (count < _LEAST_REQUESTS and seconds < self._windows[-1]) or not count:
            return None
        # Lengths vary more than rates: they are those of the longest window.
        old, new = self._seen[0].counted, moment.counted
        requests, outputs = new.requests - old.requests, new.outputs - old.outputs
        return Stream(
            rate=count / passed,
            prompt=(new.prompt - old.prompt) / requests,
            output=(new.output - old.output) / outputs if outputs else 0.0,
            context=(new.context - old.context) / requests,
            burst=self._bursty,
        )
