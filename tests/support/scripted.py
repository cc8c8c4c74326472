"""The scripted executor: a model whose next token is a hash of all tokens before it, as read from its KV blocks.

It simulates the memory of the KV cache. A slot holds what a transformer's would: something that depends on the whole
prefix, on the position and on the layers that are stored there. Whatever a row may attend to is read back through the
row's own block tables, so that a wrong block, a hit on a block that was not computed, a stale copy or a reuse that came
too early trips an assertion or changes the output. `expected_output` says what a request yields where nothing goes
wrong.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.core.kv import GroupSpec, KVSpec, Plane
from penstock.core.plan import (
    BeginRow,
    BlockCopy,
    Ending,
    FinishReason,
    Gained,
    RowPlan,
    SampleResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
    failed,
)
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams

VOCABULARY = 997
FAILED = "The scripted row failed."
STOPPED = Ending("stop")
RELEASED = -1


def kv_spec(block_size: int = 4, windows: Sequence[int | None] = (None,)) -> KVSpec:
    """A small geometry with one group of one layer for each of `windows`."""
    groups = tuple(GroupSpec(layers=(index,), window=window) for index, window in enumerate(windows))
    return KVSpec(block_size=block_size, planes=(Plane("key", (1, 1), "int8"),), groups=groups, layers_per_block=1)


def digest(before: int, token: int, position: int) -> int:
    """What the KV of `token` at `position` depends on; `before` is the digest of the position before it."""
    # Tuples of integers hash the same in every process.
    return hash((before, token, position))


def slot_content(prefix: int, group: int) -> int:
    """What a slot of `group` holds where the prefix up to its position has the digest `prefix`."""
    return hash((prefix, group))


def first_visible(position: int, window: int | None) -> int:
    """The oldest position that the token at `position` attends to."""
    return 0 if window is None else max(0, position - window + 1)


def choose_token(visible: Sequence[Sequence[int]], sampling: SamplingParams, sample_index: int, position: int) -> int:
    """The token after `position`: a hash of the slots that each group sees from there."""
    content = hash(tuple(hash(tuple(slots)) for slots in visible))
    return hash((content, sampling.seed or 0, sample_index, position)) % VOCABULARY


def score_token(visible: Sequence[Sequence[int]], token: int, position: int) -> TokenLogprobs:
    """What the prompt's `token` behind `position` is scored as: a hash of the slots that each group sees from there."""
    content = hash(tuple(hash(tuple(slots)) for slots in visible))
    return TokenLogprobs(token, -float(hash((content, token, position)) % VOCABULARY), [], [])


def pool_state(before: int, visible: Sequence[Sequence[int]], position: int) -> int:
    """What a vector is after one more position: it depends on all that went into it, in order."""
    return hash((before, tuple(hash(tuple(slots)) for slots in visible), position))


def vector_of(state: int) -> bytes:
    """A complete vector."""
    return state.to_bytes(8, "little", signed=True)


def ends_output(token: int, sampling: SamplingParams, eos_token_ids: Sequence[int], output_length: int) -> bool:
    """Whether `token`, the last of `output_length`, ends the output."""
    if output_length < sampling.min_tokens:
        return False
    return token in sampling.stop_token_ids or (not sampling.ignore_eos and token in eos_token_ids)


def expected_output(
    spec: KVSpec,
    prompt: Sequence[int],
    sampling: SamplingParams,
    sample_index: int = 0,
    eos_token_ids: Sequence[int] = (),
) -> tuple[list[int], FinishReason]:
    """The output of one sample and why it ends: a function of the request alone."""
    history = History(len(spec.groups))
    history.extend(prompt)
    output: list[int] = []
    assert sampling.max_tokens is not None
    if sampling.max_tokens == 0:
        return output, "length"
    while True:
        position = len(history.tokens) - 1
        visible = [
            history.slots[index][first_visible(position, group.window) :] for index, group in enumerate(spec.groups)
        ]
        token = choose_token(visible, sampling, sample_index, position)
        output.append(token)
        history.extend([token])
        if ends_output(token, sampling, eos_token_ids, len(output)):
            return output, "stop"
        if len(output) == sampling.max_tokens:
            return output, "length"


