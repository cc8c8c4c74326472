"""A scheduler and a scripted executor in one deterministic loop, checked after every plan and every commit."""

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens

import msgspec

from penstock.cache.chain import KeyFunction
from penstock.cache.keeps import Keeps
from penstock.cache.shelf import Shelf
from penstock.core.beam_search import BeamSearch
from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.events import KeptTokens, SampleOutput
from penstock.core.facts import StepFacts
from penstock.core.kv import KVSpec
from penstock.core.kv_policy import KVPolicy
from penstock.core.plan import FinishReason, Gained, ShelfName, StepPlan, TokenLogprobs
from penstock.core.request import KeptPrefix, Request, Standing
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling
from penstock.engine.core import failed_step
from penstock.scheduler.build import build_scheduler
from penstock.scheduler.sequence import Sequence
from support.endings import finish_of
from support.made_up_model import expected_output, expected_scores, expected_vector, kv_spec
from support.scripted import ScriptedExecutor
from support.scripted_beams import expected_beams
from support.scripted_rows import slots_written

Sample = tuple[int, int]
Disk = dict[tuple[int, bytes], list[list[int | None]]]
"""What was written to a shelf, by group and key."""


def make_request(
    request_id: int,
    prompt: list[int],
    max_tokens: int = 8,
    *,
    n: int = 1,
    beam: BeamSearch | None = None,
    priority: int = 0,
    tenant: str = "",
    weight: float = 1.0,
    salt: str = "",
    eos: tuple[int, ...] = (),
    seed: int = 0,
    prompt_logprobs: int | None = None,
    pooling: Pooling | None = None,
    keep: tuple[KeptPrefix, ...] = (),
    kv_policy: KVPolicy | None = None,
    keep_whole: float = 0.0,
    source: Tokens[int] = (),
) -> Request:
    """A request with resolved parameters."""
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(n=n, max_tokens=max_tokens, seed=seed, prompt_logprobs=prompt_logprobs, beam=beam),
        eos_token_ids=eos,
        standing=Standing(priority=priority, tenant=tenant, weight=weight, cache_salt=salt),
        pooling=pooling,
        keep=keep,
        kv_policy=kv_policy,
        keep_whole=keep_whole,
        source=tuple(source),
    )


def config(max_num_seqs: int = 8, budget: int = 32, **options: float) -> SchedulerConfig:
    """Limits of a small scheduler."""
    limits = {"max_model_len": 4096} | options
    return SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **limits)


def prompt(length: int, start: int = 0) -> list[int]:
    """`length` different tokens."""
    return list(range(start, start + length))


