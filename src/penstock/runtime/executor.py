"""The executor that computes plans with a model: `execute(plan)` → tokens.

On a device, a step whose tokens can be chosen there is launched, and the next one behind it with tokens that are not
known here yet: what the host does for one step is done while the device computes the next.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace
from torch import Tensor

from penstock.core.errors import RowFailed
from penstock.core.plan import BeginRow, RowPlan, SampleResult, StepPlan, StepResult
from penstock.core.sampling import SamplingParams
from penstock.kernels.batch import StepBatch
from penstock.runtime.device_memory import memory_may_end
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.runtime.handles import CompletedStep, LaunchedStep, PostponedStep, Row
from penstock.runtime.pooling import Pool
from penstock.runtime.storage import KVStorage
from penstock.sampling.grammar import Grammars
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Place, Sampler, take
from penstock.speculation.branches import Branches
from penstock.speculation.proposer import NONE, Learner, Proposal, Proposer, Wanted
from penstock.speculation.verifier import DraftedRow, verify
from penstock.stepping.gather import gather_batch, order_rows
from penstock.stepping.model import Model
from penstock.stepping.rows import StepRow, places_of, shares
from penstock.stepping.storage import Blocks
from penstock.stepping.tables import BlockTables
from penstock.text.reasoning_limit import ReasoningLimit
from penstock.text.stops import StopMatcher
from penstock.text.table import TokenStream, TokenTable


class _StopSearch:
    """Looks for a row's stop strings in its text, with the bytes and the matcher that the detokenizer uses too."""

    def __init__(self, table: TokenTable, params: SamplingParams) -> None:
        self._stream = TokenStream(table, params.skip_special_tokens, params.kept_special_tokens)
        self._matcher = StopMatcher(params.stop, params.min_tokens)

    def find(self, token: int) -> str | None:
        """Take the next token; the stop string that it completes, if any."""
        return self._matcher.feed(self._stream.next(token))


