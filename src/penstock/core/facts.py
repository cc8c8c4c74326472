"""Facts: what an engine did in each step, and their sums. All that is told of an engine is derived from these.

An engine says once a step what it did, and what happened to each request besides the tokens that it got. The difference
of the sums (`StepTotals`) at two moments is what an engine did in between. So a request's account, a server's metrics
and a diagnosis are different views of the same figures.
"""

from typing import Literal, get_args

import msgspec

from penstock.core.plan import SHELVES, ShelfName

Wait = Literal["rows", "pace", "blocks", "budget", "share", "place", "prefix", "scores", "background"]
"""What keeps the first of the waiting sequences waiting.

rows: the batch is full (`max_num_seqs`). pace: it is as large as the time between tokens allows (`target_itl`). blocks:
its prompt does not fit beside those that run (KV memory). budget: the step has no token left for it
(`max_num_batched_tokens`, `target_itl`). share: its tenant has had its share of the step. place: what is free is left
to tenants that have nothing. prefix: another request is computing what it can then take from the cache. scores: others'
scores of prompts come first. background: it runs only where no other request wants to.
"""

WAITS: tuple[Wait, ...] = ("rows", "pace", "blocks", "budget", "share", "place", "prefix", "scores", "background")

Missing = Literal["unseen", "different", "evicted", "other_tenant", "off"]
"""Why the prefix cache had no more of a prompt.

unseen: nothing is known to have come behind what was found. different: what is cached there goes on with another token.
evicted: it was there, and its block was taken for something else. other_tenant: it is there, for another tenant only.
off: there is no prefix cache, or the request does not want it.
"""


Tier = Literal["pool", ShelfName]
TIERS: tuple[Tier, ...] = ("pool", *SHELVES)
"""Where published KV blocks are kept, fastest first."""

Unread = Literal["slower", "no_room", "gone", "failed", "late"]
UNREAD: tuple[Unread, ...] = get_args(Unread)
"""Why what a tier had was not taken from there.

slower: reading it was expected to take longer than computing it. no_room: the pool had no blocks for it. gone: a block
before it is not there. failed: it could not be read, or was not as it was written. late: it did not come in time.
"""


class TierFound(msgspec.Struct, frozen=True, array_like=True):
    """What a tier had of a sequence's tokens when it was admitted, beyond what faster tiers had.

    Attributes:
        tokens: those that are taken from there, or were to be; `bytes` is what is read for them.
        left: tokens that it had and that are not taken; `why_left` says why.
        read_seconds, compute_seconds: how long it was expected to take to read and to compute what it had; None where
            that was not measured before.
    """

    tier: Tier
    tokens: int = 0
    bytes: int = 0
    left: int = 0
    why_left: Unread | None = None
    read_seconds: float | None = None
    compute_seconds: float | None = None


class PrefixFound(msgspec.Struct, frozen=True, array_like=True):
    """What the prefix cache had of a sequence's tokens when it was admitted.

    Attributes:
        looked_up: tokens that could have been there: those of whole blocks before the last token, or what was found.
        found: those that were.
        missing: why not more; None where all were.
        position: of the first token that is not as what was cached, where `missing` is "different"; what was cached
            was the same tenant's.
        cached_token: the token that was cached there.
        evicted_seconds: how long before it had been evicted, where it was.
        tiers: where they were found, and what was left there.
    """

    looked_up: int
    found: int
    missing: Missing | None = None
    position: int | None = None
    cached_token: int | None = None
    evicted_seconds: float | None = None
    tiers: tuple[TierFound, ...] = ()

    @property
    def fetched(self) -> tuple[TierFound, ...]:
        """What is read from tiers beyond the pool once the sequence is admitted; nothing is computed before."""
        return tuple(each for each in self.tiers if each.tokens and each.tier != "pool")


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """A sequence came into the batch: for the first time, or, where `again`, after it was preempted.

    Attributes:
        prefix: what the prefix cache had of it.
        swapped: positions that it did not have to compute again, since their blocks had been swapped out.
    """

    request_id: int
    sample_index: int
    again: bool
    prefix: PrefixFound
    swapped: int = 0