class Simulation:
    """Runs requests to their end. Every method raises AssertionError where a promise is broken.

    Attributes:
        outputs: tokens by (request id, sample index), in the order of the events.
        scores: what came of scored prompts, by request id.
        vectors: those of requests that ask for one, by request id.
        dropped: how many tokens of a request's context were dropped, by request id.
        told_dropped: how many events of a sample told of that.
        finishes: how each sample ended.
        plans, facts: every plan so far, and the facts of those that were committed.
        seconds: what the scheduler is told of how long a step took.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 4,
        windows: tuple[int | None, ...] = (None,),
        spec: KVSpec | None = None,
        config: SchedulerConfig | None = None,
        prefix_caching: bool = True,
        key_of: KeyFunction | None = None,
        kept_share: float = 0.0,
        swap_blocks: int = 0,
        host_blocks: int = 0,
        late: random.Random | None = None,
        disk: Disk | None = None,
        shared: Disk | None = None,
        most_writing: int = 1000,
        keeps: Keeps | None = None,
        seconds: Callable[[StepPlan], float] = lambda plan: 0.0,
    ) -> None:
        self.seconds = seconds
        self.spec = spec or kv_spec(block_size, windows)
        self.config = config or SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32, max_model_len=512)
        memory = CacheConfig(
            self.spec,
            num_blocks,
            prefix_caching=prefix_caching,
            kept_share=kept_share,
            swap_blocks=swap_blocks,
            host_blocks=host_blocks,
        )
        self.scheduler = build_scheduler(self.config, memory, key_of=key_of)
        self.cache = self.scheduler.cache
        self.now = 0.0
        self.kept: dict[int, KeptTokens] = {}
        self.executor = ScriptedExecutor(
            self.spec, num_blocks, swap_blocks=swap_blocks, host_blocks=host_blocks, late=late
        )
        named: dict[ShelfName, Disk | None] = {"disk": disk, "shared": shared}
        self.executor.shelves = {name: each for name, each in named.items() if each is not None}
        transfers = self.cache.transfers
        shelves = [
            Shelf(name, transfers, each, most_writing, keeps if name == "disk" else None)
            for name, each in self.executor.shelves.items()
        ]
        if shelves:
            self.cache.put_on(shelves)
        self.requests: dict[int, Request] = {}
        self.outputs: dict[Sample, list[int]] = {}
        self.scores: dict[int, list[TokenLogprobs]] = {}
        self.vectors: dict[int, bytes] = {}
        self.finishes: dict[Sample, FinishReason] = {}
        self.cached_tokens: dict[int, int] = {}
        self.dropped: dict[int, int] = {}
        self.told_dropped: Counter[Sample] = Counter()
        self.plans: list[StepPlan] = []
        self.facts: list[StepFacts] = []
        self._found: dict[int, list[Gained]] = {}
        self._outstanding: deque[StepPlan] = deque()
        self._trace = hashlib.blake2b()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StepPlan)

    def submit(self, *requests: Request) -> None:
        """Add requests, in order."""
        for request in requests:
            self.scheduler.add(request)
            self.requests[request.request_id] = request
        self.check()

    def abort(self, request_id: int) -> None:
        """Abort a request, whatever its state."""
        self._absorb(self.scheduler.abort(request_id))
        self.check()

    def plan(self) -> StepPlan | None:
        """Make one plan; it stays outstanding."""
        # Those that wait for what they hold may be told that it does not come.
        before = [(sequence, sequence.epoch) for sequence in self.running() if not sequence.loading]
        self.now += 1.0
        self.executor.now = self.now
        self.cache.shelves.told(self.executor.news)
        self.executor.news.clear()
        plan = self.scheduler.plan(self.now)
        self._check_preemptions(before, plan)
        if plan is not None:
            encoded = self._encoder.encode(plan)
            self._trace.update(encoded)
            assert self._decoder.decode(encoded) == plan, "a plan survives serialization"
            self._check_plan(plan)
            known = all(row.source is None for row in plan.rows)
            assert known or self.config.stages == 1, "a stage is given a token that is not known"
            self._outstanding.append(plan)
            self.plans.append(plan)
        self.check()
        return plan

    def commit(self, *, fails: bool = False) -> list[SampleOutput]:
        """Execute and commit the oldest outstanding plan; or it fails."""
        plan = self._outstanding.popleft()
        if fails:
            self.executor.fail(plan)
            answer = failed_step(plan, RuntimeError("the step failed"))
        else:
            answer = msgspec.structs.replace(self.executor.execute(plan), seconds=self.seconds(plan))
        events = self.scheduler.commit(plan, answer)
        self._check_facts(plan, self.scheduler.facts)
        self.facts.append(self.scheduler.facts)
        self._absorb(events)
        self.check()
        return events

    def _check_facts(self, plan: StepPlan, facts: StepFacts) -> None:
        """What is told of a plan is what it was."""
        assert facts.rows == len(plan.rows) == facts.decodes + len(facts.chunks)
        assert facts.decodes + facts.chunk_tokens == plan.num_tokens
        assert plan.num_tokens <= facts.budget or ends_with_a_source(plan)
        assert facts.chunk_tokens == sum(chunk.count for chunk in facts.chunks)
        assert facts.sampled == sum(len(row.samples) for row in plan.rows)
        assert facts.context >= facts.decodes
        swapped = [each for each in plan.transfers if not (each.source.key or each.target.key)]
        assert facts.swapped_out == sum(len(each.target.blocks) for each in swapped if each.target.store == "host")
        assert facts.swapped_in == sum(len(each.source.blocks) for each in swapped if each.source.store == "host")
        assert facts.not_swapped <= len(facts.preempted)
        for fact in facts.admissions:
            tiers = fact.prefix.tiers
            assert not tiers or sum(each.tokens for each in tiers) == fact.prefix.found
            assert all((each.left > 0) == (each.why_left is not None) for each in tiers)
        for came in [each for fact in facts.fetched for each in fact.came]:
            assert came.left == 0 or came.why_left in ("failed", "late")
        assert facts.accepted <= facts.drafted <= sum(row.draft_depth for row in plan.rows)

    def step(self, *, fails: bool = False) -> bool:
        """Plan as far ahead as allowed and commit one plan, which may fail. False: there is nothing to do."""
        while len(self._outstanding) < self.config.max_outstanding:
            if self.plan() is None:
                break
        if not self._outstanding:
            assert not self.unfinished(), "idle with work that could be done"
            return False
        self.commit(fails=fails)
        return True

    def run(self, max_steps: int = 5000) -> None:
        """Step until everything has ended, and check what came out."""
        steps = 0
        while self.step():
            steps += 1
            assert steps <= max_steps, f"no end after {max_steps} steps"
        self.check_idle()
        self.check_outputs()

    def running(self) -> list[Sequence]:
        """Sequences in the batch, in total order."""
        return sorted((s for s in self.sequences() if s.running), key=lambda sequence: sequence.order)

    def sequences(self) -> list[Sequence]:
        """All sequences that have not ended."""
        return list(self.scheduler._sequences.values())

    def unfinished(self) -> list[Sample]:
        """Samples that still owe their final event."""
        return [
            (request.request_id, index)
            for request in self.requests.values()
            for index in range(request.sampling.n)
            if (request.request_id, index) not in self.finishes
        ]

    @property
    def outstanding(self) -> int:
        """Plans that were made and not committed."""
        return len(self._outstanding)

    def trace(self) -> str:
        """A hash of all plans so far."""
        return self._trace.hexdigest()

    def _absorb(self, events: list[SampleOutput]) -> None:
        for event in events:
            sample = (event.request_id, event.sample_index)
            assert event.request_id in self.requests
            assert sample not in self.finishes, f"sample {sample} has an event after its last"
            gained = event.gained
            self.outputs.setdefault(sample, []).extend(gained.tokens)
            if gained.prompt_logprobs is not None:
                assert event.sample_index == 0, "the first sample carries the prompt's scores"
                assert len(self.outputs[sample]) == len(gained.tokens), "scores come before a second token"
                self.scores.setdefault(event.request_id, []).extend(gained.prompt_logprobs)
            if gained.embedding is not None:
                assert finish_of(gained) == "length", "a vector is a request's last event"
                self.vectors[event.request_id] = gained.embedding
            says = gained.tokens or gained.ending is not None or gained.prompt_logprobs or gained.searched
            assert says, "an event says nothing"
            assert not gained.searched or self.requests[event.request_id].sampling.beam is not None
            if event.kept is not None:
                wanted = self.requests[event.request_id].keep
                assert event.request_id not in self.kept, "what is kept is told once"
                # A plan that was outstanding when the sequence lost its blocks still gives it a token.
                if self.config.max_outstanding == 1:
                    assert len(event.kept.now) == len(wanted), "all of the prompt is computed at its first token"
                assert not any(tokens % self.spec.block_size for tokens in (event.kept.before, *event.kept.now))
                assert all(now <= prefix.tokens for now, prefix in zip(event.kept.now, wanted, strict=False))
                self.kept[event.request_id] = event.kept
            if event.cached_tokens is not None:
                assert event.request_id not in self.cached_tokens, "cached tokens are told once"
                self.cached_tokens[event.request_id] = event.cached_tokens
            told = self.dropped.get(event.request_id, 0)
            assert event.dropped == 0 or event.dropped > told or sample[1] > 0, "what was told is told again"
            self.dropped[event.request_id] = max(told, event.dropped)
            self.told_dropped[sample] += event.dropped > 0
            if gained.ending is not None:
                self.finishes[sample] = gained.ending.reason

    # What must hold.

    def check(self) -> None:
        """Block and request accounting."""
        pool = self.cache.pool
        self.scheduler.check()
        if not self._outstanding:
            assert not self.cache.index._pending, "a key is pending and nobody computes it"
        for sequence in self.sequences():
            most = None if sequence.bounded is None else sequence.bounded.most
            for group, table in zip(self.spec.groups, sequence.blocks.tables, strict=True):
                if most is not None and group.is_whole:
                    assert len(table.slots) * self.spec.block_size <= most, "a sequence holds more than its policy says"
        used = sum(len(pool.blocks_of(slot)) for slot, references in enumerate(pool._references) if references > 0)
        assert pool.num_free + used + pool.num_cached + pool.num_retiring == pool.num_blocks
        load = self.scheduler.snapshot()
        assert load.blocks_used == used + pool.num_retiring
        assert load.blocks_free + load.blocks_used + load.blocks_cached == load.blocks_total == pool.num_blocks
        assert load.running == len(self.running()) <= self.config.max_num_seqs
        assert {s.request.request_id for s in self.sequences()} == {request_id for request_id, _ in self.unfinished()}

    def check_idle(self) -> None:
        """Nothing is left behind."""
        pool = self.cache.pool
        assert not self.scheduler.has_work
        assert not self.unfinished()
        assert pool.num_used == pool.num_retiring == 0
        assert pool.num_free + pool.num_cached == pool.num_blocks
        published = [slot for slot in range(pool.num_blocks) if self.cache.index.is_published(slot)]
        assert sum(len(pool.blocks_of(slot)) for slot in published) == pool.num_cached
        load = self.scheduler.snapshot()
        assert load.running == load.waiting == load.waiting_tokens == load.blocks_used == load.swap_blocks_used == 0

    def check_outputs(self) -> None:
        """Every token is what the request alone determines."""
        for (request_id, index), output in self.outputs.items():
            request = self.requests[request_id]
            if request.pooling is not None:
                assert not output
                if self.finishes.get((request_id, index)) == "length":
                    assert self.vectors[request_id] == expected_vector(self.spec, request)
                continue
            if request.sampling.beam is not None:
                if (reason := self.finishes.get((request_id, index))) in ("abort", None):
                    assert not output
                elif reason != "error":
                    found = self._expected_beams(request)[index]
                    assert found.ending is not None and (output, reason) == (found.tokens, found.ending.reason)
                continue
            expected, finish = expected_output(
                self.spec, request.prompt_token_ids, request.sampling, index, request.eos_token_ids, request.source
            )
            output = [*request.output, *output]
            reason = self.finishes.get((request_id, index))
            if self.dropped[request_id]:
                # What it was depends on when slots were dropped.
                assert reason != "length" or len(output) == request.max_tokens
                continue
            if reason in ("abort", "error", None):
                assert output == expected[: len(output)]
            else:
                assert (output, reason) == (expected, finish)
        for request_id, request in self.requests.items():
            self._check_scores(request_id, request)

    def _expected_beams(self, request: Request) -> list[Gained]:
        if request.request_id not in self._found:
            self._found[request.request_id] = expected_beams(self.spec, request)
        return self._found[request.request_id]

    def _check_scores(self, request_id: int, request: Request) -> None:
        """Every prompt token is scored once, in order, where that is asked for and the request lived for it."""
        found = self.scores.get(request_id, [])
        wanted = request.sampling.prompt_logprobs is not None
        if self.dropped.get(request_id):
            return
        expected = expected_scores(self.spec, request.prompt_token_ids, request.source) if wanted else []
        assert found == expected[: len(found)]
        if self.outputs.get((request_id, 0)) or self.finishes.get((request_id, 0)) in ("stop", "length"):
            assert found == expected

    def _check_plan(self, plan: StepPlan) -> None:
        drafts = sum(row.draft_depth + row.draft_width for row in plan.rows)
        assert plan.num_tokens + drafts <= self.config.max_num_batched_tokens or ends_with_a_source(plan)
        assert plan.rows or plan.transfers or plan.waits
        assert not plan.waits or not (plan.rows or plan.transfers or self._outstanding)
        assert len(plan.rows) <= self.config.max_num_seqs
        assert sum(row.scored[1] - row.scored[0] for row in plan.rows) <= self.config.max_scored_positions
        assert plan.number == (self.plans[-1].number + 1 if self.plans else 0)
        by_id = {sequence.id: sequence for sequence in self.sequences()}
        for row in plan.rows:
            for slot in slots_written(self.spec, by_id[row.sequence].blocks, row):
                assert self.cache.pool.is_writable(slot), f"slot {slot} is written but shared or published"

    def _check_preemptions(self, before: list[tuple[Sequence, int]], plan: StepPlan | None) -> None:
        """Victims are the last in the total order, and never the first of all unfinished sequences."""
        victims = [sequence.order for sequence, epoch in before if sequence.epoch != epoch]
        kept = [sequence.order for sequence, epoch in before if sequence.epoch == epoch]
        if not victims:
            return
        assert all(order < min(victims) for order in kept), "someone was preempted for a later request"
        if self.config.max_outstanding == 1:
            assert min(victims) > min(sequence.order for sequence in self.sequences()), "the head was preempted"
            # Blocks that a victim's state was on its way into come back with the end of that: the others wait for it.
            if plan is not None and plan.waits and self.cache.transfers.returning:
                return
            planned = {row.sequence for row in plan.rows} if plan else set()
            # One whose state comes back from the processor's memory computes nothing yet.
            gaining = [each.order for each in self.sequences() if each.id in planned or each.loading]
            # One that starts again from the prefix cache, while what an earlier one needs is on its way, gains itself.
            others = min(gaining, default=None) != min(victims)
            assert gaining and (min(gaining) < min(victims) if others else len(victims) == 1), "preempted for nothing"


def ends_with_a_source(plan: StepPlan) -> bool:
    """Whether the plan's only prompt is its last row, which encodes a source: that may be longer than the budget."""
    *others, last = plan.rows
    return last.encodes > 0 and all(row.count == 1 and not row.encodes for row in others)


def rows_of(simulation: Simulation, sequence: int) -> list[tuple[int, int]]:
    """(start, count) of every row that a sequence had, in order."""
    return [(row.start, row.count) for plan in simulation.plans for row in plan.rows if row.sequence == sequence]


def plans_of_sequences(simulation: Simulation) -> dict[int, list[int]]:
    """Numbers of the plans that each sequence had a row in."""
    plans: dict[int, list[int]] = {}
    for plan in simulation.plans:
        for row in plan.rows:
            plans.setdefault(row.sequence, []).append(plan.number)
    return plans


def finish_order(simulation: Simulation) -> list[int]:
    """Request ids in the order in which their samples ended."""
    return [request_id for request_id, _ in simulation.finishes]
