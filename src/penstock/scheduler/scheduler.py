"""The scheduler: `plan` says what the next step computes, `commit` takes in what came of it.

Iteration-level (continuous) batching as in Orca (Yu et al., OSDI 2022, section 3.1) over paged KV blocks as in
PagedAttention (Kwon et al., SOSP 2023, section 4), with chunked prefill mixed into decode steps as in Sarathi-Serve
(Agrawal et al., OSDI 2024, section 4).
"""

from collections import deque

from msgspec.structs import replace

from penstock.cache.manager import KVCache
from penstock.cache.swap import SwapSpace
from penstock.core.config import SchedulerConfig
from penstock.core.events import LoadSnapshot, SampleOutput
from penstock.core.facts import StepFacts
from penstock.core.plan import Ending, Gained, SampleResult, StepPlan, StepResult, failed
from penstock.core.request import Request
from penstock.scheduler.admission import check_request, limits_of
from penstock.scheduler.ahead import Ahead
from penstock.scheduler.beams import Beams
from penstock.scheduler.bounding import Bounding
from penstock.scheduler.budget import Allowances
from penstock.scheduler.depth import NO_DRAFTS, Depths, Tree
from penstock.scheduler.ends import Ends
from penstock.scheduler.entrance import Entrance
from penstock.scheduler.holding import Held, Holding
from penstock.scheduler.notes import Notes
from penstock.scheduler.pace import Pace, Rows
from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.room import Room
from penstock.scheduler.sequence import NO_STAMP, Sequence
from penstock.scheduler.stages import Stages
from penstock.scheduler.step_builder import PlannedRow, StepBuilder
from penstock.scheduler.totals import Totals

# Tokens of a step of an encoder's texts in the background, unless it has one that is longer.
_BACKGROUND_TEXTS = 512
_ORPHANED = "The computation of the prompt that this sample shares failed."
NOTHING = Gained([])
FULL = Ending("length")