def expected_scores(spec: KVSpec, prompt: Sequence[int]) -> list[TokenLogprobs]:
    """What the tokens of a prompt are scored as, from the second on."""
    history = History(len(spec.groups))
    history.extend(prompt)
    scores = []
    for position, token in enumerate(prompt[1:]):
        visible = [
            history.slots[index][first_visible(position, group.window) : position + 1]
            for index, group in enumerate(spec.groups)
        ]
        scores.append(score_token(visible, token, position))
    return scores


def expected_vector(spec: KVSpec, request: Request) -> bytes:
    """The vector of a request that asks for one."""
    prompt = request.prompt_token_ids
    history = History(len(spec.groups))
    history.extend(prompt)
    state = 0
    for position in range(len(prompt) - 1 if request.pooling == "last" else 0, len(prompt)):
        visible = [
            history.slots[index][first_visible(position, group.window) : position + 1]
            for index, group in enumerate(spec.groups)
        ]
        state = pool_state(state, visible, position)
    return vector_of(state)


class History:
    """Tokens, and what their slots must hold in each group."""

    def __init__(self, groups: int) -> None:
        self.tokens: list[int] = []
        self.slots: list[list[int]] = [[] for _ in range(groups)]
        self._digest = 0

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._digest = digest(self._digest, token, len(self.tokens))
            self.tokens.append(token)
            for group, slots in enumerate(self.slots):
                slots.append(slot_content(self._digest, group))

    def copy(self) -> "History":
        other = History(len(self.slots))
        other.tokens = self.tokens.copy()
        other.slots = [slots.copy() for slots in self.slots]
        other._digest = self._digest
        return other


@dataclass
class Row:
    """What the executor keeps for a sequence."""

    begin: BeginRow
    history: History
    prompt_length: int
    tables: list[list[int]]
    last_sampled_in: int | None = None
    scored: int = 0
    pooled: int | None = None
    vector: int = 0


