"""The scripted executor: it runs the made-up model, and reads all that the model sees from its KV blocks.

It simulates the memory of the KV cache. Whatever a row may attend to is read back through the row's own block tables,
so that a wrong block, a hit on a block that was not computed, a stale copy or a reuse that came too early trips an
assertion or changes the output.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.core.kv import KVSpec
from penstock.core.plan import (
    SHELVES,
    Attended,
    BeamStep,
    BeginRow,
    Ending,
    Gained,
    RowPlan,
    SampleResult,
    ShelfName,
    Shelved,
    StepPlan,
    StepResult,
    Transfer,
    TransferResult,
    failed,
)
from support.made_up_model import (
    VOCABULARY,
    History,
    choose_token,
    ends_output,
    history_of,
    part_of,
    pool_state,
    score_token,
    seen,
    vector_of,
)
from support.scripted_beams import ScriptedBeams, likely_tokens
from support.scripted_rows import RELEASED, Row, dropped_of, indices_of, positions_written, slots_of

FAILED = "The scripted row failed."
STOPPED = Ending("stop")


@dataclass
class ScriptedExecutor:
    """Executes plans on simulated KV memory of `num_blocks` blocks, and of `swap_blocks` and `host_blocks` beside them.

    Rows of the sequences in `failing` yield an error instead of their next token. Where drafts are wanted, `luck` says
    how many there are and which are wrong. Transfers between memories are over with their plan, unless `late` says
    which are over later, and which have failed. `shelves` have what was written there, by group and key, also for
    others, and `news` are to be told of them; until when slots are `kept` there counts from `now`. Where it never
    `answers`, no transfer is over; `seconds` says how long each took.
    """

    spec: KVSpec
    num_blocks: int
    failing: set[int] = field(default_factory=set)
    luck: random.Random = field(default_factory=lambda: random.Random(0))
    swap_blocks: int = 0
    host_blocks: int = 0
    late: random.Random | None = None
    shelves: dict[ShelfName, dict[tuple[int, bytes], list[list[int | None]]]] = field(default_factory=dict)
    news: list[Shelved] = field(default_factory=list)
    answers: bool = True
    now: float = 0.0
    kept: dict[tuple[int, bytes], float] = field(default_factory=dict)
    seconds: Callable[[Transfer], float] = lambda transfer: 0.0

    def __post_init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.computed_tokens = 0
        self._memory: list[list[int | None]] = [[None] * self.spec.block_size for _ in range(self.num_blocks)]
        self._host: list[list[int | None]] = [
            [None] * self.spec.block_size for _ in range(self.swap_blocks + self.host_blocks)
        ]
        self._stores = {"pool": self._memory, "host": self._host}
        self._seen: set[int] = set()
        self._beams = ScriptedBeams(random.Random(0))
        # Rows that were planned before their beams got other branches.
        self._void: set[int] = set()
        self._next_number = 0
        self._guesses: dict[int, History] = {}
        # Transfers between memories, and what those out of the pool have read.
        self._under_way: list[tuple[Transfer, list[list[int | None]] | None]] = []

    def execute(self, plan: StepPlan, *, fails: bool = False) -> StepResult:
        """Run one plan, with the order of effects that a plan promises."""
        assert plan.number == self._next_number, f"plan {plan.number} came instead of {self._next_number}"
        self._next_number += 1
        for sequence in plan.end:
            assert sequence in self.rows, f"sequence {sequence} ends and has no row"
            del self.rows[sequence]
            self._beams.end(sequence)
        for begin in plan.begin:
            self._begin(begin)
            self._beams.begin(begin)
        self._void = {row_plan.sequence for row_plan in plan.rows if self._is_void(row_plan, plan.number)}
        # A plan that fails is carried out beside what is under way, which goes on.
        waits = plan.waits and (self._under_way or fails)
        assert plan.rows or plan.transfers or waits, "a plan has nothing to do"
        self._begin_transfers(plan, fails=fails)
        reported = self._finish_transfers(plan) if self.late is None else ()
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
        beams = () if fails else self._go_on(plan.number)
        reported = reported or self._finish_transfers(plan)
        if fails:
            return StepResult(plan.number, tuple(results))
        attended = tuple(self._attended(row_plan) for row_plan in plan.rows if row_plan.weighed)
        return StepResult(plan.number, tuple(results), transfers=reported, attended=attended, beams=beams)

    def _is_void(self, row_plan: RowPlan, number: int) -> bool:
        """Whether its beam has got another branch since it was planned, which is the case in plans made ahead only."""
        if row_plan.sequence not in self._beams:
            return False
        own = self.rows[row_plan.sequence].history.tokens[row_plan.start : row_plan.start + row_plan.count]
        return own != row_plan.tokens and self._has_moved(row_plan.sequence, number)

    def _has_moved(self, sequence: int, number: int) -> bool:
        """Whether a beam may have got another branch since plan `number` was made."""
        return 0 < number - self._beams.moved.get(sequence, -9) < 3

    def _go_on(self, number: int) -> tuple[BeamStep, ...]:
        """Beams that are in new places."""
        histories = {sequence: row.history for sequence, row in self.rows.items()}
        steps = tuple(self._beams.steps(histories, number))
        for step in steps:
            for branch in step.branches:
                self.rows[branch.sequence].history = histories[branch.sequence]
        return steps

    def _attended(self, row_plan: RowPlan) -> Attended:
        """Some attention to each slot."""
        assert row_plan.weighed <= row_plan.count
        ends = [row_plan.start + row_plan.count - dropped_of(row_plan, group) for group in range(len(self.spec.groups))]
        slots = [-(-end // self.spec.block_size) for end in ends]
        return Attended(row_plan.sequence, [[self.luck.random() for _ in range(count)] for count in slots])

    def _begin(self, begin: BeginRow) -> None:
        assert begin.sequence not in self._seen, f"sequence {begin.sequence} begins twice"
        self._seen.add(begin.sequence)
        if begin.forked_from is None:
            assert begin.prompt_token_ids, f"sequence {begin.sequence} begins without a prompt"
            assert bool(begin.source) == (self.spec.source_group is not None)
            history = history_of(self.spec, begin.source)
            history.extend([*begin.prompt_token_ids, *begin.output])
        else:
            assert not begin.prompt_token_ids and not begin.source, "a fork takes the prompt of its origin"
            parent = self.rows[begin.forked_from]
            assert len(parent.history.tokens) == parent.prompt_length, "a fork starts at the first token"
            history = parent.history.copy()
        tables: list[list[tuple[int, ...]]] = [[] for _ in self.spec.groups]
        self.rows[begin.sequence] = Row(begin, history, len(history.tokens) - len(begin.output), tables)

    def _update_tables(self, row_plan: RowPlan) -> None:
        assert row_plan.sequence in self.rows, f"sequence {row_plan.sequence} is computed and has no row"
        tables = self.rows[row_plan.sequence].tables
        for update in row_plan.blocks:
            table = tables[update.group]
            assert update.first <= len(table), "an update leaves a gap in a block table"
            assert update.blocks, "an update is empty"
            assert all(RELEASED <= block < self.num_blocks for block in update.blocks)
            table[update.first :] = slots_of(update.blocks, self.spec.groups[update.group].width)

    def fail(self, plan: StepPlan) -> None:
        """The plan fails: its rows are void, and what it was to write, nobody knows."""
        self.failing |= {sequence for row_plan in plan.rows for sequence in (row_plan.sequence, *row_plan.samples)}
        under_way, self._under_way = self._under_way, []
        self.execute(plan, fails=True)
        self._under_way = under_way
        size = self.spec.block_size
        for row_plan in plan.rows:
            tables = zip(self.spec.groups, self.rows[row_plan.sequence].tables, strict=True)
            for number, (group, table) in enumerate(tables):
                record = group.record_interval is not None
                for position in positions_written(group, row_plan, row_plan.start + row_plan.count):
                    place = position - dropped_of(row_plan, number)
                    for part, block in enumerate(table[0 if record else place // size]):
                        self._memory[block][0 if record else place % size] = part_of(-1, part)
        for transfer in plan.transfers:
            self._spoil(transfer)

    def _spoil(self, transfer: Transfer) -> None:
        for block in transfer.target.blocks:
            self._stores[transfer.target.store][block] = [-1] * self.spec.block_size

    def _begin_transfers(self, plan: StepPlan, *, fails: bool) -> None:
        """Those out of the pool read what they copy at once."""
        for transfer in plan.transfers:
            source, target = transfer.source, transfer.target
            for place in (source, target):
                width = 0 if place.store in SHELVES else self.spec.groups[transfer.group].width
                assert len(place.blocks) == width
                assert bool(place.key) == (place.store in SHELVES) or place.store == "host"
            # What is on its way is no other transfer's target, and what comes in is not in the host's memory any more.
            busy = {(each.target.store, block) for each, _ in self._under_way for block in each.target.blocks}
            busy |= {
                (each.source.store, block)
                for each, read in self._under_way
                if read is None
                for block in each.source.blocks
            }
            assert not busy & {(target.store, block) for block in target.blocks}, "two transfers have the same target"
            if source.store == target.store == "pool" or fails:
                continue
            read = [self._memory[block].copy() for block in source.blocks] if source.store == "pool" else None
            self._under_way.append((transfer, read))

    def _finish_transfers(self, plan: StepPlan) -> tuple[TransferResult, ...]:
        """Report those that are over: copies within the pool, and of the others all, or some."""
        reports = [
            TransferResult(transfer.id, done=True)
            for transfer in plan.transfers
            if transfer.source.store == transfer.target.store == "pool"
        ]
        for number, (transfer, read) in enumerate(tuple(self._under_way) if self.answers else ()):
            first = plan.waits and number == 0
            if self.late is not None and not first and self.late.random() < 0.7:
                continue
            name = transfer.group, transfer.target.key
            if transfer.keep:
                # It comes behind what was to be written before.
                if not any((each.group, each.target.key) == name and not each.keep for each, _ in self._under_way):
                    self._under_way.remove((transfer, read))
                    done = name in self.shelves[transfer.shelf]
                    if done:
                        self.kept[name] = max(self.kept.get(name, 0.0), self.now + transfer.keep)
                    reports.append(TransferResult(transfer.id, done))
                continue
            self._under_way.remove((transfer, read))
            done = self.late is None or self.late.random() < 0.9
            content = read if read is not None else self._content(transfer)
            done = done and content is not None
            if done and transfer.target.store in SHELVES:
                self.shelves[transfer.target.store][name] = content
            elif done:
                target = self._stores[transfer.target.store]
                for block, held in zip(transfer.target.blocks, content, strict=True):
                    target[block] = held.copy()
            else:
                self._spoil(transfer)
            reports.append(TransferResult(transfer.id, done, self.seconds(transfer)))
        return tuple(reports)

    def _content(self, transfer: Transfer) -> list[list[int | None]] | None:
        """What is in the source of a transfer to the pool; None where a shelf has it not."""
        source = transfer.source
        if source.store in SHELVES:
            return self.shelves[source.store].get((transfer.group, source.key))
        return [self._stores[source.store][block].copy() for block in source.blocks]

    def _copy_blocks(self, plan: StepPlan) -> None:
        pairs = plan.pairs("pool", "pool")
        assert len({target for _, target in pairs}) == len(pairs), "two copies have the same target"
        for source, target in pairs:
            self._memory[target] = self._memory[source].copy()

    def _check_rows(self, plan: StepPlan) -> None:
        sequences = [row_plan.sequence for row_plan in plan.rows]
        assert len(set(sequences)) == len(sequences), "a sequence has two rows in one plan"
        written: set[int] = set()
        for row_plan in plan.rows:
            row = self.rows[row_plan.sequence]
            if row_plan.sequence in self._void:
                continue
            row.check_tokens(row_plan)
            sampling = row.begin.sampling
            end = row_plan.start + row_plan.count
            last = end == len(row.history.tokens) and not row.computes_again(row_plan)
            generates = sampling.max_tokens != 0 and row.begin.pooling is None
            # What was a beam's last position when this was planned may be one before it now.
            last = last or (bool(row_plan.samples) and self._has_moved(row_plan.sequence, plan.number))
            assert bool(row_plan.samples) == (last and generates), "only a last position is sampled"
            row.check_scores(row_plan)
            row.check_pooled(row_plan)
            if last and sampling.prompt_logprobs is not None and row.begin.forked_from is None:
                assert row.scored == row.prompt_length - 1, "a prompt is scored before anything is sampled"
            for block in self.blocks_written(row_plan):
                assert block != RELEASED, "a released block is written"
                assert block not in written, f"block {block} is written by two rows of one plan"
                written.add(block)

    def blocks_written(self, row_plan: RowPlan) -> list[int]:
        """The blocks that a row's new positions go to, over all groups."""
        tables = zip(self.spec.groups, self.rows[row_plan.sequence].tables, strict=True)
        return [
            block
            for number, (group, table) in enumerate(tables)
            for slot in (
                table[:1] if group.record_interval is not None else table[indices_of(self.spec, row_plan, number)]
            )
            for block in slot
        ]

    def _read(self, row: Row, group: int, positions: Sequence[int]) -> list[int | None]:
        """What the slots of some positions hold, through the row's block table, in all of their blocks alike."""
        size, record = self.spec.block_size, self.spec.groups[group].record_interval is not None
        table, content = row.tables[group], list[int | None]()
        looked_at, blocks = -1, list[list[int | None]]()
        for position in positions:
            index, place = (0, 0) if record else (position // size, position % size)
            if index != looked_at:
                assert index < len(table), f"sequence {row.begin.sequence} has no slot for position {position}"
                slot = table[index]
                assert RELEASED not in slot, f"sequence {row.begin.sequence} reads a released block of group {group}"
                looked_at, blocks = index, [self._memory[block] for block in slot]
            first = blocks[0][place]
            if first is not None:
                for part in range(1, len(blocks)):
                    assert blocks[part][place] == part_of(first, part)
            content.append(first)
        return content

    def _check_context(self, row_plan: RowPlan) -> None:
        row = self.rows[row_plan.sequence]
        if row_plan.sequence in self.failing or row_plan.sequence in self._void:
            return
        for index, group in enumerate(self.spec.groups):
            if dropped_of(row_plan, index):
                self._check_what_is_left(row, index, row_plan.start - row_plan.dropped[index])
                continue
            if row_plan.encodes and group.sees.source:
                continue
            # What the first position reads of those before it, and of its source.
            positions = seen(group, row_plan.start, len(row.history.source))
            if not group.sees.source:
                positions = [position for position in positions if position < row_plan.start]
            if group.record_interval is not None and row_plan.start:
                positions = [row_plan.start - 1]
            content = self._read(row, index, positions)
            assert content == [row.history.slots[index][position] for position in positions], (
                f"sequence {row_plan.sequence} reads something else than its own KV in group {index}, "
                f"positions {positions}"
            )

    def _check_what_is_left(self, row: Row, group: int, places: int) -> None:
        """Its slots have whole slots of its own tokens, in their order."""
        size, own = self.spec.block_size, row.history.slots[group]
        content = self._read(row, group, range(places))
        found = -1
        for first in range(0, places, size):
            held = content[first : first + size]
            found = next(
                (i for i in range(found + 1, -(-len(own) // size)) if own[i * size :][: len(held)] == held), -1
            )
            assert found >= 0, f"sequence {row.begin.sequence} reads something else than its own KV in group {group}"

    def _guess(self, row_plan: RowPlan) -> History:
        """The row's tokens with up to as many behind them as may be drafted, most of them right."""
        row = self.rows[row_plan.sequence]
        guess = row.history.copy()
        for _ in range(self.luck.randint(0, row_plan.draft_depth)):
            position = len(guess.tokens) - 1
            visible = guess.seen_from(self.spec, position)
            token = choose_token(visible, row.begin.sampling, row.begin.sample_index, position)
            guess.extend([token if self.luck.random() < 0.8 else (token + 1) % VOCABULARY])
        return guess

    def _write(self, row_plan: RowPlan, guess: History | None) -> None:
        row = self.rows[row_plan.sequence]
        size = self.spec.block_size
        history, end = row.history, row_plan.start + row_plan.count
        if guess is not None:
            history, end = guess, len(guess.tokens)
        first, again = row.first_token(row_plan), row.computes_again(row_plan)
        for group, table in enumerate(row.tables):
            spec = self.spec.groups[group]
            record, origin = spec.record_interval is not None, 0 if spec.sees.source else first - row_plan.start
            for position in positions_written(spec, row_plan, end):
                place = position - dropped_of(row_plan, group)
                for part, block in enumerate(table[0 if record else place // size]):
                    content = -1
                    if row_plan.sequence not in self._void:
                        content = part_of(history.slots[group][origin + position], part)
                    self._memory[block][0 if record else place % size] = content
        assert row_plan.encodes in (0, len(history.source)), "a source is encoded whole"
        self.computed_tokens += end - row_plan.start + row_plan.encodes
        row.computed = row.computed if again else end

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
            score_token(self._visible(row, position, row_plan), row.history.tokens[position + 1], position)
            for position in range(first, end)
        ]
        own, *others = results or [SampleResult(row_plan.sequence, Gained([]))]
        return [replace(own, gained=replace(own.gained, prompt_logprobs=scores)), *others]

    def _pool(self, row_plan: RowPlan) -> list[SampleResult]:
        """The row's vector, where it is complete."""
        row = self.rows[row_plan.sequence]
        first, end = row_plan.pooled
        for position in range(first, end):
            row.vector = pool_state(row.vector, self._visible(row, position, row_plan), position)
        if end < row.prompt_length:
            return []
        if row_plan.sequence in self.failing:
            return [SampleResult(row_plan.sequence, failed(FAILED))]
        return [SampleResult(row_plan.sequence, Gained([], embedding=vector_of(row.vector)))]

    def _visible(self, row: Row, position: int, row_plan: RowPlan) -> list[list[int]]:
        """What each group sees from a position of a row, through the row's block tables.

        Of a record, what it came to on the way: what it came from has been looked at.
        """
        source = len(row.history.source)
        return [
            [row.history.slots[index][position]]
            if group.record_interval is not None
            else list(map(int, self._read(row, index, seen(group, position - dropped_of(row_plan, index), source))))
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
            visible = self._visible(row, position, row_plan)
            token = choose_token(visible, sampling, row.begin.sample_index, position)
            row.history.extend([token])
            tokens.append(token)
            output_length = len(row.history.tokens) - row.prompt_length
            stops = ends_output(token, sampling, row.begin.eos_token_ids, output_length)
            if stops or token != guess:
                break
        return SampleResult(row_plan.sequence, Gained(tokens, STOPPED if stops else None), drafted=len(guessed))

    def _sample(self, row_plan: RowPlan, number: int) -> list[SampleResult]:
        if not row_plan.samples or row_plan.sequence in self._void:
            return []
        assert row_plan.samples[0] == row_plan.sequence, "a row samples for its own sequence first"
        if row_plan.draft_depth:
            return [self._verify(row_plan, number)]
        position = row_plan.start + row_plan.count - 1
        origin = self.rows[row_plan.sequence]
        is_beam = row_plan.sequence in self._beams
        if is_beam and row_plan.sequence in self.failing:
            return [SampleResult(row_plan.sequence, failed(FAILED))]
        visible = self._visible(origin, position, row_plan)
        if is_beam:
            likely = likely_tokens(visible, origin.begin.sampling, position)
            # Before it had another branch, it was computed to its end: nobody asks for that.
            if position + 1 == len(origin.history.tokens):
                self._beams.take(row_plan.sequence, likely)
            return []
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