class Scheduler:
    """Owns counters, blocks, budgets and order of all sequences.

    Progress: the first running sequence in the total order can have every block that later ones hold, the pool is
    larger than any one request, and its tenant has a share of every step, so it always computes something; it ends,
    and the next is first. Preempted sequences come before all new ones, and of these tenants take turns, so that each
    request is reached.

    Args:
        swap_blocks: how many blocks of preempted sequences can be swapped to the processor's memory.

    Attributes:
        facts: of the step that was committed last, but for its times.
    """

    def __init__(self, config: SchedulerConfig, cache: KVCache, swap_blocks: int = 0) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs, so that every sequence can decode")
        self.config = config
        self.cache = cache
        self._max_chunk = config.longest_chunk
        self.limits = limits_of(config, cache.spec, cache.pool.num_blocks)
        self._sequences: dict[int, Sequence] = {}
        self._requests: dict[int, list[Sequence]] = {}
        self._waiting = WaitingQueue()
        self._running = OrderedQueue()
        self._pace = Pace(config.target_itl, asked=config.bound_batch)
        self._rows = Rows(config.target_itl if config.bound_batch else None)
        self._depths = Depths(config)
        self._room = Room(config, cache, self._running, self._waiting, self._rows)
        self._bounding = Bounding(cache, self._max_chunk, self._waiting.charge)
        self._swap = SwapSpace(cache, swap_blocks)
        self._holding = Holding(cache, self._swap, self._room)
        self._entrance = Entrance(config, cache, self._waiting, self._running, self._room, self._holding, self._preempt)
        self._stages = Stages(config.stages, self._running, self._waiting)
        self._ahead = Ahead(config, cache, self._waiting, self._running)
        self._totals = Totals()
        self._ends = Ends(self._sequences, self._requests, self._waiting, self._running, self._holding)
        self._beams = Beams(
            config,
            cache,
            self._waiting,
            self._running,
            self._holding,
            self._ends,
            self._bounding,
            self._totals,
        )
        self._outstanding: deque[tuple[int, list[PlannedRow], StepFacts]] = deque()
        # Notes of the plan in the making; a sequence that was preempted for none is told with the next.
        self._notes = Notes()
        self.facts = StepFacts()
        self._next_sequence = 0
        self._next_plan = 0

    # Requests come and go.

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError, and changes nothing, where it could never be served."""
        check_request(request, self.limits)
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id} exists already")
        sequence = self._new_sequence(request, 0, (request.standing.priority, NO_STAMP, 0))
        sequence.tokens = [*request.prompt_token_ids, *request.output]
        self._requests[request.request_id] = [sequence]
        self._waiting.add(sequence, self._room.owed)

    def _new_sequence(self, request: Request, sample_index: int, order: tuple[int, int, int]) -> Sequence:
        bounded = self._bounding.begin(request)
        sequence = Sequence(
            id=self._next_sequence,
            request=request,
            sample_index=sample_index,
            order=order,
            tokens=[],
            prompt_length=len(request.prompt_token_ids),
            blocks=self._bounding.open(self._next_sequence, request, bounded),
            bounded=bounded,
            waits_for_tokens=self.config.stages > 1,
        )
        self._next_sequence += 1
        self._sequences[sequence.id] = sequence
        return sequence

    def abort(self, request_id: int) -> list[SampleOutput]:
        """End all samples of a request now, wherever they are; its blocks are free once outstanding plans commit."""
        return [
            output
            for sequence in self._requests.get(request_id, [])
            if not sequence.finished
            for output in self._ends.finish(sequence, Gained([], Ending("abort")))
        ]

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended, a plan has not committed, or a transfer is to begin or waited for."""
        return bool(self._requests or self._outstanding or self.cache.transfers.any_work)

    def requests_of(self, plan: StepPlan) -> frozenset[int]:
        """The requests that have a row in a plan which is not committed."""
        return frozenset(self._sequences[row.sequence].request.request_id for row in plan.rows)

    # Plan.

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None where nothing can be computed before an outstanding plan commits."""
        if len(self._outstanding) >= self.config.max_outstanding:
            raise RuntimeError(f"{len(self._outstanding)} plans are outstanding; commit one first")
        self._depths.begin(now)
        self.cache.tick(now)
        # Where nothing could be planned the last time, what was in the way may have gone.
        self._notes.held = None
        for sequence in self._holding.give_up_late():
            self._start_anew(sequence)
        self._entrance.yield_to_priority()
        decodes = sum(sequence.pending == 1 for sequence in self._running if not sequence.background)
        budget = self._pace.budget(self.config.max_num_batched_tokens, decodes, shared=self._waiting.shared)
        budget = self._stages.budget(budget, decodes)
        step = StepBuilder(self._next_plan, budget, self.config.max_scored_positions)
        self._plan_class(step, background=False)
        if not step.rows:
            most = _BACKGROUND_TEXTS if self.cache.spec.keeps_nothing else self.config.max_background_tokens
            budget = step.budget = min(step.budget, most)
            self._plan_class(step, background=True)
        while not step.rows and not self._outstanding and self._beams.block_each_other():
            self._preempt(self._running.last())
            for background in (False, True):
                self._plan_class(step, background=background)
        transfers, waits = self.cache.transfers, False
        if not step.rows and not transfers.any_queued:
            waits = transfers.any_awaited and not self._outstanding
            if not waits:
                return None
        self._next_plan += 1
        moved = transfers.take(step.number)
        facts = self._notes.facts(budget, moved, waiting=bool(self._waiting))
        self._outstanding.append((step.number, step.committed_by, facts))
        self._notes = Notes()
        return step.plan(self._ends.take(), moved, waits=waits)

    def _plan_class(self, step: StepBuilder, *, background: bool) -> None:
        """Rows for requests that a client waits for, or else for the others.

        They never share a step. Those in the background keep their blocks while they stand still, unless others need
        them, and their steps are short, because a request that comes meanwhile waits for the end of one.
        """
        running = [(sequence, sequence.pending) for sequence in self._running if sequence.background == background]
        running = self._stages.share(running)
        allowances = self._room.allowances(step, running, self._pace.least_shared(), background=background)
        self._plan_running(step, running, allowances)
        held = self._entrance.let_in(step, background, allowances, self._start)
        if self._notes.held in (None, "background"):
            self._notes.held = held

    def _plan_running(self, step: StepBuilder, running: list[tuple[Sequence, int]], allowances: Allowances) -> None:
        """Rows for running sequences in total order; a chunk leaves one token of budget to each later decode."""
        decodes_left = sum(pending == 1 for _, pending in running)
        drafts = self._drafts(running)
        for sequence, pending in running:
            if pending == 1:
                decodes_left -= 1
            if pending == 0 or not sequence.running:
                continue
            # A step in the background may be too short for every decode.
            most = step.budget if pending == 1 else step.budget - decodes_left
            count = min(pending, most, self._max_chunk)
            # A prompt's last position is never scored.
            if pending > 1:
                count = allowances.of(sequence, sequence.within_scores(count, step.scores))
                count = self.cache.chunk(sequence.reserved, count)
            if count > 0:
                count = self._bounding.make_room(sequence, count, step, self._notes, decodes_left)
            if count <= 0:
                continue
            tree = NO_DRAFTS
            if sequence.id in drafts:
                left = step.budget - decodes_left - count
                tree = drafts[sequence.id].within(min(left, sequence.tokens_left - 1), left)
            # No sequence loses blocks for drafts.
            if tree.depth > 0 and self._reserve(sequence, count, step, tree.depth) == 0:
                self._add_row(sequence, count, step, tree)
            elif self._reserve_or_preempt(sequence, count, step):
                self._add_row(sequence, count, step)
                if pending > 1:
                    allowances.take(sequence, count)

    def _drafts(self, running: list[tuple[Sequence, int]]) -> dict[int, Tree]:
        """What may be drafted for running sequences in this step, for those for whom anything may."""
        if not self.config.draft_depth:
            return {}
        decoding = [
            each
            for each, pending in running
            if pending == 1 and each.output_length and each.bounded is None and not each.beam
        ]
        chosen = self._depths.choose(decoding)
        return chosen if chosen and self._room.for_drafts(pending for _, pending in running) else {}

    def _reserve_or_preempt(self, sequence: Sequence, count: int, step: StepBuilder) -> bool:
        """Reserve slots, taking blocks from later sequences if need be. False: it stands still for this step."""
        while True:
            missing = self._reserve(sequence, count, step)
            if missing == 0:
                return True
            # Blocks of outstanding plans and transfers come back: wait for them instead of preempting for more.
            if missing <= self.cache.pool.num_retiring + self.cache.transfers.returning:
                return False
            victim = self._running.last()
            if victim is sequence:
                # Alone and with nothing to wait for, it holds a published block that it has to write and cannot copy.
                # It starts again from the prefix cache, where admission sees to that.
                if len(self._running) == 1 and not self._outstanding:
                    self._preempt(sequence)
                return False
            self._preempt(victim)

    def _reserve(self, sequence: Sequence, count: int, step: StepBuilder, drafts: int = 0) -> int:
        """Slots for `count` positions, and for `drafts` that may be wrong; returns how many blocks are missing."""
        start = sequence.reserved
        return self.cache.reserve(
            sequence.blocks,
            start,
            start + count + drafts,
            plan=step.number,
            until=sequence.last_plan,
            drafts=drafts > 0,
        )

    def _preempt(self, victim: Sequence) -> None:
        """Take all blocks from a running sequence; it goes back to its old place.

        Its KV is swapped out, or else computed again later.
        """
        kept = self._holding.set_aside(victim)
        self._give_up(victim)
        self._totals.preemptions += 1
        self._notes.preemption(victim, refused=not kept)

    def _give_up(self, sequence: Sequence) -> None:
        """A running sequence has nothing any more, and goes back to its old place."""
        self._running.remove(sequence)
        sequence.running = False
        self.cache.free(sequence.blocks, until=sequence.last_plan)
        sequence.computed = sequence.reserved = 0
        sequence.forgotten, sequence.bounded = sequence.dropped, self._bounding.begin(sequence.request)
        sequence.epoch += 1
        sequence.waits = 0
        self._holding.forget_load(sequence)
        self._waiting.add(sequence)

    def _start_anew(self, sequence: Sequence) -> None:
        """What a sequence waited for has not come: it is let in again, with what there is."""
        self._give_up(sequence)
        self._waiting.charge(sequence, prompt=sequence.lose_hit())

    def _add_row(self, sequence: Sequence, count: int, step: StepBuilder, tree: Tree = NO_DRAFTS) -> None:
        end = sequence.reserved + count
        self.cache.announce(sequence.blocks, sequence.reserved, end)
        samples: tuple[Sequence, ...] = ()
        if sequence.max_tokens and end == sequence.expected:
            samples = self._samples_of(sequence, step)
        encodes = len(sequence.request.source) if self.cache.sources.encode(sequence.blocks) else 0
        self._notes.row(sequence, count, len(samples), encodes)
        blocks, dropped = self.cache.take_updates(sequence.blocks), self._bounding.dropped(sequence)
        step.add(sequence, count, samples, blocks, tree, self._depths.text_only, dropped, encodes)

    def _samples_of(self, sequence: Sequence, step: StepBuilder) -> tuple[Sequence, ...]:
        """The sequences that get a token from the row's last position: this one, and its forks at their first token."""
        request = sequence.request
        members = self._requests[request.request_id]
        if len(members) > 1 or request.sequences == 1:
            return (sequence,)
        for sample_index in range(1, request.sequences):
            fork = self._new_sequence(request, sample_index, (*sequence.order[:2], sample_index))
            fork.tokens = sequence.tokens.copy()
            fork.begun = True
            fork.computed_once = fork.prompt_length
            self._waiting.join(fork)
            fork.cached_tokens = sequence.cached_tokens
            fork.reported = fork.encoded = True
            fork.resting = fork.beam
            fork.extracted = fork.to_extract
            members.append(fork)
            step.start(fork, forked_from=sequence.id)
        return tuple(members)

    def _start(self, sequence: Sequence, held: Held, most: int, step: StepBuilder) -> int:
        """Move a waiting sequence into the batch with its first chunk, of up to `most` positions beside its source.

        Returns how many positions are computed.
        """
        sequence.computed = sequence.reserved = held.tokens
        charged = sequence.prompt_left if sequence.admitted else 0
        sequence.computed_before = sequence.computed_once
        sequence.computed_once = max(sequence.computed_once, held.tokens)
        sequence.encoded = sequence.encoded or sequence.blocks.encoded
        self._waiting.charge(sequence, prompt=sequence.prompt_left - charged)
        count = sequence.within_scores(min(sequence.pending, most), step.scores)
        count = self._bounding.make_room(sequence, self.cache.chunk(sequence.reserved, count), step, self._notes)
        # Before its own blocks take the place of those that tell why it found no more.
        self._notes.admission(sequence, self.cache, held)
        if held.loading is not None:
            # Its first chunk is planned once that has come.
            self._holding.expect(sequence, held.loading)
            count = 0
        elif self._reserve(sequence, count, step):
            raise RuntimeError(f"sequence {sequence.id} was admitted without blocks for its first chunk")
        self._waiting.admit(sequence)
        self._running.add(sequence)
        sequence.running = True
        if sequence.cached_tokens is None:
            sequence.cached_tokens = held.cached
            sequence.looked_up = len(sequence.request.source) or (len(sequence.tokens) if sequence.cacheable else 0)
            self._holding.look_for_kept(sequence)
        if not sequence.begun:
            sequence.begun = True
            step.start(sequence)
        if count:
            self._add_row(sequence, count, step)
            count += step.rows[-1].encodes
        return count

    def most_steps(self) -> int:
        """How many steps the newest plan can stand for, if no request comes or goes meanwhile; at least itself."""
        _, rows, facts = self._outstanding[-1]
        return self._ahead.most(rows, facts) if len(self._outstanding) == 1 else 1

    def extended(self, plan: StepPlan, steps: int) -> StepPlan:
        """The newest plan for `steps` steps, at most `most_steps()`: each row gets as many tokens."""
        self._ahead.extend(self._outstanding[-1][1], plan.number, steps)
        return replace(plan, steps=steps)

    # Commit.

    def commit(self, plan: StepPlan, result: StepResult) -> list[SampleOutput]:
        """Take in the result of the oldest outstanding plan; returns what requests gained by it."""
        if not self._outstanding or self._outstanding[0][0] != plan.number or result.number != plan.number:
            raise RuntimeError(f"plan {plan.number} is committed with result {result.number} out of order")
        _, rows, self.facts = self._outstanding.popleft()
        answers = {answer.sequence: answer for answer in result.samples}
        outputs: list[SampleOutput] = []
        for row in rows:
            if row.sequence.finished:
                # Where it failed before it forked, its forks have nothing to go on from.
                answers |= {fork.id: SampleResult(fork.id, failed(_ORPHANED)) for fork in row.samples[1:]}
            for sequence in row.samples:
                sequence.in_flight -= plan.steps
                answer = answers.get(sequence.id)
                if answer is not None and not sequence.finished:
                    sequence.tokens.extend(answer.gained.tokens)
            if not result.failed:
                self._advance(row, answers.get(row.sequence.id))
            if len(row.samples) > 1 and not row.sequence.beam:
                self._place_forks(row)
            for sequence in row.samples or (row.sequence,):
                answer = answers.get(sequence.id)
                if not sequence.finished:
                    outputs += self._take(sequence, answer, row.end)
        outputs += self._beams.commit(result.beams)
        for row in rows:
            if row.sequence.last_plan == plan.number:
                row.sequence.last_plan = None
        self.cache.pool.retire(plan.number)
        self._bounding.settle(plan.rows, result.attended, self._sequences)
        # Sequences to which their state did not come whole compute it again.
        for sequence in self._holding.settle(plan, result):
            self._start_anew(sequence)
        self.facts = self._holding.tell(self.facts)
        if plan.rows:
            self._measured(plan, result)
        self._totals.steps += plan.steps
        return outputs

    def _measured(self, plan: StepPlan, result: StepResult) -> None:
        """What the step tells of how long steps take."""
        self.facts = replace(self.facts, drafts=self._depths.measured(plan, result))
        self._pace.measured(plan, result.seconds)
        self.cache.measured(self.facts.chunk_tokens, result.seconds)
        seconds = result.seconds / plan.steps
        self._rows.measured(len(plan.rows), plan.num_tokens + self.facts.drafted, seconds, plan.steps)

    def _advance(self, row: PlannedRow, answer: SampleResult | None) -> None:
        """The KV of the row, and of its drafts that were right, is valid now.

        It is not where its sequence ended, or lost its blocks since it was planned, unless they were swapped out, or
        where the row failed.
        """
        sequence, end = row.sequence, row.end
        if row.depth:
            sequence.drafting = 0
            end += self._depths.judged(sequence, answer, text_only=row.text_only)
        if sequence.finished:
            return
        # The prefix cache must not have what was perhaps not computed.
        ending = None if answer is None else answer.gained.ending
        if ending is not None and ending.reason == "error":
            return
        if sequence.epoch != row.epoch:
            self._totals.computed(sequence, row.end, min(row.end, sequence.swapped_tokens))
            return
        self._totals.computed(sequence, sequence.computed, end)
        if row.encodes:
            self._totals.encoded(sequence, row.encodes)
        sequence.computed = end
        if row.depth:
            # What comes of all tokens together goes back to before the drafts where one of them was wrong.
            end = sequence.computed = sequence.reserved = self.cache.roll_back(sequence.blocks, end, until=None)
        self.cache.settle(sequence.blocks)
        self.cache.publish(sequence.blocks, sequence.tokens, end, until=sequence.last_plan)
        self._holding.keep(sequence)

    def _place_forks(self, row: PlannedRow) -> None:
        """Let forks share the prompt's blocks; where the batch is full, they queue and hit them in the prefix cache."""
        parent = row.sequence
        for fork in row.samples[1:]:
            if fork.finished:
                continue
            blocks = None
            if parent.running and parent.epoch == row.epoch and len(self._running) < self._room.rows:
                blocks = self.cache.fork(parent.blocks, fork.id, row.end)
            if blocks is not None:
                fork.blocks = blocks
                fork.computed = fork.reserved = row.end
                fork.running = True
                self._running.add(fork)
            else:
                self._waiting.add(fork)

    def _take(self, sequence: Sequence, answer: SampleResult | None, end: int) -> list[SampleOutput]:
        """Tell of a sequence's new tokens, and end it where they, its length or an error say so.

        There is no answer to a row that neither samples nor scores. `end` is the position behind the row.
        """
        gained = NOTHING if answer is None else answer.gained
        if answer is not None:
            self._totals.decode_tokens += len(gained.tokens)
            self._waiting.charge(sequence, output=len(gained.tokens))
        # Where nothing is generated, the prompt's end is the output's.
        full = sequence.output_length >= sequence.max_tokens and end >= sequence.prompt_length
        if full and gained.ending is None:
            gained = replace(gained, ending=FULL)
        if gained.ending is not None:
            return self._ends.finish(sequence, gained)
        return [] if answer is None else [sequence.output(gained)]

    # What others may know.

    def snapshot(self) -> LoadSnapshot:
        """State and totals after the newest commit."""
        return self._totals.snapshot(self.cache, self._swap, self._running, self._waiting)

    def check(self) -> None:
        """Raise RuntimeError where an invariant is broken; for tests and for the idle engine."""
        self._holding.check(self._sequences.values())
        if not self.has_work and (self.cache.pool.num_used or self._swap.num_used):
            raise RuntimeError("blocks are in use although nothing runs")
