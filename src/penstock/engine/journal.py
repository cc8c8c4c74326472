"""What an engine did with one request, as its client sees it from the facts of steps."""

from dataclasses import dataclass, field

from penstock.core.facts import Admission, Chunk, Drafted, PrefixFound, StepFacts, StepTotals

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
class Journal:
    """The landmarks of one request, filled in while it is served; times are on the monotonic clock.

    A sequence is one of the request's samples; until they fork, which is with their first token, there is one.

    Attributes:
        prompt_tokens: of its prompt.
        submitted: it was handed to the engine.
        grammar_seconds: how long its grammar was compiled before it could be queued.
        admitted: it came into the batch for the first time.
        prefix: what was found in the cache then.
        returned: when it came back after each preemption, or the engine ended that had preempted it.
        preempted: when it lost its blocks.
        chunks: of its prompt, in order; with what was computed again after preemptions.
        chunks_left_out: how many more there were than are kept.
        computed_tokens: of all of them.
        first_token, finished: they reached the client.
        output_tokens: of all samples.
        drafted_tokens, accepted_tokens: that were drafted for it, and those of them that were right.
        interrupted: when engines ended that had computed it; what they did is part of the above.
    """

    prompt_tokens: int
    submitted: Mark
    grammar_seconds: float = 0.0
    admitted: Mark | None = None
    prefix: PrefixFound | None = None
    preempted: list[float] = field(default_factory=list)
    returned: list[float] = field(default_factory=list)
    chunks: list[ComputedChunk] = field(default_factory=list)
    chunks_left_out: int = 0
    computed_tokens: int = 0
    first_token: Mark | None = None
    finished: Mark | None = None
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    interrupted: list[float] = field(default_factory=list)

    def admission(self, fact: Admission, step: StepFacts, before: StepTotals) -> None:
        """A sequence came into the batch in a step; `before` is what had been done before it."""
        if fact.again:
            self.returned.append(step.began)
        elif self.admitted is None:
            self.admitted = Mark(step.began, before)
            self.prefix = fact.prefix

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

    def end(self, now: Mark) -> None:
        """Mark the end of the request; later calls change nothing."""
        if self.finished is None:
            self.finished = now

    def interruption(self, now: float) -> None:
        """The engine that had it has ended, and with it whatever it was preempted for: the next one begins it anew."""
        self.interrupted.append(now)
        self.returned += [now] * (len(self.preempted) - len(self.returned))
