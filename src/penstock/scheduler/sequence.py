"""A sequence is counters, not phases.

`computed` (positions whose KV was valid at the last commit) catches up with `tokens` (known ids) within each step's
budget. Prefill, decode, chunks and recomputation after preemption are this one rule. `reserved` is what `computed` will
be if every outstanding plan succeeds.
"""

from dataclasses import dataclass, field

from penstock.cache.bounded import Bounded
from penstock.cache.held import SequenceBlocks
from penstock.cache.swap import SwappedBlocks
from penstock.core.events import KeptTokens, SampleOutput
from penstock.core.plan import Gained
from penstock.core.request import BACKGROUND_PRIORITY, Request
from penstock.core.vectors import pooled
from penstock.scheduler.sources import Record

NO_STAMP = 2**63 - 1


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of one request.

    Attributes:
        id: the handle that plans use.
        request, sample_index: the request, and which of its samples this is.
        order: (priority, admission stamp, sample index), the total order. Frozen from its first turn on; until then the
            stamp is NO_STAMP, and it comes after all that had theirs.
        tokens: known ids, prompt and output.
        prompt_length: how many of them are the prompt.
        computed, reserved: see above.
        computed_once: most positions that were ever computed, here or for the cache, to tell recomputation from work.
        computed_before: the same before it came into the batch last.
        in_flight: samples that outstanding plans will yield.
        last_plan: newest outstanding plan with a row of this sequence, None if there is none.
        blocks: its block tables.
        swapped: what of its blocks is in the processor's memory, if anything was put there when it was preempted.
        loading: whether this is on its way back, or what is on a shelf; nothing is computed before it has come.
        has_read: whether anything was read from a shelf for it; what failed or was late is not tried again.
        running: whether it holds a row of the batch (and may hold blocks).
        begun: whether the executor has a row for it.
        admitted: whether it was ever let into the batch, or forked from one that was.
        finished: whether it has had its terminal event.
        epoch: rises with every preemption, so that a plan made before is recognised at its commit.
        drafting: positions behind its newest token for which an outstanding plan has slots, for drafts; until it has
            committed, what comes next is unknown.
        records: what became of what was drafted for it, by whether its text alone was asked.
        waits: plans for which it stood back because its next block was being computed by another.
        cached_tokens: prompt tokens that the prefix cache gave it at its first admission; None before.
        looked_up: how many tokens it was asked for then, 0 where the first output is wanted; None once both are among
            the totals.
        kept_before: how many of those were kept on request, within what this request wants kept.
        kept_now: for each prefix that its request wants kept and that is computed, how many of its tokens are.
        reported: whether `cached_tokens` was part of an event.
        background: whether it runs only where no other request waits.
        waits_for_tokens: whether a plan can have no token of it that an outstanding one is still to yield.
        beam: whether it is one of its request's beams, so that its next token is known when all of them are computed.
        resting: of a beam, that it has nothing to continue, is in no queue and holds nothing.
        to_extract: where the prompt's positions end whose own output is wanted: to score its tokens, or for a vector.
        extracted: the first of them that was not planned. A plan that was made is carried out, preemption or not, so
            none is planned twice.
        encoded: whether its source was encoded for it, now or before, or was found.
        bounded: what is known of a context that is bounded; None: it has all of it.
        forgotten: how many of its tokens were dropped from its context before it lost its blocks last.
        told_dropped: how many of them events have told of.
    """

    id: int
    request: Request
    sample_index: int
    order: tuple[int, int, int]
    tokens: list[int]
    prompt_length: int
    blocks: SequenceBlocks
    bounded: Bounded | None = None
    forgotten: int = 0
    told_dropped: int = 0
    computed: int = 0
    reserved: int = 0
    computed_once: int = 0
    computed_before: int = 0
    in_flight: int = 0
    last_plan: int | None = None
    swapped: SwappedBlocks | None = None
    loading: bool = False
    has_read: bool = False
    running: bool = False
    begun: bool = False
    admitted: bool = False
    finished: bool = False
    epoch: int = 0
    drafting: int = 0
    records: dict[bool, Record] = field(default_factory=dict)
    waits: int = 0
    cached_tokens: int | None = None
    looked_up: int | None = None
    kept_before: int = 0
    kept_now: list[int] = field(default_factory=list)
    reported: bool = False
    extracted: int = 0
    resting: bool = False
    encoded: bool = False
    waits_for_tokens: bool = False
    max_tokens: int = field(init=False)
    background: bool = field(init=False)
    beam: bool = field(init=False)
    to_extract: int = field(init=False)

    def __post_init__(self) -> None:
        request, length = self.request, self.prompt_length
        limit = request.max_tokens
        if limit is None:
            raise ValueError("max_tokens must be resolved before a request reaches the scheduler")
        self.max_tokens = limit
        self.background = self.order[0] >= BACKGROUND_PRIORITY
        self.beam = request.sampling.beam is not None and request.pooling is None
        if request.pooling is not None:
            self.extracted, self.to_extract = pooled(request.pooling, request.pooled_from, length)
        else:
            # What comes after the last is not the prompt's.
            self.to_extract = 0 if request.sampling.prompt_logprobs is None else length - 1

    def record(self, text_only: bool) -> Record:
        """What became of what was drafted for it by its text alone, or by both sources together."""
        return self.records.get(text_only) or self.records.setdefault(text_only, Record())

    @property
    def output_length(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def tokens_left(self) -> int:
        """Tokens that it may still generate once all outstanding plans have succeeded."""
        return self.max_tokens - self.output_length - self.in_flight

    @property
    def expected(self) -> int:
        """Tokens that it has once all outstanding plans have succeeded; none of these says how a beam goes on."""
        return len(self.tokens) + (0 if self.beam else self.in_flight)

    @property
    def pending(self) -> int:
        """Positions left to compute once all outstanding plans have succeeded; 1 for a sequence that decodes."""
        if self.drafting or self.loading:
            return 0
        expected = self.expected
        # The last token of an output is returned but never computed; where nothing is generated, all of the prompt is.
        if self.max_tokens and expected - self.prompt_length >= self.max_tokens:
            return 0
        return (len(self.tokens) if self.waits_for_tokens else expected) - self.reserved

    @property
    def stands_still(self) -> bool:
        """Whether it is a beam that is computed, and waits for others of its request."""
        return self.beam and self.computed == len(self.tokens)

    @property
    def must_wait(self) -> bool:
        """Whether it has to wait for an outstanding plan: for the token that this yields, or to be swapped out."""
        return self.last_plan is not None or (self.swapped is not None and not self.swapped.storing.is_over)

    @property
    def swapped_tokens(self) -> int:
        """Positions whose keys and values are in the processor's memory."""
        return 0 if self.swapped is None else self.swapped.tokens

    @property
    def prompt_left(self) -> int:
        """Tokens of its prompt, and of its source, that were never computed, here or for the cache."""
        return max(0, self.prompt_length - self.computed_once) + (0 if self.encoded else len(self.request.source))

    @property
    def all_tokens(self) -> int:
        """How many tokens it has, those of its source among them."""
        return len(self.tokens) + len(self.request.source)

    def lose_hit(self) -> int:
        """It has nothing of what it was to have from the cache; how many more tokens of its prompt are computed."""
        if not self.has_read or self.reported or self.cached_tokens is None:
            return 0
        left = self.prompt_left
        self.cached_tokens, self.computed_once = None, self.computed_before
        return self.prompt_left - left

    @property
    def cacheable(self) -> int:
        """Leading tokens that the prefix cache may give: none behind the first whose output is still wanted."""
        most = self.extracted if self.extracted < self.to_extract else len(self.tokens)
        return most if self.bounded is None else min(most, self.bounded.cacheable)

    @property
    def dropped_now(self) -> int:
        """How many of its tokens are dropped from its context."""
        return 0 if self.bounded is None else self.bounded.dropped_tokens

    @property
    def dropped(self) -> int:
        """How many of its tokens are, or were, dropped from its context."""
        return max(self.forgotten, self.dropped_now)

    @property
    def unscored(self) -> int:
        """Positions that are still to be scored."""
        return max(0, self.to_extract - self.extracted) if self.request.pooling is None else 0

    def within_scores(self, count: int, scores: int) -> int:
        """How many of the next `count` positions can be computed where `scores` positions may be scored."""
        # Hidden states need no such bound, being small beside logits.
        if self.unscored <= scores:
            return count
        return min(count, max(self.reserved, self.extracted) + scores - self.reserved)

    def output(self, gained: Gained) -> SampleOutput:
        """The event that says what it gained by a step, or how it ended."""
        cached = None if self.reported else self.cached_tokens
        self.reported = True
        kept = None
        # With its first token, all of the prompt has been computed.
        new = self.output_length - len(self.request.output)
        if self.request.keep and self.sample_index == 0 and 0 < new == len(gained.tokens):
            kept = KeptTokens(self.kept_before, self.kept_now)
        dropped = self.dropped if self.dropped > self.told_dropped else 0
        self.told_dropped = self.dropped
        return SampleOutput(self.request.request_id, self.sample_index, gained, cached, kept, dropped)