@dataclass
class ScriptedExecutor:
    """Executes plans on simulated KV memory of `num_blocks` blocks, and of `swap_blocks` beside them.

    Rows of the sequences in `failing` yield an error instead of their next token. Where drafts are wanted, `luck` says
    how many there are and which are wrong.
    """

    spec: KVSpec
    num_blocks: int
    failing: set[int] = field(default_factory=set)
    luck: random.Random = field(default_factory=lambda: random.Random(0))
    swap_blocks: int = 0

    def __post_init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.computed_tokens = 0
        self._memory: list[list[int | None]] = [[None] * self.spec.block_size for _ in range(self.num_blocks)]
        self._host: list[list[int | None]] = [[None] * self.spec.block_size for _ in range(self.swap_blocks)]
        self._seen: set[int] = set()
        self._next_number = 0
        self._guesses: dict[int, History] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan, with the order of effects that a plan promises."""
        assert plan.number == self._next_number, f"plan {plan.number} came instead of {self._next_number}"
        self._next_number += 1
        for sequence in plan.end:
            assert sequence in self.rows, f"sequence {sequence} ends and has no row"
            del self.rows[sequence]
        for begin in plan.begin:
            self._begin(begin)
        self._swap_blocks(plan)
        for row_plan in plan.rows:
            self._update_tables(row_plan)
        self._copy_blocks(plan)
        self._check_rows(plan)
        # All contexts are read before anything is written: a step's rows can't use one another's results.
        for row_plan in plan.rows:
            self._check_context(row_plan)
        guesses = {row_plan.sequence: self._guess(row_plan) for row_plan in plan.rows if row_plan.draft_depth}
        for row_plan in plan.rows:
            self._write(row_plan, guesses.get(row_plan.sequence))
        self._guesses = guesses
        results = [result for row_plan in plan.rows for result in self._results(row_plan, plan.number)]
        return StepResult(plan.number, tuple(results))

    def _begin(self, begin: BeginRow) -> None:
        assert begin.sequence not in self._seen, f"sequence {begin.sequence} begins twice"
        self._seen.add(begin.sequence)
        if begin.forked_from is None:
            assert begin.prompt_token_ids, f"sequence {begin.sequence} begins without a prompt"
            history = History(len(self.spec.groups))
            history.extend(begin.prompt_token_ids)
        else:
            assert not begin.prompt_token_ids, "a fork takes the prompt of its origin"
            parent = self.rows[begin.forked_from]
            assert len(parent.history.tokens) == parent.prompt_length, "a fork starts at the first token"
            history = parent.history.copy()
        tables: list[list[int]] = [[] for _ in self.spec.groups]
        self.rows[begin.sequence] = Row(begin, history, len(history.tokens), tables)

    def _update_tables(self, row_plan: RowPlan) -> None:
        assert row_plan.sequence in self.rows, f"sequence {row_plan.sequence} is computed and has no row"
        tables = self.rows[row_plan.sequence].tables
        for update in row_plan.blocks:
            table = tables[update.group]
            assert update.first <= len(table), "an update leaves a gap in a block table"
            assert update.blocks, "an update is empty"
            assert all(RELEASED <= block < self.num_blocks for block in update.blocks)
            table[update.first :] = update.blocks

    def fail(self, plan: StepPlan) -> None:
        """The plan fails: its rows are void, and what it was to write, nobody knows."""
        self.failing |= {sequence for row_plan in plan.rows for sequence in (row_plan.sequence, *row_plan.samples)}
        self.execute(plan)
        size = self.spec.block_size
        garbage = [-1] * size
        for row_plan in plan.rows:
            for position in range(row_plan.start, row_plan.start + row_plan.count):
                for table in self.rows[row_plan.sequence].tables:
                    self._memory[table[position // size]][position % size] = -1
        for written in [*plan.copies, *plan.swap_in]:
            self._memory[written.target if isinstance(written, BlockCopy) else written.block] = garbage.copy()
        for swap in plan.swap_out:
            self._host[swap.host] = garbage.copy()

    def _swap_blocks(self, plan: StepPlan) -> None:
        """A copy is gone once it has come back: what is read twice would be an error."""
        assert len({swap.host for swap in plan.swap_out}) == len(plan.swap_out), "two blocks have the same host block"
        assert len({swap.block for swap in plan.swap_in}) == len(plan.swap_in), "two host blocks have the same block"
        for swap in plan.swap_out:
            self._host[swap.host] = self._memory[swap.block].copy()
        for swap in plan.swap_in:
            self._memory[swap.block] = self._host[swap.host]
            self._host[swap.host] = [None] * self.spec.block_size

    def _copy_blocks(self, plan: StepPlan) -> None:
        targets = [copy.target for copy in plan.copies]
        assert len(set(targets)) == len(targets), "two copies have the same target"
        for copy in plan.copies:
            self._memory[copy.target] = self._memory[copy.source].copy()

    def _check_rows(self, plan: StepPlan) -> None:
        sequences = [row_plan.sequence for row_plan in plan.rows]
        assert len(set(sequences)) == len(sequences), "a sequence has two rows in one plan"
        written: set[int] = set()
        for row_plan in plan.rows:
            row = self.rows[row_plan.sequence]
            end = row_plan.start + row_plan.count
            assert row_plan.count >= 1
            assert end <= len(row.history.tokens), "a token is computed before it is known"
            assert row_plan.tokens == row.history.tokens[row_plan.start : row_plan.start + len(row_plan.tokens)]
            if len(row_plan.tokens) < row_plan.count:
                assert row_plan.source is not None and row_plan.source == row.last_sampled_in, "tokens from nowhere"
            else:
                assert row_plan.source is None
            sampling = row.begin.sampling
            last = end == len(row.history.tokens)
            generates = sampling.max_tokens != 0 and row.begin.pooling is None
            assert bool(row_plan.samples) == (last and generates), "only a last position is sampled"
            self._check_scores(row_plan, row)
            self._check_pooled(row_plan, row)
            if last and sampling.prompt_logprobs is not None and row.begin.forked_from is None:
                assert row.scored == row.prompt_length - 1, "a prompt is scored before anything is sampled"
            for block in self.blocks_written(row_plan):
                assert block != RELEASED, "a released block is written"
                assert block not in written, f"block {block} is written by two rows of one plan"
                written.add(block)

    def _check_scores(self, row_plan: RowPlan, row: Row) -> None:
        """Every position but the prompt's last is scored once, in order."""
        first, end = row_plan.scored
        if first == end:
            return
        assert row.begin.sampling.prompt_logprobs is not None, "nobody asked for scores"
        assert row.begin.forked_from is None, "a fork's prompt was scored with its origin's"
        assert row_plan.start <= first < end <= row_plan.start + row_plan.count
        assert first == row.scored and end < row.prompt_length
        row.scored = end

    def _check_pooled(self, row_plan: RowPlan, row: Row) -> None:
        """Every position that is asked for goes into the vector once, in order."""
        first, end = row_plan.pooled
        if first == end:
            return
        assert row.begin.pooling is not None, "nobody asked for a vector"
        assert row_plan.start <= first < end <= row_plan.start + row_plan.count
        if row.pooled is None:
            assert first == (row.prompt_length - 1 if row.begin.pooling == "last" else 0)
        else:
            assert first == row.pooled
        row.pooled = end

    def blocks_written(self, row_plan: RowPlan) -> list[int]:
        """The blocks that a row's new positions go to, over all groups."""
        size = self.spec.block_size
        first, last = row_plan.start // size, (row_plan.start + row_plan.count + row_plan.draft_depth - 1) // size
        tables = self.rows[row_plan.sequence].tables
        return [block for table in tables for block in table[first : last + 1]]

    def _read(self, row: Row, group: int, first: int, end: int) -> list[int | None]:
        """What the slots of positions `first` to `end - 1` hold, through the row's block table."""
        size = self.spec.block_size
        table = row.tables[group]
        assert -(-end // size) <= len(table), f"sequence {row.begin.sequence} has no block for position {end - 1}"
        content: list[int | None] = []
        for block in table[first // size : -(-end // size)]:
            assert block != RELEASED, f"sequence {row.begin.sequence} reads a released block of group {group}"
            content.extend(self._memory[block])
        return content[first % size : first % size + end - first]

    def _check_context(self, row_plan: RowPlan) -> None:
        row = self.rows[row_plan.sequence]
        if row_plan.sequence in self.failing:
            return
        for index, group in enumerate(self.spec.groups):
            first = first_visible(row_plan.start, group.window)
            content = self._read(row, index, first, row_plan.start)
            assert content == row.history.slots[index][first : row_plan.start], (
                f"sequence {row_plan.sequence} reads something else than its own KV in group {index}, "
                f"positions {first} to {row_plan.start - 1}"
            )

    def _guess(self, row_plan: RowPlan) -> History:
        """The row's tokens with up to as many behind them as may be drafted, most of them right."""
        row = self.rows[row_plan.sequence]
        guess = row.history.copy()
        for _ in range(self.luck.randint(0, row_plan.draft_depth)):
            position = len(guess.tokens) - 1
            visible = [
                guess.slots[index][first_visible(position, group.window) :]
                for index, group in enumerate(self.spec.groups)
            ]
            token = choose_token(visible, row.begin.sampling, row.begin.sample_index, position)
            guess.extend([token if self.luck.random() < 0.8 else (token + 1) % VOCABULARY])
        return guess

    def _write(self, row_plan: RowPlan, guess: History | None) -> None:
        row = self.rows[row_plan.sequence]
        size = self.spec.block_size
        history, end = row.history, row_plan.start + row_plan.count
        if guess is not None:
            history, end = guess, len(guess.tokens)
        for group, table in enumerate(row.tables):
            for position in range(row_plan.start, end):
                self._memory[table[position // size]][position % size] = history.slots[group][position]
        self.computed_tokens += end - row_plan.start

    def _results(self, row_plan: RowPlan, number: int) -> list[SampleResult]:
        """The row's tokens; its scores come with its own."""
        results = self._sample(row_plan, number)
        if row_plan.pooled[1]:
            return self._pool(row_plan)
        first, end = row_plan.scored
        if first == end:
            return results
        if row_plan.sequence in self.failing:
            return results or [SampleResult(row_plan.sequence, failed(FAILED))]
        row = self.rows[row_plan.sequence]
        scores = [
            score_token(self._visible(row, position), row.history.tokens[position + 1], position)
            for position in range(first, end)
        ]
        own, *others = results or [SampleResult(row_plan.sequence, Gained([]))]
        return [replace(own, gained=replace(own.gained, prompt_logprobs=scores)), *others]

    def _pool(self, row_plan: RowPlan) -> list[SampleResult]:
        """The row's vector, where it is complete."""
        row = self.rows[row_plan.sequence]
        first, end = row_plan.pooled
        for position in range(first, end):
            row.vector = pool_state(row.vector, self._visible(row, position), position)
        if end < row.prompt_length:
            return []
        if row_plan.sequence in self.failing:
            return [SampleResult(row_plan.sequence, failed(FAILED))]
        return [SampleResult(row_plan.sequence, Gained([], embedding=vector_of(row.vector)))]

    def _visible(self, row: Row, position: int) -> list[list[int]]:
        """What each group sees from a position, through the row's block tables."""
        return [
            list(map(int, self._read(row, index, first_visible(position, group.window), position + 1)))
            for index, group in enumerate(self.spec.groups)
        ]

    def _verify(self, row_plan: RowPlan, number: int) -> SampleResult:
        """The tokens of a row with drafts: those that are right, and the one behind them."""
        assert row_plan.samples == (row_plan.sequence,), "drafts are of one sequence"
        row = self.rows[row_plan.sequence]
        first = len(row.history.tokens)
        guessed = self._guesses[row_plan.sequence].tokens[first:]
        row.last_sampled_in = number
        if row_plan.sequence in self.failing:
            row.history.extend([0])
            return SampleResult(row_plan.sequence, failed(FAILED), drafted=len(guessed))
        sampling, tokens, stops = row.begin.sampling, [], False
        for guess in [*guessed, None]:
            position = first + len(tokens) - 1
            token = choose_token(self._visible(row, position), sampling, row.begin.sample_index, position)
            row.history.extend([token])
            tokens.append(token)
            output_length = len(row.history.tokens) - row.prompt_length
            stops = ends_output(token, sampling, row.begin.eos_token_ids, output_length)
            if stops or token != guess:
                break
        return SampleResult(row_plan.sequence, Gained(tokens, STOPPED if stops else None), drafted=len(guessed))

    def _sample(self, row_plan: RowPlan, number: int) -> list[SampleResult]:
        if not row_plan.samples:
            return []
        assert row_plan.samples[0] == row_plan.sequence, "a row samples for its own sequence first"
        if row_plan.draft_depth:
            return [self._verify(row_plan, number)]
        position = row_plan.start + row_plan.count - 1
        origin = self.rows[row_plan.sequence]
        visible = self._visible(origin, position)
        results = []
        for sequence in row_plan.samples:
            row = self.rows[sequence]
            if sequence in self.failing:
                # Plans that are outstanding already go on with the row; what comes of it is void.
                row.history.extend([0])
                row.last_sampled_in = number
                results.append(SampleResult(sequence, failed(FAILED)))
                continue
            sampling = row.begin.sampling
            token = choose_token(visible, sampling, row.begin.sample_index, position)
            row.history.extend([token])
            row.last_sampled_in = number
            output_length = len(row.history.tokens) - row.prompt_length
            stops = ends_output(token, sampling, row.begin.eos_token_ids, output_length)
            results.append(SampleResult(sequence, Gained([token], STOPPED if stops else None)))
        return results
