"""How many replicas a model is to have now, from what has come lately: pure, the same in simulations and in service.

More come at once, and fewer one after the other. What is to come is taken to be like the last minutes and the last
hour, bursts and all: a number that would not have been enough for them is not enough now. Where more comes than in any
part of them, it is taken to go on rising until new replicas are there. Replicas that start are counted as if they were
there, so that none is asked for twice.

Fewer are asked for once what stood idle has cost as much as a while of all replicas, which is the rule of ski rental
(Karlin et al., Competitive snoopy caching, 1988, section 2): a large surplus ends soon, a small one waits for long, and
the number seldom turns. A high peak is no reason to keep replicas for an hour: where the last minutes need at most a
quarter of them, the hour before is forgotten.
"""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from math import ceil, inf

import msgspec

from penstock.routing.hindsight import Came, enough, rate_of, rates, rise
from penstock.routing.scaling import MISSED, Stream, Targets, needed, work_of
from penstock.routing.speed import Speed

# The part of the target for first tokens that requests may wait for others; and what the number that was enough is
# multiplied by, since what comes is never the same.
WAITED_PART, MARGIN = 0.75, 1.25
# Replicas begin to end where there are more than this times the number that is needed: they would soon start again.
SPARE = 1.2
# The part of them that may end in one step; of a few, one. And the part of the pause after a step up that lies between
# two steps down.
STEP, STEP_PAUSE = 0.1, 0.25
# Fewer are asked for once idle replicas have cost as much as all replicas do in this part of `down_seconds`.
IDLE = 0.8
# What came is remembered for REMEMBERED times `down_seconds`. Its older part is forgotten where there are FORGOTTEN
# times the replicas that the last `down_seconds` need.
REMEMBERED, FORGOTTEN = 12, 4
# Seconds between two computations of what all that is remembered needs.
_KNOWN_SECONDS = 30.0
# Seconds over which rates are seen, and lengths, which vary more.
RATE_SECONDS, LENGTH_SECONDS = 60.0, 240.0
# More comes than before where it is RISEN times the most that is remembered of as long a time. Until new replicas are
# there, it is expected to become at most RISE_MOST times as much.
RISE_SECONDS, RISEN, RISE_MOST = 20.0, 1.2, 2.5
# Requests without which a time says too little.
_LEAST_REQUESTS = 5


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of replicas may do.

    Attributes:
        targets: within which requests are to be answered.
        least, most: bounds of the number.
        down_part: one replica less has to be enough for this part of the targets,
        down_seconds: and has to have been for at least that long.
        pause_seconds: after a step up, before one down.
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
        needed: by what came in the last minutes and what waits, whatever else bounds the number.
    """

    replicas: int
    why: str
    needed: int = 0


class Autoscaler:
    """Decides for one model; remembers what it saw."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._seen: deque[Moment] = deque()
        self._came: deque[Came] = deque()
        # What came in the last `down_seconds`.
        self._recent: list[Came] = []
        # What would have been enough with a margin, with when that was.
        self._enough: deque[tuple[float, int]] = deque()
        self._up = self._down = -inf
        # What idle replicas have cost, in seconds of all replicas.
        self._idle = 0.0
        # How many all that is remembered needs, with when that was found out.
        self._remembered = 0, -inf

    def decide(self, moment: Moment) -> Decision:
        """How many replicas there are to be from now on. Moments come in ascending order of time."""
        rules, have = self.rules, moment.ready + moment.starting
        # Of a time in which nothing was asked, it is not known what stood idle.
        passed = min(moment.at - self._seen[-1].at, rules.down_seconds / 2) if self._seen else 0.0
        self._remember(moment)
        # What runs is not cut off.
        floor = max(rules.least, rules.floors.get(moment.hour, 0), min(1, moment.running))
        if have > floor:
            self._forget(moment, have)
        needed, why = self._now(moment, rules.targets)
        hour = self._for_hour()
        wanted = max(needed, hour)
        if wanted > needed:
            why = f"the busiest of the last {REMEMBERED * rules.down_seconds:g} s needed {wanted} replicas"
        if floor > wanted:
            why = f"{floor} are the fewest there may be now"
        now = min(max(wanted, floor), rules.most)
        spare = int(max(self._now(moment, rules.targets.part(rules.down_part))[0], hour) * SPARE)
        enough = min(max(spare, floor, now), rules.most)
        self._enough.append((moment.at, enough))
        # The last one before is what holds at the beginning of these seconds.
        while len(self._enough) > 1 and self._enough[1][0] <= moment.at - rules.down_seconds:
            self._enough.popleft()
        self._idle = self._idle + passed * (have - enough) / have if have > enough else 0.0
        if now > have:
            self._up = moment.at
            return Decision(now, why, needed)
        return self._fewer(moment, have, needed)

    def _fewer(self, moment: Moment, have: int, needed: int) -> Decision:
        rules = self.rules
        busiest = max(count for _, count in self._enough)
        whole = moment.at - self._enough[0][0] >= rules.down_seconds
        paused = min(moment.at - self._up, (moment.at - self._down) / STEP_PAUSE) < rules.pause_seconds
        worth = self._idle >= IDLE * rules.down_seconds
        if busiest >= have or not (whole and worth) or paused or moment.starting:
            return Decision(min(have, rules.most), "as many as are needed", needed)
        self._down = moment.at
        why = f"{busiest} were enough for {rules.down_part:.0%} of the targets for {rules.down_seconds:g} s"
        return Decision(max(busiest, have - max(1, int(have * STEP))), why, needed)

    def _remember(self, moment: Moment) -> None:
        if self._seen and moment.at <= self._seen[-1].at:
            return
        if self._seen:
            self._came.append(_came(self._seen[-1], moment))
        self._seen.append(moment)
        while len(self._seen) > 2 and self._seen[1].at <= moment.at - LENGTH_SECONDS:
            self._seen.popleft()
        while self._came and self._came[0].at <= moment.at - REMEMBERED * self.rules.down_seconds:
            self._came.popleft()
        first = moment.at - self.rules.down_seconds
        self._recent = list(takewhile(lambda each: each.at > first, reversed(self._came)))[::-1]

    def _forget(self, moment: Moment, have: int) -> None:
        """Where the last minutes need a small part of the replicas, what came before them does not come again."""
        if len(self._recent) == len(self._came):
            return
        targets = self.rules.targets
        if FORGOTTEN * max(self._steady(moment, targets)[0], self._past(targets)[0]) <= have:
            self._came = deque(self._recent)
            self._remembered = 0, -inf

    def _now(self, moment: Moment, targets: Targets) -> tuple[int, str]:
        """Replicas that what comes needs, and what already waits; and why."""
        found, why = 0, "nothing comes"
        for count, reason in (
            self._steady(moment, targets),
            self._past(targets),
            self._rise(),
            self._behind(moment, targets),
        ):
            if count > found:
                found, why = count, reason
        if moment.held and not found:
            found, why = 1, f"{moment.held} requests wait for the first replica"
        return found, why

    def _steady(self, moment: Moment, targets: Targets) -> tuple[int, str]:
        """For requests that come as often as lately, each by itself."""
        found, why = 0, ""
        for seconds in self._windows:
            stream = self._stream(moment, seconds)
            if stream is not None and (count := needed(stream, moment.speed, targets)) > found:
                found = count
                why = f"{stream.rate:.3g} requests a second in the last {seconds:g} s need {count} replicas"
        return found, why

    def _past(self, targets: Targets) -> tuple[int, str]:
        """For requests that come as they did before, with all that came together."""
        count = self._for_all(self._recent, targets)
        return count, f"the busiest of the last {self.rules.down_seconds:g} s needed {count} replicas"

    def _for_hour(self) -> int:
        """The same for all that is remembered."""
        known, at = self._remembered
        if self._came and self._came[-1].at >= at + _KNOWN_SECONDS:
            known = self._for_all(self._came, self.rules.targets)
            self._remembered = known, self._came[-1].at
        return known

    def _for_all(self, came: Sequence[Came], targets: Targets) -> int:
        """Replicas with which hardly any of these requests would have waited too long, and some more."""
        requests = sum(each.requests for each in came)
        if requests < _LEAST_REQUESTS:
            return 0
        alone = sum(each.prompts for each in came) / requests
        # Prompts too long for the target are so with any number of replicas.
        left = targets.ttft - alone if targets.ttft > alone else targets.ttft / 2
        return int(enough(came, left * WAITED_PART, MISSED) * MARGIN + 0.5)

    def _rise(self) -> tuple[int, str]:
        """For what comes by the time that new replicas are there, where it becomes more."""
        newest = self._seen[-1].at - RISE_SECONDS
        requests = sum(each.requests for each in self._recent if each.at > newest)
        # Chance alone makes more of a time than of the one before.
        known = bool(self._came) and newest - self._came[0].at >= self._windows[-1] / 2
        rising = rise(self._came, RISE_SECONDS, RISEN) if known and requests >= _LEAST_REQUESTS else 0.0
        if not rising:
            return 0, ""
        expected = min(RISE_MOST * self._rate, self._rate + rising * (RISE_SECONDS / 2 + self.rules.start_seconds))
        return ceil(expected), f"more comes than before, by {rising * 60:.3g} replicas a minute"

    def _behind(self, moment: Moment, targets: Targets) -> tuple[int, str]:
        """To compute what waits by the time that new replicas take to come, beside what comes."""
        waiting = moment.waiting / moment.speed.prefill
        # What is answered within the target anyway waits for nothing.
        late = waiting - (moment.ready + moment.starting) * min(targets.ttft, self.rules.start_seconds)
        if late <= 0:
            return 0, ""
        count = ceil(self._rate + waiting / max(self.rules.start_seconds, min(targets.ttft, 3600.0)))
        return count, f"{moment.waiting:.0f} tokens of prompts wait"

    @property
    def _rate(self) -> float:
        """Replicas that are busy with what comes."""
        return (rates(self._recent, RISE_SECONDS) or [rate_of(self._recent)])[0]

    @property
    def _windows(self) -> tuple[float, ...]:
        """None reaches back further than a step down waits for."""
        most = self.rules.down_seconds
        return tuple(each for each in (RATE_SECONDS, LENGTH_SECONDS) if each <= most) or (most,)

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
        )


def _came(before: Moment, moment: Moment) -> Came:
    """What came between two moments, whose outputs are taken to be as long as all before."""
    old, new, speed = before.counted, moment.counted, moment.speed
    count = new.requests - old.requests
    output = new.output / new.outputs if new.outputs else 0.0
    context = (new.context - old.context) / count if count else 0.0
    prompts = (new.prompt - old.prompt) / speed.prefill
    return Came(moment.at, moment.at - before.at, count, prompts, work_of(speed, 0.0, output * count, context))
