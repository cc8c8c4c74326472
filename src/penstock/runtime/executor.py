"""The executor that computes plans with a model: `execute(plan)` → tokens."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace
from torch import Tensor

from penstock.core.errors import RowFailed
from penstock.core.plan import BeginRow, RowPlan, SampleResult, StepPlan, StepResult
from penstock.core.sampling import SamplingParams
from penstock.kernels.batch import StepBatch
from penstock.runtime.device_memory import memory_may_end
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.runtime.gather import gather_batch, order_rows
from penstock.runtime.pooling import Pool
from penstock.runtime.storage import KVStorage
from penstock.runtime.tables import BlockTables
from penstock.sampling.grammar import Grammars
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Sampler
from penstock.speculation.branches import Branches, StepRow, places_of, shares
from penstock.speculation.proposer import NONE, Blocks, Learner, Proposal, Proposer, Wanted
from penstock.speculation.verifier import DraftedRow, verify
from penstock.text.reasoning_limit import ReasoningLimit
from penstock.text.stops import StopMatcher
from penstock.text.table import TokenStream, TokenTable


class Model(Protocol):
    """A compiled model: a ragged batch in, logits [logit rows, vocabulary] or hidden states [logit rows, width] out."""

    def run(self, batch: StepBatch) -> Tensor:
        """Compute one step; writes this step's keys and values into the KV storage."""

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and makes later steps faster; whether more is left."""

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """The same; all that it makes, where that is more: hidden states behind the logits."""


@dataclass(slots=True)
class _Row:
    """What the executor keeps for a sequence, from the plan that begins it to the plan that ends it.

    Attributes:
        table: its row of the block tables.
        tokens: its prompt, and what has come behind it.
        prompt: how many of them are the prompt.
    """

    table: int
    tokens: list[int]
    prompt: int
    state: RowState


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


class CompletedStep:
    """The handle of a step that was computed before `execute` returned."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        """The step's answer, at once."""
        return self._result


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
        self._rows: dict[int, _Row] = {}
        # Of the sequences that become vectors.
        self._pools: dict[int, Pool] = {}
        # Of the step under way.
        self._sampling_seconds = self._drafting_seconds = 0.0

    @memory_may_end()
    def execute(self, plan: StepPlan) -> CompletedStep:
        """Compute `plan` and return its handle. Effects in order: end rows, begin rows, copy blocks, compute.

        Raises StepOutOfMemory where a GPU's memory ended; then all of the plan's rows are to end, and others may go on.
        """
        started = time.perf_counter()
        for sequence in plan.end:
            self._pools.pop(sequence, None)
            row = self._rows.pop(sequence, None)
            # A row is not there where the plan that should have begun it failed.
            if row is not None:
                self._tables.close_row(row.table)
                if self._proposer is not None:
                    self._proposer.forget(sequence)
        for begin in plan.begin:
            self._begin(begin)
        for storage in self._storages:
            storage.copy_blocks(plan.copies)
        self._sampling_seconds = self._drafting_seconds = 0.0
        samples = tuple(self._compute(plan))
        seconds = time.perf_counter() - started
        return CompletedStep(StepResult(plan.number, samples, seconds, self._sampling_seconds, self._drafting_seconds))

    def use_idle_time(self) -> bool:
        """Do a piece of what can wait, and does not keep the next step waiting; whether more is left."""
        self._storage.use_idle_time()
        return self._model.use_idle_time()

    def warm_up(self) -> None:
        """Compute a token into a block that nobody holds yet, so that the first request need not pay for it."""
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
        self._rows[begin.sequence] = _Row(self._tables.open_row(), tokens, len(tokens), state)
        if begin.pooling is not None:
            self._pools[begin.sequence] = Pool()
        elif self._proposer is not None:
            self._proposer.begin(begin.sequence, tokens, begin.cache_salt)

    def _compute(self, plan: StepPlan) -> list[SampleResult]:
        if not self._pools:
            return self._generate(plan.rows)
        # Rows don't use one another's results, so that the two kinds can be computed one after the other.
        pooled = [planned for planned in plan.rows if planned.sequence in self._pools]
        others = [planned for planned in plan.rows if planned.sequence not in self._pools]
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
                tokens.append(self._rows[planned.sequence].tokens[-1])
        return gather_batch(plans, tokens, [row.table for row in rows], self._tables, self._groups, shared=shares(rows))

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
            assert self._make_encoder is not None, "nobody said how to compute hidden states"
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
