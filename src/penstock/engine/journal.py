"""What an engine did with one request, as its client sees it from the facts of steps."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.core.facts import (
    Admission,
    Chunk,
    Drafted,
    Fetched,
    PrefixFound,
    StepFacts,
    StepTotals,
    Tier,
    TierCame,
    Unread,
)

# Chunks of one request that are kept one by one; those between the first and the last of more are counted.
MOST_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: when, on the monotonic clock, and what the engine had done until then."""

    at: float
    totals: StepTotals


@dataclass(frozen=True, slots=True)
class ComputedChunk:
    """A part of a prompt that was computed, and the step that did it.

    Attributes:
        began, seconds: of the step.
        start, tokens: of the prompt.
        beside_tokens, beside_rows: tokens of others' prompts in the same step, and rows that decode.
    """

    began: float
    seconds: float
    start: int
    tokens: int
    beside_tokens: int
    beside_rows: int


@dataclass(slots=True)
class Fetch:
    """What the first sample waited for once it was admitted: for what a tier beyond the pool had.

    Attributes:
        began, ended: from its admission until it waited no longer; None while it does.
        expected: tokens that it waited for.
        tokens, bytes: what came; `left` tokens did not, and `why_left`.
    """

    tier: Tier
    began: float
    expected: int
    ended: Mark | None = None
    tokens: int = 0
    bytes: int = 0
    left: int = 0
    why_left: Unread | None = None


