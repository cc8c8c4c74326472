"""One step as data: what the scheduler plans and what an executor answers.

Plans are numbered deltas, committed in order. An executor keeps one row for each sequence, from the plan that begins
it to the plan that ends it; a row keeps whatever is a function of its token values (penalty counts, stop matching) and
survives preemption. The scheduler keeps counters, blocks, budgets and order. Both messages serialize with msgspec, so
that a step can be recorded, replayed and compared.
"""

from typing import Literal, get_args

import msgspec

from penstock.core.beam_search import BeamScore
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling

# "content_filter" is for the answers of hosted models only: nothing is filtered here.
FinishReason = Literal["stop", "length", "abort", "error", "content_filter"]


class BeginRow(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that the executor has not seen before.

    Attributes:
        sequence: the scheduler's handle, never reused.
        sample_index: which of the request's `n` samples it is.
        prompt_token_ids: for penalties, and as the history of proposers.
        sampling, eos_token_ids: as in the request.
        forked_from: the sequence whose prompt it shares; its own prompt list is then empty and the executor takes
            the other row's.
        pooling: how its hidden states become one vector; None where tokens are generated.
        pooled_from: the first of its tokens whose state goes into that.
        unseen: how many of its last tokens no token sees.
        second_from: the first token of the second of two texts; 0: there is one.
        cache_salt: as in the request; what one sequence has said helps to guess others of the same salt only.
        output: tokens that came behind the prompt before this executor knew of it.
        source: as in the request; of a fork, that of the other row.
    """

    sequence: int
    sample_index: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]
    forked_from: int | None = None
    pooling: Pooling | None = None
    cache_salt: str = ""
    output: tuple[int, ...] = ()
    pooled_from: int = 0
    source: tuple[int, ...] = ()
    unseen: int = 0
    second_from: int = 0


ShelfName = Literal["memory", "peer", "disk", "shared"]
SHELVES: tuple[ShelfName, ...] = get_args(ShelfName)
"""What keeps published slots beyond the pool, fastest first.

The processor's memory beside a GPU's pool, whose places are of the store "host"; what replicas that compute prompts
offer to those that decode; a disk; a store that machines share.
"""

Store = Literal["pool", "host", "peer", "disk", "shared"]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a slot is.

    Attributes:
        store: the pool of the device that computes, the processor's memory, or a shelf.
        blocks: of the slot, in their order; none on a disk, in a shared store or at a peer.
        key: by which a shelf has it: the tag of the tenant whose it is, and the key of the prefix that it ends; empty
            where no shelf has it.
        weight: of that tenant, by which it has a share of a shelf's room, where a slot is written; 0: as it was.
    """

    store: Store
    blocks: tuple[int, ...]
    key: bytes = b""
    weight: float = 0.0


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """A slot of a KV group is copied from one place to another.

    What it reads of the pool is read before the rows of its plan are computed. What it writes within the pool is there
    for these rows; anything else is there once its end is reported, with the result of this plan or a later one. A
    target that was not done holds anything. Where source and target are the same slot of a shelf, it stays there for a
    time, if it is there.

    Attributes:
        keep: seconds for which that is at least.
    """

    id: int
    group: int
    source: Place
    target: Place
    keep: float = 0.0

    @property
    def shelf(self) -> ShelfName | None:
        """The disk or store that it writes to or reads from; None where both places are memory."""
        return next((name for name in SHELVES if name in (self.source.store, self.target.store)), None)


class TransferResult(msgspec.Struct, frozen=True, array_like=True):
    """The end of a transfer, which is reported once.

    Attributes:
        done: whether it was carried out; where it was not, its target holds anything.
        seconds: how long it took, where that is of interest.
    """

    id: int
    done: bool
    seconds: float = 0.0


class BlockUpdate(msgspec.Struct, frozen=True, array_like=True):
    """Entries of one row's block table in one KV group: `blocks` replace those from index `first` on.

    The blocks of a slot follow one another. `first` is the index of a slot; a group with records has one slot.

    A slot that is given back because the group's window has passed it is not announced: its entry keeps the old blocks,
    which may hold another sequence's tokens by now, so entries before the window must not be read. An entry that is
    sent only after its slot was given back holds -1, and so does one that was dropped from the middle.
    """

    group: int
    first: int
    blocks: list[int]


class RowPlan(msgspec.Struct, frozen=True, array_like=True):
    """What one row computes in this step: positions `start` to `start + count - 1`.

    Attributes:
        sequence: whose row.
        start: position of the first token computed, equal to the track's valid KV length when the step runs.
        count: how many positions are computed.
        tokens: literal ids of the first `len(tokens)` positions. Where it is shorter than `count`, the rest come from
            the row of the same sequence in the outstanding plan `source`.
        source: number of the outstanding plan that yields the missing tokens, None where all are literals.
        samples: sequences that receive a token from the last position's logits. Empty while more of the prompt is to
            come, and where nothing is generated; more than one where `n` samples fork at their first token.
        blocks: changes of the row's block tables.
        draft_depth: how many tokens may be drafted behind this row's last, which is then the newest that is known and
            is sampled from; there are slots for this number of further positions.
        draft_width: how many more may be drafted beside them, as other branches of a tree that is no deeper; they need
            no slots.
        text_only: of the drafts, only what the sequence's own text says is wanted, where it drafts beside a model.
        scored: the row's positions from the first number up to, but not including, the second whose logits are wanted
            too, since they say how likely the prompt's next token was. The prompt's last position is never among
            them; equal numbers: none are.
        pooled: in the same way, the positions whose final hidden states go into the sequence's vector, which is
            complete with the prompt's last.
        dropped: for each KV group, how many of the positions before `start` have no slots any more: those behind them
            have moved up in the block table by as many. Empty where none has been dropped.
        weighed: of how many of its last positions it is to be told what attention they give to each slot.
        encodes: how many tokens its source has, where the keys and values of that are to be computed first; 0: they are
            there, or there is no source.
    """

    sequence: int
    start: int
    count: int
    tokens: list[int]
    source: int | None
    samples: tuple[int, ...]
    blocks: tuple[BlockUpdate, ...]
    draft_depth: int = 0
    draft_width: int = 0
    text_only: bool = False
    scored: tuple[int, int] = (0, 0)
    pooled: tuple[int, int] = (0, 0)
    dropped: tuple[int, ...] = ()
    weighed: int = 0
    encodes: int = 0

    @property
    def before(self) -> int:
        """How many positions before it have slots, where none but those that were dropped have none."""
        return self.start - max(self.dropped) if self.dropped else self.start


class StepPlan(msgspec.Struct, frozen=True):
    """Everything an executor needs for one step.

    Order of effects: end rows, begin rows, transfers out of the pool, into the pool, within the pool, compute rows.

    Attributes:
        transfers: those that begin with this plan.
        waits: there is nothing to compute before a transfer of an earlier plan is over; the result reports at least
            one, unless that takes too long.
        steps: how many steps it stands for, each with the rows' next positions; only simulated time has more than one.
    """

    number: int
    rows: tuple[RowPlan, ...]
    begin: tuple[BeginRow, ...] = ()
    end: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    waits: bool = False
    steps: int = 1

    def pairs(self, source: Store, target: Store) -> list[tuple[int, int]]:
        """Blocks that are copied from one store to another, each with its target, in order."""
        return [
            pair
            for transfer in self.transfers
            if (transfer.source.store, transfer.target.store) == (source, target)
            for pair in zip(transfer.source.blocks, transfer.target.blocks, strict=True)
        ]

    @property
    def num_tokens(self) -> int:
        """Positions computed in the step, those of sources among them, but for drafts."""
        return sum(row.count + row.encodes for row in self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one position: natural logarithms of the model's own distribution.

    Of an output's token they are taken after penalties, biases and masks, before temperature and truncation; of a
    prompt's before all of these.

    Attributes:
        token, logprob: the token that stands there.
        top_tokens, top_logprobs: the most likely ones, by (probability descending, id).
        rank: the token's place in that order among all tokens, from 1; of a prompt's tokens only.
    """

    token: int
    logprob: float
    top_tokens: list[int]
    top_logprobs: list[float]
    rank: int | None = None


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """How an output ended.

    Attributes:
        reason: why; of an executor "stop" where the last token ended the output, "error" where the row failed. Running
            out of `max_tokens` is the scheduler's to see.
        stop_reason: the stop string or stop token id that ended it; None at end-of-sequence.
        error: what went wrong, where the reason is "error".
        code: the class of what went wrong, as `error_classes` has it; None for RowFailed.
    """

    reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None
    code: str | None = None


class Gained(msgspec.Struct, frozen=True, array_like=True):
    """What one sample got in one step, as it goes from the executor to the state of its request.

    Attributes:
        tokens: verified ids in order, one without drafts; none where the sample only ends, or its prompt is scored
            before all of it is computed.
        ending: of its output; None while it goes on.
        logprobs: one entry per token where asked for.
        prompt_logprobs: one entry for each position of the prompt that was scored, of the prompt's token behind it.
        embedding: the vector of a request that asks for one, once it is complete: float32 in the machine's order of
            bytes, of length 1 in the Euclidean norm.
        beam: how likely an output of beam search is, which comes whole.
        searched: how many beams of the request have got a token; whether it is one of an output, the end of the search
            says.
    """

    tokens: list[int]
    ending: Ending | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    embedding: bytes | None = None
    beam: BeamScore | None = None
    searched: int = 0


def failed(message: str, code: str | None = None) -> Gained:
    """What a sample gains where something went wrong: no token, and an end that says why."""
    return Gained([], Ending("error", error=message, code=code))


class SampleResult(msgspec.Struct, frozen=True, array_like=True):
    """What one sequence got in one step.

    Attributes:
        sequence: which one.
        gained: what it got.
        drafted: how many tokens were drafted for it. All of its tokens but the last are drafts that were right, and
            their positions are computed.
        beside: how many of the drafted ones were in other branches of a tree than the likeliest.
        strayed: how many of those that were right were.
    """

    sequence: int
    gained: Gained
    drafted: int = 0
    beside: int = 0
    strayed: int = 0


class Branch(msgspec.Struct, frozen=True, array_like=True):
    """How one of a request's beams goes on.

    Attributes:
        sequence: which takes it from now on.
        parent: the sequence whose tokens it continues; its newest is computed.
        token: the next.
    """

    sequence: int
    parent: int
    token: int


class BeamStep(msgspec.Struct, frozen=True, array_like=True):
    """How the beams of one request go on, once what may come next is known for all of them.

    Attributes:
        leader: the first of its sequences, from whose prompt the others are forked.
        branches: the beams that go on. A sequence without one rests: it has no tokens and may get a branch later.
        outputs: where the search is over, what was found, the best first; there are no branches then.
    """

    leader: int
    branches: tuple[Branch, ...] = ()
    outputs: tuple[Gained, ...] = ()


class Shelved(msgspec.Struct, frozen=True, array_like=True):
    """A shelf has the slot of a group that ends the prefix with this key; not `there`: it has it no more."""

    shelf: ShelfName
    group: int
    key: bytes
    there: bool


class Attended(msgspec.Struct, frozen=True, array_like=True):
    """What attention a row's last positions gave to what its sequence holds.

    Attributes:
        sequence: whose.
        masses: for each KV group and each slot of its table, the sum of the weights.
    """

    sequence: int
    masses: list[list[float]]


class StepResult(msgspec.Struct, frozen=True):
    """The executor's answer to the plan of the same number.

    It has one entry for every sequence in a row's `samples`, unless these are beams, and one for the sequence of every
    row that scores or completes a vector. What had ended by then, and what was to fork from that, has none.

    Attributes:
        number: the plan's.
        samples: what came of it.
        seconds: how long it was computed, since the one before it where it was launched behind that; 0 where that is
            not known.
        sampling_seconds, drafting_seconds: how long of this it took to choose tokens, and to draft them before.
        failed: the plan was not carried out, or not to its end: nothing that it was to write may be read.
        transfers: those that are over, of this plan and of earlier ones.
        attended: of the rows that were to be told.
        beams: of the requests whose beams this plan has completed.
    """

    number: int
    samples: tuple[SampleResult, ...]
    seconds: float = 0.0
    sampling_seconds: float = 0.0
    drafting_seconds: float = 0.0
    failed: bool = False
    transfers: tuple[TransferResult, ...] = ()
    attended: tuple[Attended, ...] = ()
    beams: tuple[BeamStep, ...] = ()