def _fresh_blocks(row: RowPlan, block_size: int) -> list[int]:
    """Blocks in a row's changes that hold nothing of its context yet: those that begin at or behind `start`."""
    first = -(-row.start // block_size)
    return [block for change in row.blocks for block in change.blocks[max(0, first - change.first) :]]


class ModelExecutor:
    """Owns everything that is a function of token values: sampling state, block table arrays, KV memory.

    Args:
        model: what computes a step's logits.
        storage, tables: where keys and values are, and in which blocks each row's.
        table: without one, rows cannot have stop strings or a budget of reasoning.
        grammars: without them, no row can have one.
        encoder: makes the model whose result is hidden states; called once, when the first are asked for.
        proposer: drafts what plans allow to be drafted; without one, nothing is.
        branches: where branches of trees of drafts are computed; without it, drafts are chains.
        rejects: drafts are accepted by rejection sampling, not coupled; see `speculation/verifier.py`.
    """

    def __init__(
        self,
        model: Model,
        storage: KVStorage | DeviceKVStorage,
        tables: BlockTables,
        sampler: Sampler,
        table: TokenTable | None,
        grammars: Grammars | None = None,
        encoder: Callable[[], Model] | None = None,
        proposer: Proposer | None = None,
        branches: Branches | None = None,
        *,
        rejects: bool = False,
    ) -> None:
        self._rejects = rejects
        self._model = model
        self._make_encoder = encoder
        self._encoder: Model | None = None
        self._storage = storage
        self._storages: list[Blocks] = [storage]
        if proposer is not None:
            self._storages += proposer.storages
        self._groups = tuple(range(len(storage.spec.groups)))
        self._sampler = sampler
        self._table = table
        self._grammars = grammars
        self._proposer = proposer
        self._branches = branches or Branches(storage, tables, len(storage.spec.groups), most=0)
        self._learner: Learner | None = proposer if isinstance(proposer, Learner) else None
        self._tables = tables
        self._rows: dict[int, Row] = {}
        # The sums for sequences that become vectors.
        self._pools: dict[int, Pool] = {}
        # Seconds of the step under way.
        self._sampling_seconds = self._drafting_seconds = 0.0
        # Steps that the device is computing, the oldest first.
        self._launched: deque[LaunchedStep] = deque()
        # Sequences that have ended, or lost a step, before the plans were made that say so: what these compute is void.
        self._over: set[int] = set()
        # When the newest step that was waited for was over.
        self._waited = 0.0

    @memory_may_end()
    def execute(self, plan: StepPlan) -> CompletedStep | PostponedStep | LaunchedStep:
        """Compute `plan`, or begin to, and return its handle. Handles are to be asked for their results in order.

        Effects in order: end rows, begin rows, swap, copy blocks, compute. A step whose tokens cannot be chosen on the
        device is computed when all before it have been finished.

        Raises StepOutOfMemory where a GPU's memory ended; then all of the plan's rows are to end, and others may go on.
        """
        started = time.perf_counter()
        for sequence in plan.end:
            self._over.discard(sequence)
            self._pools.pop(sequence, None)
            row = self._rows.pop(sequence, None)
            # A row is not there where the plan that should have begun it failed.
            if row is not None:
                self._tables.close_row(row.table)
                if self._proposer is not None:
                    self._proposer.forget(sequence)
        for begin in plan.begin:
            self._begin(begin)
        # Where an engine was interrupted, it has not asked for the results of what was launched before.
        while len(self._launched) > 1:
            self._finish_oldest()
        if self._can_launch(plan):
            return self._launch(plan, started)
        if self._launched:
            return PostponedStep(lambda: self._complete(plan, time.perf_counter()))
        return CompletedStep(self._complete(plan, started))

    @memory_may_end()
    def _complete(self, plan: StepPlan, started: float) -> StepResult:
        """Compute the step from its copies to its tokens."""
        while self._launched:
            self._finish_oldest()
        self._move_blocks(plan)
        self._sampling_seconds = self._drafting_seconds = 0.0
        if self._over:
            self._end_forks(plan)
        rows = [row for row in plan.rows if row.sequence not in self._over] if self._over else plan.rows
        samples = tuple(self._compute(rows)) if rows else ()
        seconds = time.perf_counter() - started
        return StepResult(plan.number, samples, seconds, self._sampling_seconds, self._drafting_seconds)

    def _move_blocks(self, plan: StepPlan) -> None:
        if plan.swap_out or plan.swap_in:
            self._storage.swap(plan.swap_out, plan.swap_in)
        for storage in self._storages:
            storage.copy_blocks(plan.copies)

    def _can_launch(self, plan: StepPlan) -> bool:
        """Whether nothing of the step has to be known here before the next one is begun."""
        if self._proposer is not None or not self._sampler.is_elsewhere:
            return False
        return all(
            row.scored[0] == row.scored[1]
            and row.sequence not in self._pools
            and all(self._sampler.can_begin(self._rows[sample].state) for sample in row.samples)
            for row in plan.rows
        )

    def _launch(self, plan: StepPlan, started: float) -> LaunchedStep:
        """Let the device compute the step behind the one that it computes now."""
        self._move_blocks(plan)
        self._place(plan.rows)
        rows = order_rows(plan.rows)
        logits = self._model.run(self._gather([StepRow(row, self._rows[row.sequence].table) for row in rows]))
        before = self._launched[-1].sampled if self._launched else {}
        sampled: dict[int, Row] = {}
        places: list[Place] = []
        for logits_row, row in enumerate(row for row in rows if row.samples):
            for sample in row.samples:
                sampled[sample] = self._rows[sample]
                places.append(Place(sampled[sample].state, logits_row, ahead=int(sample in before)))
        step = LaunchedStep(plan, sampled, self._sampler.begin(logits, places), started, self._finish)
        self._launched.append(step)
        return step

    def _finish(self, step: LaunchedStep) -> None:
        """Wait for a step, and for those before it."""
        while step in self._launched:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        """Wait for the oldest step that was launched; what goes wrong is told by its handle."""
        step = self._launched.popleft()
        try:
            step.answer = self._answer(step)
        except BaseException as error:
            step.error = error
            # Behind a step that failed, nothing can be made of what it should have computed.
            lost = {*step.sampled, *(row.sequence for row in step.plan.rows)}
            self._over.update(lost.intersection(self._rows))
            if not isinstance(error, Exception):
                raise

    def _answer(self, step: LaunchedStep) -> StepResult:
        """Give the rows their tokens, but for those that are void."""
        chosen = step.chosen.read()
        over = time.perf_counter()
        # While the device computed the step before, it did not compute this one.
        seconds, self._waited = over - max(step.started, self._waited), over
        self._end_forks(step.plan)
        results: list[SampleResult] = []
        for (sequence, row), one in zip(step.sampled.items(), chosen, strict=True):
            if self._is_void(sequence):
                continue
            result = take(row.state, one)
            row.tokens += result.tokens
            if result.finish is not None:
                self._over.add(sequence)
            results.append(result)
        return StepResult(step.plan.number, tuple(results), seconds, time.perf_counter() - over)

    def _is_void(self, sequence: int) -> bool:
        """Whether it has ended since the step was planned; of one that a plan has ended, there is no row any more."""
        return sequence in self._over or sequence not in self._rows

    def _end_forks(self, plan: StepPlan) -> None:
        """What was to fork from a sequence whose prompt was not computed is void too; the scheduler ends it."""
        void = [row for row in plan.rows if len(row.samples) > 1 and self._is_void(row.sequence)]
        self._over.update(sample for row in void for sample in row.samples if sample in self._rows)

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and does not keep the next step waiting; whether more is left."""
        self._storage.use_idle_time()
        return self._model.use_idle_time()

    def warm_up(self) -> None:
        """Compute a token into a block that no sequence holds yet, so that the first request need not pay for it."""
        row = RowPlan(0, 0, 1, [0], None, (0,), ())
        batch = gather_batch([row], [0], [0], self._tables, self._groups)
        self._model.run(batch)

    def _begin(self, begin: BeginRow) -> None:
        tokens = list(begin.prompt_token_ids)
        if begin.forked_from is not None:
            # It forks in the step that computes the prompt's end, so that nothing has come yet.
            tokens = list(self._rows[begin.forked_from].tokens)
        params = begin.sampling
        stops = None
        if params.stop and self._table is not None:
            stops = _StopSearch(self._table, params)
        grammar = None
        if params.grammar is not None and self._grammars is not None:
            grammar = self._grammars.matcher(params.grammar)
        reasoning = None
        if params.reasoning_budget is not None and self._table is not None:
            stream = TokenStream(self._table, params.skip_special_tokens, params.kept_special_tokens)
            reasoning = ReasoningLimit(params.reasoning_budget, stream)
        state = RowState(begin, tokens, stops=stops, grammar=grammar, reasoning=reasoning)
        self._rows[begin.sequence] = Row(self._tables.open_row(), tokens, len(tokens), state)
        if begin.pooling is not None:
            self._pools[begin.sequence] = Pool()
        elif self._proposer is not None:
            self._proposer.begin(begin.sequence, tokens, begin.cache_salt)

    def _compute(self, rows: Sequence[RowPlan]) -> list[SampleResult]:
        if not self._pools:
            return self._generate(rows)
        # Rows don't use one another's results, so that the two kinds can be computed one after the other.
        pooled = [planned for planned in rows if planned.sequence in self._pools]
        others = [planned for planned in rows if planned.sequence not in self._pools]
        return [*(self._generate(others) if others else ()), *(self._pool(pooled) if pooled else ())]

    def _generate(self, planned: Sequence[RowPlan]) -> list[SampleResult]:
        self._place(planned)
        tables = [self._rows[row.sequence].table for row in planned]
        drafts = self._propose(planned, tables)
        rows, drafts = self._branches.lay_out(planned, tables, drafts)
        logits, *states = self._model.results(self._gather(rows))
        started = time.perf_counter()
        results = self._sample(rows, logits, drafts, *states)
        self._sampling_seconds = time.perf_counter() - started
        return results

    def _place(self, planned: Sequence[RowPlan]) -> None:
        """Take over what the plan says of the rows' block tables."""
        fresh: list[int] = []
        for row in planned:
            if row.blocks:
                self._tables.update(self._rows[row.sequence].table, row.blocks)
                fresh += _fresh_blocks(row, self._tables.block_size)
        if fresh:
            # Attention hides what is behind a row's context by a weight of 0, and 0 · NaN is NaN: a request whose
            # values broke must not leave them to the next holder of its blocks.
            for storage in self._storages:
                storage.clear_blocks(fresh)

    def _propose(self, planned: Sequence[RowPlan], tables: Sequence[int]) -> dict[int, Proposal]:
        """What may come next in the rows that are to have drafts, by their sequences."""
        if self._proposer is None:
            return {}
        started = time.perf_counter()
        placed = [(row, table) for row, table in zip(planned, tables, strict=True) if row.blocks]
        if placed:
            self._proposer.follow(placed)
        wanted = [
            Wanted(
                row.sequence, row.draft_depth, self._rows[row.sequence].state, table, (), row.draft_width, row.text_only
            )
            for row, table in zip(planned, tables, strict=True)
            if row.draft_depth
        ]
        if not wanted:
            return {}
        drafts = self._proposer.propose(wanted)
        self._drafting_seconds = time.perf_counter() - started
        return {row.sequence: proposal for row, proposal in zip(wanted, drafts, strict=True)}

    def _gather(self, rows: list[StepRow]) -> StepBatch:
        """The batch of the step's rows, or some of them, which are ordered."""
        plans = [row.plan for row in rows]
        tokens: list[int] = []
        for planned in plans:
            tokens.extend(planned.tokens)
            if planned.source is not None:
                tokens.append(self._newest_token(planned.sequence, planned.source))
        tables = [row.table for row in rows]
        batch = gather_batch(plans, tokens, tables, self._tables, self._groups, shared=shares(rows))
        return dataclasses.replace(batch, carried=self._launched[-1].tokens) if min(tokens) < 0 else batch

    def _newest_token(self, sequence: int, source: int) -> int:
        """The token that the plan `source` has yielded, or where it will be, as `StepBatch` says."""
        if self._launched and self._launched[-1].plan.number == source:
            return -1 - self._launched[-1].place_of(sequence)
        return self._rows[sequence].tokens[-1]

    def _show(self, learner: Learner, rows: list[StepRow], states: Tensor, paths: Mapping[int, Sequence[int]]) -> None:
        """Show the learner the states of each row, in whose order they are, up to the last draft that was right."""
        whole = learner.states == "all"
        counts = [row.plan.count if whole else row.logit_rows for row in rows]
        places = places_of(rows, counts)
        end = 0
        for row, count in zip(rows, counts, strict=True):
            end += count
            plan, sequence = row.plan, row.plan.sequence
            if row.before is not None or not (whole or plan.samples):
                continue
            known = end - len(row.drafts)
            first = end - count if whole else known - 1
            position = plan.start + plan.count - len(row.drafts) - (known - first)
            seen = [*range(first, known), *(places[sequence, draft] for draft in paths.get(sequence, ()))]
            together = seen[-1] - first == len(seen) - 1
            learner.see(sequence, position, states[first : seen[-1] + 1] if together else states[seen])
            for sample in plan.samples:
                if sample != sequence:
                    learner.see(sample, plan.start + plan.count - 1, states[known - 1 : known])

    def _pool(self, planned: Sequence[RowPlan]) -> list[SampleResult]:
        """Add the rows' hidden states to their vectors; a result for each that is complete, or cannot be."""
        if self._encoder is None:
            assert self._make_encoder is not None, "no encoder was given to compute hidden states"
            self._encoder = self._make_encoder()
        self._place(planned)
        rows = order_rows(planned)
        tables = [self._rows[row.sequence].table for row in rows]
        states = self._encoder.run(self._gather([StepRow(row, table) for row, table in zip(rows, tables, strict=True)]))
        results = []
        place = 0
        for row in rows:
            count = row.pooled[1] - row.pooled[0]
            pool = self._pools[row.sequence]
            pool.add(states[place : place + count])
            place += count
            if row.pooled[1] == self._rows[row.sequence].prompt:
                results.append(_vector(row.sequence, pool))
        return results

    def _sample(
        self, rows: list[StepRow], logits: Tensor, drafts: Mapping[int, Proposal], *states: Tensor
    ) -> list[SampleResult]:
        """Results of the rows that sample or score; their logits, and states, are in the order of `gather_batch`."""
        asked: list[DraftedRow] = []
        scores: dict[int, SampleResult] = {}
        # Where drafts are chains, their logits follow one another.
        trees = any(row.before is not None for row in rows)
        places = places_of(rows, [row.logit_rows for row in rows]) if trees else {}
        end = 0
        for row in rows:
            first, end = end, end + row.logit_rows
            planned, sequence = row.plan, row.plan.sequence
            if row.before is not None:
                continue
            if count := planned.scored[1] - planned.scored[0]:
                scores[sequence] = self._score(planned, logits[first : first + count])
            if planned.samples:
                guessed, newest = drafts.get(sequence, NONE), end - 1 - len(row.drafts)
                behind = [places[sequence, draft] for draft in range(len(guessed.tokens))] if trees else None
                asked += [
                    DraftedRow(self._rows[sample].state, newest, *guessed, rows=behind) for sample in planned.samples
                ]
        results = verify(self._sampler, logits, asked, rejects=self._rejects)
        paths = {row.state.sequence: row.path for row in asked if row.path}
        if trees:
            self._keep_branches(rows, paths)
        if self._learner is not None:
            self._show(self._learner, rows, states[0], paths)
        for result in results:
            if result.tokens:
                self._rows[result.sequence].tokens += result.tokens
                if self._proposer is not None and (self._learner is not None or result.sequence in drafts):
                    self._proposer.observe(result.sequence, len(result.tokens))
        return _with_scores(results, scores) if scores else results

    def _keep_branches(self, rows: list[StepRow], paths: Mapping[int, Sequence[int]]) -> None:
        """Where another branch than the likeliest was right, its keys and values are the sequence's."""
        for row in rows:
            path = paths.get(row.plan.sequence)
            if row.before is not None and path and path[-1] in row.drafts:
                newest = row.plan.start - 1 - len(row.before)
                self._branches.keep(row, self._rows[row.plan.sequence].table, newest, len(path))

    def _score(self, planned: RowPlan, logits: Tensor) -> SampleResult:
        """How likely the prompt's tokens behind the row's scored positions were, `logits` being these positions'."""
        row = self._rows[planned.sequence]
        first, end = planned.scored
        try:
            scores = self._sampler.score(logits, row.tokens[first + 1 : end + 1], row.state.params.prompt_logprobs or 0)
        except RowFailed as failure:
            return SampleResult(planned.sequence, [], "error", error=failure.message)
        return SampleResult(planned.sequence, [], prompt_logprobs=scores)


def _vector(sequence: int, pool: Pool) -> SampleResult:
    try:
        return SampleResult(sequence, [], embedding=pool.vector())
    except RowFailed as failure:
        return SampleResult(sequence, [], "error", error=failure.message)


def _with_scores(results: list[SampleResult], scores: dict[int, SampleResult]) -> list[SampleResult]:
    """One result for each sequence that has a token, scores or both; one whose scores failed has failed."""
    merged = []
    for result in results:
        scored = scores.pop(result.sequence, None)
        if scored is None:
            merged.append(result)
        elif scored.finish is not None:
            merged.append(scored)
        else:
            merged.append(replace(result, prompt_logprobs=scored.prompt_logprobs))
    return [*merged, *scores.values()]
