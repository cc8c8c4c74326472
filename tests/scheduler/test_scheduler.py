"""The scheduler's promises one by one, on the scripted executor: progress, order, refusal, ends."""

import itertools

import pytest

from penstock.core.errors import ContextLengthExceeded, InvalidParameter, RequestTooLarge
from penstock.core.plan import StepResult
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from support.made_up_model import expected_output
from support.simulation import Simulation, config, finish_order, make_request, plans_of_sequences, prompt, rows_of


class TestProgress:
    def test_one_request(self) -> None:
        simulation = Simulation(16)
        simulation.submit(make_request(0, prompt(9), 5))
        simulation.run()
        assert len(simulation.outputs[0, 0]) == 5
        assert rows_of(simulation, 0) == [(0, 9), (9, 1), (10, 1), (11, 1), (12, 1)]

    @pytest.mark.parametrize("budget", [1, 2, 3, 7, 64])
    def test_chunks_do_not_change_tokens(self, budget: int) -> None:
        simulation = Simulation(16, config=config(1, budget))
        simulation.submit(make_request(0, prompt(21), 6))
        simulation.run()
        chunks = [count for start, count in rows_of(simulation, 0) if start < 21]
        assert chunks == [budget] * (21 // budget) + ([21 % budget] if 21 % budget else [])

    def test_decode_never_stalls_behind_a_long_prompt(self) -> None:
        simulation = Simulation(1000, block_size=16, config=config(4, 512, max_model_len=12_000))
        simulation.submit(make_request(0, prompt(5), 40))
        simulation.step()
        simulation.submit(make_request(1, [token % 997 for token in range(10_000)], 2))
        steps = 0
        while (1, 0) not in simulation.outputs:
            before = len(simulation.outputs[0, 0])
            simulation.step()
            steps += 1
            assert len(simulation.outputs[0, 0]) == before + 1
        assert steps == -(-10_000 // 511)
        simulation.run()

    def test_decodes_and_chunks_share_one_budget(self) -> None:
        simulation = Simulation(200, config=config(4, 8))
        simulation.submit(make_request(0, prompt(3), 30), make_request(1, prompt(4, 50), 30))
        simulation.step()
        simulation.submit(make_request(2, prompt(30, 100), 2))
        plan = simulation.plan()
        assert plan is not None
        assert sorted(row.count for row in plan.rows) == [1, 1, 6]
        simulation.commit()
        simulation.run()

    def test_a_prompt_of_higher_priority_leaves_decodes_their_tokens(self) -> None:
        simulation = Simulation(200, config=config(4, 8))
        simulation.submit(make_request(0, prompt(3), 30, priority=1), make_request(1, prompt(4, 50), 30, priority=1))
        simulation.step()
        simulation.submit(make_request(2, prompt(30, 100), 2))
        simulation.step()
        plan = simulation.plan()
        assert plan is not None
        assert [row.count for row in plan.rows] == [6, 1, 1]
        simulation.commit()
        simulation.run()

    @pytest.mark.parametrize(("num_blocks", "running"), [(7, [0]), (8, [0, 1])])
    def test_admission_leaves_a_block_of_each_group_to_those_who_run(self, num_blocks: int, running: list[int]) -> None:
        simulation = Simulation(num_blocks, windows=(None, None), prefix_caching=False)
        simulation.submit(make_request(0, prompt(4), 4), make_request(1, prompt(7, 50), 4))
        simulation.plan()
        assert [sequence.request.request_id for sequence in simulation.running()] == running
        simulation.commit()
        simulation.run()

    def test_a_prompt_that_fills_the_pool_is_hit_up_to_its_last_block(self) -> None:
        simulation = Simulation(8)
        for request_id in range(2):
            simulation.submit(make_request(request_id, prompt(32), 1))
            simulation.run()
        assert simulation.cached_tokens[1] == 28, "there is no block to copy the last one to"

    def test_the_snapshot_counts_what_waits(self) -> None:
        simulation = Simulation(40, config=config(1, 8))
        simulation.submit(*(make_request(index, prompt(10 + index, 50 * index)) for index in range(3)))
        assert simulation.scheduler.snapshot().waiting_tokens == 10 + 11 + 12
        simulation.step()
        load = simulation.scheduler.snapshot()
        assert (load.running, load.waiting, load.waiting_tokens) == (1, 2, 11 + 12)
        simulation.run()

    def test_a_preempted_sequence_resumes_where_it_was(self) -> None:
        simulation = Simulation(10, config=config(2, 32), prefix_caching=False)
        simulation.submit(make_request(0, prompt(8), 24), make_request(1, prompt(8, 50), 24))
        simulation.run()
        load = simulation.scheduler.snapshot()
        assert load.preemptions >= 1
        assert load.recomputed_tokens >= 8
        assert finish_order(simulation) == [0, 1]
        assert load.prefill_tokens == 16, "recomputation is not counted as new work"

    def test_the_head_computes_something_in_every_step(self) -> None:
        simulation = Simulation(12, config=config(4, 8), prefix_caching=False)
        simulation.submit(*(make_request(index, prompt(12, 20 * index), 12) for index in range(6)))
        while simulation.running() or not simulation.plans:
            simulation.plan()
            head = min(simulation.sequences(), key=lambda sequence: sequence.order)
            assert head.id in [row.sequence for row in simulation.plans[-1].rows]
            simulation.commit()
        simulation.run()
        assert simulation.scheduler.snapshot().preemptions > 0

    def test_admission_leaves_a_block_for_those_that_run(self) -> None:
        simulation = Simulation(10, config=config(4, 64), prefix_caching=False)
        simulation.submit(make_request(0, prompt(16), 8), make_request(1, prompt(24, 50), 4))
        simulation.run()
        assert simulation.scheduler.snapshot().preemptions == 0

    def test_a_large_request_is_not_starved_by_small_ones(self) -> None:
        simulation = Simulation(20, config=config(4, 64), prefix_caching=False)
        identifiers = itertools.count(1)
        for _ in range(3):
            simulation.submit(make_request(next(identifiers), prompt(4, 100), 8))
        simulation.step()
        simulation.submit(make_request(0, prompt(60), 4))
        small_before = len(simulation.requests)
        while (0, 0) not in simulation.finishes:
            simulation.submit(make_request(next(identifiers), prompt(4, 200), 8))
            simulation.step()
            assert len(simulation.plans) < 40
        later = [request_id for request_id in finish_order(simulation) if request_id >= small_before]
        assert not later, "none of those that came later overtook it"
        simulation.run()

    def test_no_more_than_max_num_seqs_run(self) -> None:
        simulation = Simulation(400, config=config(3, 64))
        simulation.submit(*(make_request(index, prompt(4, 10 * index), 6, n=2) for index in range(5)))
        most = 0
        while simulation.step():
            most = max(most, len(simulation.running()))
        assert most == 3
        simulation.run()


class TestOrder:
    def test_first_come_first_served(self) -> None:
        simulation = Simulation(100, config=config(1, 32))
        simulation.submit(*(make_request(index, prompt(4, 10 * index), 3) for index in range(5)))
        simulation.run()
        assert finish_order(simulation) == [0, 1, 2, 3, 4]

    def test_lower_numbers_run_first(self) -> None:
        simulation = Simulation(100, config=config(1, 32))
        priorities = [2, 0, 1, 0, 2]
        simulation.submit(
            *(
                make_request(index, prompt(4, 10 * index), 3, priority=priority)
                for index, priority in enumerate(priorities)
            )
        )
        simulation.run()
        assert finish_order(simulation) == [1, 3, 2, 0, 4]

    def test_a_higher_priority_takes_the_place_of_a_lower_one(self) -> None:
        simulation = Simulation(100, config=config(1, 32))
        simulation.submit(make_request(0, prompt(4), 20, priority=1))
        simulation.step()
        simulation.submit(make_request(1, prompt(4, 50), 3, priority=0))
        simulation.run()
        assert finish_order(simulation) == [1, 0]
        assert simulation.scheduler.snapshot().preemptions == 1

    def test_equal_priorities_never_displace_one_another(self) -> None:
        simulation = Simulation(100, config=config(1, 32))
        simulation.submit(make_request(0, prompt(4), 20))
        simulation.step()
        simulation.submit(make_request(1, prompt(4, 50), 3))
        simulation.run()
        assert finish_order(simulation) == [0, 1]
        assert simulation.scheduler.snapshot().preemptions == 0

    def test_nobody_is_preempted_where_it_would_not_help(self) -> None:
        simulation = Simulation(10, config=config(4, 64), prefix_caching=False)
        simulation.submit(make_request(0, prompt(24), 4, priority=0), make_request(1, prompt(4, 50), 4, priority=2))
        simulation.step()
        simulation.submit(make_request(2, prompt(30, 100), 4, priority=1))
        simulation.step()
        assert [sequence.request.request_id for sequence in simulation.running()] == [0, 1]
        simulation.run()

    def test_the_order_of_simultaneous_arrivals_changes_no_tokens(self) -> None:
        requests = [make_request(index, prompt(3 + 5 * index, 7 * (index // 2)), 10, seed=index) for index in range(4)]
        outputs = []
        for arrival in itertools.permutations(requests):
            simulation = Simulation(14, config=config(3, 8))
            simulation.submit(*arrival)
            simulation.run()
            outputs.append(simulation.outputs)
        assert all(output == outputs[0] for output in outputs)


class TestRefusal:
    @pytest.mark.parametrize(("surplus", "accepted"), [(-1, True), (0, True), (1, False)])
    def test_needs_around_the_size_of_the_pool(self, surplus: int, accepted: bool) -> None:
        simulation = Simulation(10, config=config(4, 64))
        # The last of the output tokens needs no slot.
        needs = make_request(0, prompt(4 * (10 + surplus) - 4), 5)
        if accepted:
            simulation.submit(needs)
        else:
            with pytest.raises(RequestTooLarge, match="11 KV blocks.*10"):
                simulation.submit(needs)
        simulation.submit(make_request(1, prompt(8, 100), 5))
        simulation.run()
        assert set(simulation.finishes) == ({(0, 0), (1, 0)} if accepted else {(1, 0)})

    @pytest.mark.parametrize("extra", [0, 1, 2])
    def test_samples_of_a_request_as_large_as_the_pool(self, extra: int) -> None:
        simulation = Simulation(10 + extra, config=config(8, 64))
        simulation.submit(make_request(0, prompt(30), 11, n=4))
        simulation.run()
        assert len(simulation.finishes) == 4

    def test_longer_than_the_context(self) -> None:
        simulation = Simulation(100, config=config(max_model_len=20))
        with pytest.raises(ContextLengthExceeded, match="15.*6.*21.*20") as caught:
            simulation.submit(make_request(0, prompt(15), 6))
        assert caught.value.param == "max_tokens"
        with pytest.raises(ContextLengthExceeded) as caught:
            simulation.submit(make_request(0, prompt(20), 1))
        assert caught.value.param == "prompt", "no max_tokens would help"
        simulation.submit(make_request(0, prompt(15), 5))
        simulation.run()

    def test_an_empty_prompt(self) -> None:
        with pytest.raises(InvalidParameter):
            Simulation(10).submit(make_request(0, [], 6))

    def test_a_refused_request_leaves_nothing_behind(self) -> None:
        simulation = Simulation(4)
        with pytest.raises(RequestTooLarge):
            simulation.submit(make_request(0, prompt(60), 6))
        assert not simulation.scheduler.has_work
        assert simulation.plan() is None

    def test_misuse_by_the_engine(self) -> None:
        simulation = Simulation(10)
        unresolved = Request(request_id=0, prompt_token_ids=[1], sampling=SamplingParams())
        with pytest.raises(ValueError, match="max_tokens"):
            simulation.scheduler.add(unresolved)
        simulation.submit(make_request(0, prompt(3)))
        with pytest.raises(ValueError, match="exists"):
            simulation.scheduler.add(make_request(0, prompt(3)))
        plan = simulation.plan()
        assert plan is not None
        with pytest.raises(RuntimeError, match="outstanding"):
            simulation.scheduler.plan(0.0)
        with pytest.raises(RuntimeError, match="order"):
            simulation.scheduler.commit(plan, StepResult(plan.number + 1, ()))
        with pytest.raises(ValueError, match="max_num_batched_tokens"):
            Simulation(10, config=config(8, 7))


class TestEnds:
    def test_stop_and_length(self) -> None:
        output, _ = expected_output(Simulation(1).spec, prompt(5), SamplingParams(max_tokens=9, seed=0))
        simulation = Simulation(50)
        simulation.submit(make_request(0, prompt(5), 9), make_request(1, prompt(5), 9, eos=(output[3],)))
        simulation.run()
        assert simulation.outputs[0, 0] == output
        assert simulation.outputs[1, 0] == output[: output.index(output[3]) + 1]
        assert simulation.finishes == {(0, 0): "length", (1, 0): "stop"}

    @pytest.mark.parametrize("steps", range(8))
    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("while_outstanding", [False, True])
    def test_abort_at_every_step(self, steps: int, depth: int, while_outstanding: bool) -> None:
        simulation = Simulation(40, config=config(4, 8, max_outstanding=depth))
        simulation.submit(make_request(0, prompt(20), 4, n=3), make_request(1, prompt(30), 4))
        for _ in range(steps):
            simulation.step()
        if while_outstanding and simulation.outstanding < depth:
            simulation.plan()
        simulation.abort(0)
        while simulation.outstanding:
            simulation.commit()
        blocks = [sequence.blocks for sequence in simulation.sequences()]
        simulation.cache.check(blocks)
        assert 0 not in {sequence.request.request_id for sequence in simulation.sequences()}
        simulation.abort(0)
        simulation.run()
        assert simulation.finishes[1, 0] == "length"

    def test_abort_frees_blocks_at_once_where_no_plan_uses_them(self) -> None:
        simulation = Simulation(20, prefix_caching=False)
        simulation.submit(make_request(0, prompt(20), 30))
        simulation.step()
        assert simulation.cache.pool.num_used > 0
        simulation.abort(0)
        assert simulation.cache.pool.num_free == 20

    def test_aborting_what_is_not_there_does_nothing(self) -> None:
        assert Simulation(4).scheduler.abort(7) == []

    def test_the_executor_forgets_rows_that_ended(self) -> None:
        simulation = Simulation(40)
        for request_id in range(5):
            simulation.submit(make_request(request_id, prompt(5), 3, n=2))
            simulation.run()
            assert len(simulation.executor.rows) == 2, "only those of the last request, until the next plan"

    def test_a_failed_row_harms_nobody_else(self) -> None:
        simulation = Simulation(40)
        simulation.submit(make_request(0, prompt(5), 6), make_request(1, prompt(5), 6), make_request(2, prompt(9), 6))
        simulation.step()
        simulation.executor.failing.add(1)
        simulation.run()
        assert simulation.finishes == {(1, 0): "error", (0, 0): "length", (2, 0): "length"}


class TestStatic:
    def test_a_batch_ends_before_the_next_begins(self) -> None:
        simulation = Simulation(400, config=config(4, 64, static_batching=True))
        lengths = [3, 9, 5, 2, 8, 1, 4, 4, 6]
        simulation.submit(*(make_request(index, prompt(4, 10 * index), length) for index, length in enumerate(lengths)))
        simulation.run()
        first = {index: rows[0] for index, rows in plans_of_sequences(simulation).items()}
        last = {index: rows[-1] for index, rows in plans_of_sequences(simulation).items()}
        for batch in (range(4), range(4, 8)):
            assert len({first[index] for index in batch}) == 1
            assert max(last[index] for index in batch) < first[batch[-1] + 1]

    def test_it_is_slower_than_continuous_batching(self) -> None:
        steps = []
        for static in (False, True):
            simulation = Simulation(400, config=config(4, 64, static_batching=static))
            lengths = [2, 2, 2, 20] * 4
            requests = [make_request(index, prompt(4, 10 * index), length) for index, length in enumerate(lengths)]
            simulation.submit(*requests)
            simulation.run()
            steps.append(len(simulation.plans))
        assert steps[1] > 2 * steps[0]
