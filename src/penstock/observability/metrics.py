"""What a server counts: requests, tokens, latencies and steps, since its start and second by second.

Requests are measured in the API process, where users see them; what the engine did comes from the facts of its steps,
and its state from its newest snapshot.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from penstock.configuration.slo import Figure, Slo
from penstock.core.errors import DeadlineExceeded, Overloaded, PenstockError
from penstock.core.events import LoadSnapshot
from penstock.core.facts import TIERS, UNREAD, StepFacts, StepTotals, Tier, Unread, Wait
from penstock.core.kv_policy import POLICY_KINDS, PolicyKind
from penstock.core.plan import SHELVES, FinishReason, ShelfName
from penstock.engine.interface import SampleDelta
from penstock.engine.journal import Journal
from penstock.observability.histogram import SECONDS, Histogram
from penstock.observability.latency import WINDOW, Latency

Endpoint = Literal[
    "completions", "chat", "embeddings", "messages", "responses", "translate", "rerank", "score", "classify"
]
Outcome = Literal["completed", "rejected", "failed", "cancelled", "refused", "timed_out"]
Refusal = Literal["queue_full", "memory_pressure", "slo_unreachable", "bodies_full"]
Miss = Literal["ttft", "itl", "tpot", "e2e", "failed"]

ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
MISSES: tuple[Miss, ...] = get_args(Miss)
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")

# Places of a token in a draft, the last of them for all that follow.
DRAFT_PLACES = ("1", "2", "3", "4", "5", "6", "7", "8", "9+")
# Bounds of histograms over sequences or tokens, and over shares.
POWERS = tuple(float(2**power) for power in range(14))
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


def outcome_of(error: PenstockError) -> Outcome:
    """How a request has ended that ended with an error."""
    if isinstance(error, Overloaded):
        return "refused"
    if isinstance(error, DeadlineExceeded):
        return "timed_out"
    return "failed" if error.http_status >= 500 else "rejected"


class Sums(msgspec.Struct, frozen=True):
    """All that adds up, at a moment; two of them differ by what happened in between.

    Attributes:
        load: the engine's newest snapshot, whose totals add up too.
    """

    requests: dict[str, int]
    refused: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    judged: int
    good: int
    good_tokens: int
    missed: dict[str, int]
    steps: StepTotals
    load: LoadSnapshot


class Mark(msgspec.Struct, frozen=True):
    """The end of a second: when, on the monotonic clock; the sums then, and medians of what was measured in it."""

    at: float
    sums: Sums
    ttft: float | None = None
    itl: float | None = None


class Metrics:
    """Everything that one server counts.

    Attributes:
        slo: what requests are judged by, if anything.
        began: when it was made, on the monotonic clock.
        requests, finished, refused, missed: counts by endpoint and outcome, by finish reason, by why, by which limit.
        dropped: tokens of bounded contexts that were, by kind of policy.
        in_flight: requests that have not ended.
        held: what the first waiting sequence waits for, as of the newest step.
        fetch_seconds: how long reading took, by tier, for each sequence.
        tier_tokens, tier_left: tokens that were taken from each tier, and those that were left there, by why.
        tier_read, tier_stored: bytes that were read from each tier, and written to it.
        drafts: drafted tokens by their place in a draft: those that were judged, and those of them that were right.
        nothing: the sums at the beginning.
        marks: the ends of the last 60 seconds, and the beginning of the first of them.
    """

    def __init__(
        self,
        load: Callable[[], LoadSnapshot],
        totals: Callable[[], StepTotals] = StepTotals,
        *,
        slo: Slo | None = None,
        clock: Callable[[], float] = time.monotonic,
        soon: Callable[[Callable[[], None]], object] = lambda stamp: stamp(),
    ) -> None:
        """Count from now on.

        Args:
            load: gives the engine's newest snapshot, and `totals` the sums over its steps.
            clock: seconds, on one that never goes back.
            soon: calls a function once what was handed to connections is written.
        """
        self._load, self._totals, self._clock, self._soon = load, totals, clock, soon
        self._unstamped: list[_Passed] = []
        self.slo = slo
        self.ttft, self.itl, self.tpot, self.e2e, self.queue = (Latency() for _ in range(5))
        self.requests: dict[tuple[Endpoint, Outcome], int] = {
            (endpoint, outcome): 0 for endpoint in ENDPOINTS for outcome in OUTCOMES
        }
        self.finished: dict[FinishReason, int] = dict.fromkeys(FINISH_REASONS, 0)
        self.refused: dict[str, int] = dict.fromkeys(REFUSALS, 0)
        self.dropped: dict[PolicyKind, int] = dict.fromkeys(POLICY_KINDS, 0)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.in_flight = 0
        self.drafts = {place: [0, 0] for place in DRAFT_PLACES}
        self.batch_lines = {"completed": 0, "failed": 0}
        self.batch_lines_running = 0
        self.judged = self.good = self.good_tokens = 0
        self.missed: dict[Miss, int] = dict.fromkeys(MISSES, 0)
        self.step_seconds = Histogram(SECONDS)
        self.step_rows, self.step_tokens = Histogram(POWERS), Histogram(POWERS)
        self.step_budget_used = Histogram(SHARES)
        self.fetch_seconds = {tier: Histogram(SECONDS) for tier in SHELVES}
        self.tier_tokens: dict[Tier, int] = dict.fromkeys(TIERS, 0)
        self.tier_left: dict[tuple[Tier, Unread], int] = {(tier, why): 0 for tier in SHELVES for why in UNREAD}
        self.tier_read: dict[ShelfName, int] = dict.fromkeys(SHELVES, 0)
        self.tier_stored: dict[ShelfName, int] = dict.fromkeys(SHELVES, 0)
        self.held: Wait | None = None
        self.began = clock()
        self.nothing = self.sums()
        self.marks = deque([Mark(self.began, self.nothing)], maxlen=WINDOW + 1)
        self._next_second = self.began + 1.0

    @property
    def latencies(self) -> tuple[Latency, ...]:
        """All kinds, in the order of `stats.Latencies`."""
        return self.ttft, self.itl, self.tpot, self.e2e, self.queue

    def begin(self, endpoint: Endpoint, arrived: float | None = None) -> "RequestMeter":
        """Start to measure a request, which has arrived just now if nothing else is said."""
        now = self.now()
        return RequestMeter(self, endpoint, now if arrived is None else arrived)

    def now(self) -> float:
        """The time; whatever is counted after it is of the second that is not over yet."""
        now = self._clock()
        if now >= self._next_second:
            self._end_seconds(now)
        return now

    def sums(self) -> Sums:
        """All that adds up, as of now."""
        requests: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        for (_, outcome), count in self.requests.items():
            requests[outcome] += count
        return Sums(
            requests=requests,
            refused=dict(self.refused),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.generation_tokens,
            judged=self.judged,
            good=self.good,
            good_tokens=self.good_tokens,
            missed={str(miss): count for miss, count in self.missed.items()},
            steps=self._totals(),
            load=self._load(),
        )

    def step(self, step: StepFacts) -> None:
        """The engine has computed a step."""
        self.now()
        self.step_seconds.observe(step.seconds)
        self.step_rows.observe(step.rows)
        self.step_tokens.observe(step.tokens)
        for row in step.drafts:
            for place in range(row.judged):
                counts = self.drafts[DRAFT_PLACES[min(place, len(DRAFT_PLACES) - 1)]]
                counts[0] += 1
                counts[1] += place < row.accepted
        if step.budget:
            self.step_budget_used.observe(step.tokens / step.budget)
        if step.admissions or step.fetched or step.stored:
            self._tiers(step)
        self.held = step.held

    def _tiers(self, step: StepFacts) -> None:
        """What came from which tier, and what was left there."""
        for admission in step.admissions:
            prefix = admission.prefix
            if not admission.swapped:
                self.tier_tokens["pool"] += prefix.found - sum(each.tokens for each in prefix.fetched)
            for each in prefix.tiers:
                if each.why_left is not None:
                    self.tier_left[each.tier, each.why_left] += each.left
        for came in [each for fact in step.fetched for each in fact.came]:
            self.tier_tokens[came.tier] += came.tokens
            self.tier_read[came.tier] += came.bytes
            if came.bytes:
                self.fetch_seconds[came.tier].observe(came.seconds)
            if came.why_left is not None:
                self.tier_left[came.tier, came.why_left] += came.left
        for tier, count in step.stored.items():
            self.tier_stored[tier] += count

    def judge(self, figures: Mapping[Figure, float | None] | None, tokens: int = 0) -> Sequence[Miss]:
        """A request has ended with these figures, `tokens` of output, or without success; the limits that it missed."""
        if self.slo is None:
            return ()
        missed: Sequence[Miss] = ("failed",) if figures is None else self.slo.misses(figures)
        self.judged += 1
        for miss in missed:
            self.missed[miss] += 1
        if not missed:
            self.good += 1
            self.good_tokens += tokens
        return missed

    def stamp_soon(self, passed: "_Passed") -> None:
        """Something was handed to a connection; it is written a moment later, with all that others gain by a step."""
        self._unstamped.append(passed)
        if len(self._unstamped) == 1:
            self._soon(self._stamp)

    def stamp_now(self, meter: "RequestMeter") -> None:
        """A request ends, and with it what is left to be written of it."""
        now = self.now()
        for passed in self._unstamped:
            if passed[0] is meter:
                meter.written(now, *passed[1:])
        self._unstamped = [passed for passed in self._unstamped if passed[0] is not meter]

    def _stamp(self) -> None:
        now, unstamped = self.now(), self._unstamped
        self._unstamped = []
        for meter, deltas, ids in unstamped:
            meter.written(now, deltas, ids)

    def _end_seconds(self, now: float) -> None:
        """The second is over, and others that passed since without anything to count."""
        sums = self.sums()
        over = 1 + int(now - self._next_second)
        # No figure is about seconds before the window, and all that they had is in the first of them.
        idle = max(0, over - 1 - WINDOW)
        for number in range(min(over, WINDOW + 1)):
            at = self._next_second + number + (idle if number else 0)
            ttft, itl = self.ttft.tick(), self.itl.tick()
            for other in (self.tpot, self.e2e, self.queue):
                other.tick()
            self.marks.append(Mark(at, sums, ttft, itl))
        self._next_second += over


class RequestMeter:
    """One request, from its arrival to its end.

    Attributes:
        arrived: when, on the monotonic clock.
        ttft: seconds from the arrival to the first chunk with content; None before.
        longest_gap: seconds between two chunks with content of one sample, at most; None before there are two.
        missed: once it has ended, the service levels that it missed.
    """

    __slots__ = (
        "_endpoint", "_ended", "_last", "_metrics", "_queued", "_tokens", "arrived", "longest_gap", "missed", "ttft",
    )  # fmt: skip

    def __init__(self, metrics: Metrics, endpoint: Endpoint, arrived: float) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        # By sample, when its newest chunk was passed on.
        self._last: dict[int, float] = {}
        # Prompts whose time in the queue is not known yet.
        self._queued: list[Journal] = []
        self._tokens = 0
        self._ended = False
        self.arrived = arrived
        self.ttft: float | None = None
        self.longest_gap: float | None = None
        self.missed: Sequence[Miss] = ()
        metrics.in_flight += 1

    def accepted(self, prompt_tokens: int) -> None:
        """The request is valid and goes to the engine."""
        self._metrics.prompt_tokens += prompt_tokens

    def dropped(self, kind: PolicyKind, tokens: int) -> None:
        """More tokens of its context were dropped."""
        self._metrics.dropped[kind] += tokens

    def follow(self, journal: Journal) -> None:
        """The engine has been given one of its prompts."""
        self._queued.append(journal)

    def tokens(self, count: int) -> None:
        """`count` tokens came from the engine."""
        self._tokens += count
        self._metrics.generation_tokens += count
        if self._queued:
            self._note_queues()

    def passed_on(self, deltas: Sequence[SampleDelta], *, ids: bool) -> None:
        """What samples gained was passed on to the client; a chunk has content where there is text, or where `ids`.

        To be called when it is sent, or, of an answer that is sent as a whole, when it came.
        """
        self._metrics.stamp_soon((self, deltas, ids))

    def written(self, now: float, deltas: Sequence[SampleDelta], ids: bool) -> None:
        """The same has reached the connection."""
        last = self._last
        for delta in deltas:
            if not (delta.text or (ids and delta.token_ids)):
                continue
            before = last.get(delta.index)
            last[delta.index] = now
            if before is not None:
                gap = now - before
                self._metrics.itl.observe(gap)
                if self.longest_gap is None or gap > self.longest_gap:
                    self.longest_gap = gap
            elif self.ttft is None:
                self.ttft = now - self.arrived
                self._metrics.ttft.observe(self.ttft)

    def finished(self, reason: FinishReason) -> None:
        """Count a sample that ended for this reason."""
        self._metrics.finished[reason] += 1

    def end(self, outcome: Outcome) -> float:
        """The request has ended; only the first call counts. Returns the seconds since its arrival."""
        metrics = self._metrics
        duration = metrics.now() - self.arrived
        if self._ended:
            return duration
        self._ended = True
        metrics.stamp_now(self)
        self._note_queues()
        metrics.in_flight -= 1
        metrics.requests[self._endpoint, outcome] += 1
        if outcome == "completed":
            self._measure(duration)
        elif outcome not in ("cancelled", "rejected"):
            self.missed = metrics.judge(None)
        return duration

    def _note_queues(self) -> None:
        """Of the prompts that have left the queue."""
        for journal in self._queued:
            if journal.admitted is not None:
                self._metrics.queue.observe(max(0.0, journal.admitted.at - journal.submitted.at))
        self._queued = [journal for journal in self._queued if journal.admitted is None]

    def _measure(self, e2e: float) -> None:
        """Of a request that was completed."""
        metrics = self._metrics
        if self.ttft is None and self._tokens:
            # Tokens without text, such as one that ends the answer: their only sign is the end.
            self.ttft = e2e
            metrics.ttft.observe(e2e)
        metrics.e2e.observe(e2e)
        each, tpot = self._tokens / max(1, len(self._last)), None
        if each > 1 and self.ttft is not None:
            tpot = (e2e - self.ttft) / (each - 1)
            metrics.tpot.observe(tpot)
        figures: dict[Figure, float | None] = {"ttft": self.ttft, "itl": self.longest_gap, "tpot": tpot, "e2e": e2e}
        self.missed = metrics.judge(figures, self._tokens)


# What was handed to a connection, and whether chunks have content by their ids alone.
_Passed = tuple[RequestMeter, Sequence[SampleDelta], bool]