class TierCame(msgspec.Struct, frozen=True, array_like=True):
    """What was to be read from a tier for a sequence has come, or is not waited for any more.

    Attributes:
        tokens: those that came; `left`: those that did not, and `why_left`.
        bytes, seconds: what was read, and how long reading took, over all blocks. Of what was late they are told once
            it is over, without its tokens.
    """

    tier: ShelfName
    tokens: int = 0
    left: int = 0
    why_left: Unread | None = None
    bytes: int = 0
    seconds: float = 0.0


class Fetched(msgspec.Struct, frozen=True, array_like=True):
    """What was to be read for a sequence has come, or it does not wait for it any more; of each tier."""

    request_id: int
    sample_index: int
    came: list[TierCame]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A row of a step that computed positions `start` to `start + count - 1` of a prompt, or again what was lost."""

    request_id: int
    sample_index: int
    start: int
    count: int


class Drafted(msgspec.Struct, frozen=True, array_like=True):
    """A row of a step had drafts.

    Attributes:
        drafted: how many tokens.
        accepted: how many of them were right, from the first on.
        beside: how many of the drafted ones were in other branches of a tree than the likeliest.
        strayed: how many of those that were right were.
    """

    request_id: int
    sample_index: int
    drafted: int
    accepted: int
    beside: int = 0
    strayed: int = 0

    @property
    def depth(self) -> int:
        """Tokens of the likeliest branch."""
        return self.drafted - self.beside

    @property
    def judged(self) -> int:
        """Places in the draft that were looked at: behind the first where nothing is right, none is."""
        return max(self.accepted, min(self.accepted + 1, self.depth))


class StepFacts(msgspec.Struct, frozen=True, array_like=True):
    """What one step did. Rows that only decode are not named: each has a token in the same message.

    Attributes:
        began: when, in seconds on the monotonic clock that all processes of a machine share; where it was launched
            behind another, when that one had been committed and its outputs sent.
        schedule, draft, execute, sample, send: seconds in which it was planned and committed, tokens were drafted, the
            model was run, tokens were chosen, and outputs were sent; the last is of the step before, since it is not
            known any sooner. What was done for the next one meanwhile, planned and launched, counts as done for it, so
            that no second counts twice.
        budget: tokens it could have had.
        rows, decodes: sequences in it, and those of them that computed the newest token of their output only.
        chunk_tokens: tokens of all others.
        sampled: rows that got a token.
        context: positions that the decodes attended to, all together.
        cpu_wait: seconds in which the engine's thread that waited most was ready to run and had no processor; counted
            every tenth of a second, for all steps since.
        held: what keeps the first sequence that still waits; None where none waits.
        admissions, chunks, preempted, drafts: what happened to which request; `preempted` has ids.
        swapped_out, swapped_in: KV blocks that were copied to the processor's memory, and from there.
        not_swapped: sequences of those that were preempted for which that memory had no room.
        fetched: what came from tiers beyond the pool, and what did not.
        stored: bytes that were written to them.
    """

    began: float = 0.0
    schedule: float = 0.0
    draft: float = 0.0
    execute: float = 0.0
    sample: float = 0.0
    send: float = 0.0
    budget: int = 0
    rows: int = 0
    decodes: int = 0
    chunk_tokens: int = 0
    sampled: int = 0
    context: int = 0
    cpu_wait: float = 0.0
    held: Wait | None = None
    admissions: list[Admission] = []
    chunks: list[Chunk] = []
    preempted: list[int] = []
    drafts: list[Drafted] = []
    swapped_out: int = 0
    swapped_in: int = 0
    not_swapped: int = 0
    fetched: list[Fetched] = []
    stored: dict[ShelfName, int] = {}

    @property
    def drafted(self) -> int:
        """Tokens that were drafted, over all rows of the step."""
        return sum(row.drafted for row in self.drafts)

    @property
    def accepted(self) -> int:
        """Those of them that were right."""
        return sum(row.accepted for row in self.drafts)

    @property
    def beside(self) -> int:
        """Those of them that were in other branches of a tree than the likeliest."""
        return sum(row.beside for row in self.drafts)

    @property
    def tokens(self) -> int:
        """Positions that the step computed: decodes, prompts and drafts."""
        return self.decodes + self.chunk_tokens + (self.drafted if self.drafts else 0)

    @property
    def seconds(self) -> float:
        """How long it took, but for what is known only later."""
        return self.schedule + self.draft + self.execute + self.sample


class StepTotals(msgspec.Struct, frozen=True):
    """Sums over steps; those at two moments differ by what happened in between.

    Attributes:
        steps: how many.
        schedule, draft, execute, sample, send, cpu_wait, budget, rows, decodes, chunk_tokens, sampled, context: sums
            of what steps say under the same names.
        bytes, operations: what they must have moved through memory, and multiplied and added (`core/work.py`).
        chunk_steps, chunk_seconds, chunk_gained: steps in which a prompt was computed, how long they took, and the
            tokens that came of them.
        drafted, accepted, beside: tokens that were drafted, those of them that were right, and those that were in other
            branches of a tree than the likeliest.
        preemptions: sequences that lost their blocks.
        swapped_out, swapped_in, not_swapped: as steps say.
        held: seconds in which a sequence waited, by what it waited for, in the order of `WAITS`.
    """

    steps: int = 0
    schedule: float = 0.0
    draft: float = 0.0
    execute: float = 0.0
    sample: float = 0.0
    send: float = 0.0
    cpu_wait: float = 0.0
    budget: int = 0
    rows: int = 0
    decodes: int = 0
    chunk_tokens: int = 0
    sampled: int = 0
    drafted: int = 0
    accepted: int = 0
    beside: int = 0
    context: int = 0
    bytes: int = 0
    operations: int = 0
    chunk_steps: int = 0
    chunk_seconds: float = 0.0
    chunk_gained: int = 0
    preemptions: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    not_swapped: int = 0
    held: tuple[float, ...] = (0.0,) * len(WAITS)

    @property
    def tokens(self) -> int:
        """Positions that all steps computed: decodes, prompts and drafts."""
        return self.decodes + self.chunk_tokens + self.drafted

    @property
    def seconds(self) -> float:
        """How long the steps took."""
        return self.schedule + self.draft + self.execute + self.sample + self.send

    def add(self, step: StepFacts, work: tuple[int, int] = (0, 0)) -> "StepTotals":
        """With one step more; `work` is its bytes and operations."""
        seconds = step.seconds + step.send
        # Most steps of most servers have no drafts.
        drafted, accepted, beside = (step.drafted, step.accepted, step.beside) if step.drafts else (0, 0, 0)
        held = self.held
        if step.held is not None:
            place = WAITS.index(step.held)
            held = (*held[:place], held[place] + seconds, *held[place + 1 :])
        return StepTotals(
            steps=self.steps + 1,
            schedule=self.schedule + step.schedule,
            draft=self.draft + step.draft,
            execute=self.execute + step.execute,
            sample=self.sample + step.sample,
            send=self.send + step.send,
            cpu_wait=self.cpu_wait + step.cpu_wait,
            budget=self.budget + step.budget,
            rows=self.rows + step.rows,
            decodes=self.decodes + step.decodes,
            chunk_tokens=self.chunk_tokens + step.chunk_tokens,
            sampled=self.sampled + step.sampled,
            drafted=self.drafted + drafted,
            accepted=self.accepted + accepted,
            beside=self.beside + beside,
            context=self.context + step.context,
            bytes=self.bytes + work[0],
            operations=self.operations + work[1],
            chunk_steps=self.chunk_steps + (step.chunk_tokens > 0),
            chunk_seconds=self.chunk_seconds + (seconds if step.chunk_tokens else 0.0),
            chunk_gained=self.chunk_gained + (step.sampled + accepted if step.chunk_tokens else 0),
            preemptions=self.preemptions + len(step.preempted),
            swapped_out=self.swapped_out + step.swapped_out,
            swapped_in=self.swapped_in + step.swapped_in,
            not_swapped=self.not_swapped + step.not_swapped,
            held=held,
        )

    def since(self, earlier: "StepTotals") -> "StepTotals":
        """What has happened since `earlier`."""
        sums = {name: getattr(self, name) - getattr(earlier, name) for name in _SUMS}
        return StepTotals(held=tuple(new - old for new, old in zip(self.held, earlier.held, strict=True)), **sums)

    def waited_for(self) -> dict[Wait, float]:
        """Seconds in which a sequence waited, by what it waited for; reasons with 0 seconds are left out."""
        return {wait: seconds for wait, seconds in zip(WAITS, self.held, strict=True) if seconds > 0}


_SUMS = tuple(name for name in StepTotals.__struct_fields__ if name != "held")