@dataclass(slots=True)
class Journal:
    """The landmarks of one request, filled in while it is served; times are on the monotonic clock.

    A sequence is one of the request's samples; until they fork, which is with their first token, there is one.

    Attributes:
        prompt_tokens: of its prompt.
        submitted: it was handed to the engine.
        grammar_seconds: how long its grammar was compiled before it could be queued.
        find_seconds: how long the replica was asked that has computed its prompt, if it has no grammar.
        admitted: it came into the batch for the first time.
        prefix: what was found in the cache then, without what was to be read from a tier and did not come.
        fetches: what it waited for, tier by tier.
        returned: when it came back after each preemption, or the engine ended that had preempted it.
        preempted: when it lost its blocks.
        chunks: of its prompt, in order; with what was computed again after preemptions.
        chunks_left_out: how many more there were than are kept.
        computed_tokens: of all of them.
        first_token, finished: they reached the client; of beams, the first that was chosen.
        output_tokens: of all samples.
        searched_tokens: of all its beams, until one was known to be the best.
        drafted_tokens, accepted_tokens: that were drafted for it, and those of them that were right.
        interrupted: when engines ended that had computed it; what they did is part of the above.
    """

    prompt_tokens: int
    submitted: Mark
    grammar_seconds: float = 0.0
    find_seconds: float = 0.0
    admitted: Mark | None = None
    prefix: PrefixFound | None = None
    fetches: list[Fetch] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    returned: list[float] = field(default_factory=list)
    chunks: list[ComputedChunk] = field(default_factory=list)
    chunks_left_out: int = 0
    computed_tokens: int = 0
    first_token: Mark | None = None
    finished: Mark | None = None
    output_tokens: int = 0
    searched_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    interrupted: list[float] = field(default_factory=list)
    # What did not come, so that it is admitted once more, with what there is.
    _lost: list[Fetch] = field(default_factory=list)

    @property
    def begun(self) -> Mark | None:
        """When it was in the batch with all that it was to have from tiers; None before."""
        if self.admitted is None:
            return None
        ended = [fetch.ended for fetch in self.first_fetches]
        marks = [mark for mark in ended if mark is not None]
        return None if len(marks) < len(ended) else max(marks, key=lambda mark: mark.at, default=self.admitted)

    @property
    def first_fetches(self) -> list[Fetch]:
        """What it waited for when it was admitted for the first time."""
        return [fetch for fetch in self.fetches if self.admitted is not None and fetch.began == self.admitted.at]

    def admission(self, fact: Admission, step: StepFacts, before: StepTotals) -> None:
        """A sequence came into the batch in a step; `before` is what had been done before it."""
        lost = list[Fetch]()
        if fact.sample_index == 0:
            self._give_up_fetches(Mark(step.began, before))
            lost, self._lost = self._lost, []
            self.fetches += [Fetch(each.tier, step.began, each.tokens) for each in fact.prefix.fetched]
        if lost:
            if not fact.again and self.prefix is not None:
                self.prefix = _without_lost(self.prefix, fact.prefix, lost)
        elif fact.again:
            self.returned.append(step.began)
        elif self.admitted is None:
            self.admitted = Mark(step.began, before)
            self.prefix = fact.prefix

    def fetched(self, fact: Fetched, step: StepFacts, after: StepTotals) -> None:
        """What it waited for has come, or not, with a step; `after` is what had been done when that was over."""
        # What is late is told when the next step is planned.
        late = any(each.why_left == "late" for each in fact.came)
        now = Mark(step.began + (0.0 if late else step.seconds), after)
        came: dict[Tier, TierCame] = {each.tier: each for each in fact.came if fact.sample_index == 0}
        for fetch in self._open_fetches():
            if (ended := came.get(fetch.tier)) is not None:
                fetch.ended, fetch.tokens, fetch.bytes = now, ended.tokens, ended.bytes
                fetch.left, fetch.why_left = ended.left, ended.why_left
                if ended.left:
                    self._lost.append(fetch)

    def _open_fetches(self) -> list[Fetch]:
        return [fetch for fetch in self.fetches if fetch.ended is None]

    def _give_up_fetches(self, now: Mark) -> None:
        for fetch in self._open_fetches():
            fetch.ended, fetch.left, fetch.why_left = now, fetch.expected, "late"
            self._lost.append(fetch)

    def chunk(self, fact: Chunk, step: StepFacts) -> None:
        """A step computed a part of its prompt, or again of what was lost."""
        self.computed_tokens += fact.count
        if len(self.chunks) == MOST_CHUNKS:
            del self.chunks[MOST_CHUNKS // 2]
            self.chunks_left_out += 1
        beside = step.chunk_tokens - fact.count
        self.chunks.append(ComputedChunk(step.began, step.seconds, fact.start, fact.count, beside, step.decodes))

    def preemption(self, step: StepFacts) -> None:
        """It lost its blocks while a step was planned."""
        self.preempted.append(step.began)

    def drafts(self, fact: Drafted) -> None:
        """A step verified drafts of one of its samples."""
        self.drafted_tokens += fact.drafted
        self.accepted_tokens += fact.accepted

    def tokens(self, count: int, now: Mark) -> None:
        """`count` tokens of its output have come."""
        if self.first_token is None and count:
            self.first_token = now
        self.output_tokens += count

    def searched(self, count: int, now: Mark) -> None:
        """`count` beams have got a token; with the first, the prompt is computed."""
        if self.first_token is None:
            self.first_token = now
        self.searched_tokens += count

    def end(self, now: Mark) -> None:
        """Mark the end of the request; later calls change nothing."""
        if self.finished is None:
            self.finished = now

    def interruption(self, now: Mark) -> None:
        """The engine that had it has ended, and with it whatever it was preempted for: the next one begins it anew."""
        self.interrupted.append(now.at)
        self.returned += [now.at] * (len(self.preempted) - len(self.returned))
        self._give_up_fetches(now)
        self._lost = []


def _without_lost(before: PrefixFound, now: PrefixFound, lost: Iterable[Fetch]) -> PrefixFound:
    """What is found `now`, by the tiers that had it `before`, without what did not come from these."""
    ends = {fetch.tier: fetch for fetch in lost}
    tiers = list(before.tiers)
    for place, each in enumerate(tiers):
        if (fetch := ends.get(each.tier)) is not None:
            ended = {"tokens": fetch.tokens, "bytes": fetch.bytes, "left": fetch.left, "why_left": fetch.why_left}
            tiers[place] = replace(each, **ended)
    return replace(now, tiers=tuple(tiers))
