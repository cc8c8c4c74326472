"""Plans that are made before the oldest has committed."""

import pytest

from penstock.core.sampling import SamplingParams
from support.made_up_model import expected_output
from support.simulation import Simulation, config, make_request, plans_of_sequences, prompt, rows_of


class TestOutstanding:
    @pytest.mark.parametrize("depth", [2, 3])
    def test_tokens_of_an_outstanding_plan_are_referred_to(self, depth: int) -> None:
        simulation = Simulation(40, config=config(4, 32, max_outstanding=depth))
        simulation.submit(make_request(0, prompt(6), 9), make_request(1, prompt(7, 50), 9))
        simulation.step()
        row = simulation.plans[1].rows[0]
        assert (row.count, row.tokens, row.source) == (1, [], 0)
        simulation.run()

    def test_rows_after_the_end_are_void(self) -> None:
        output, _ = expected_output(Simulation(1).spec, prompt(5), SamplingParams(max_tokens=9, seed=0))
        simulation = Simulation(40, config=config(4, 32, max_outstanding=2))
        simulation.submit(make_request(0, prompt(5), 9, eos=(output[2],)))
        simulation.run()
        assert simulation.outputs[0, 0] == output[:3]
        assert len(simulation.plans) == 4, "one plan was made before the end was known"

    def test_no_row_goes_beyond_max_tokens(self) -> None:
        simulation = Simulation(40, config=config(4, 32, max_outstanding=2))
        simulation.submit(make_request(0, prompt(5), 3))
        simulation.run()
        assert rows_of(simulation, 0) == [(0, 5), (5, 1), (6, 1)]

    def test_blocks_retire_until_outstanding_plans_commit(self) -> None:
        simulation = Simulation(20, prefix_caching=False)
        simulation.submit(make_request(0, prompt(20), 30))
        simulation.plan()
        simulation.abort(0)
        pool = simulation.cache.pool
        assert (pool.num_free, pool.num_retiring) == (15, 5)
        simulation.commit()
        assert (pool.num_free, pool.num_retiring) == (20, 0)

    def test_nobody_is_preempted_for_blocks_that_retire(self) -> None:
        simulation = Simulation(11, config=config(4, 64, max_outstanding=2), prefix_caching=False)
        lengths = [15, 8, 12]
        simulation.submit(*(make_request(index, prompt(length, 50 * index)) for index, length in enumerate(lengths)))
        simulation.plan()
        simulation.plan()
        assert simulation.cache.pool.num_free == 0
        simulation.abort(2)
        simulation.commit()
        # The first needs a block now. Those of the third come back with the plan that is still outstanding.
        assert simulation.cache.pool.num_retiring == 4
        plan = simulation.plan()
        assert plan is not None and [row.sequence for row in plan.rows] == [1]
        simulation.run()
        assert simulation.scheduler.snapshot().preemptions == 0

    def test_the_last_sample_writes_where_its_block_is_published_and_the_pool_is_full(self) -> None:
        """Its origin has filled and published the block that both began to share, and has ended."""
        simulation = Simulation(15, block_size=2, config=config(4, 64, max_outstanding=2))
        simulation.submit(make_request(0, prompt(29), 2, n=2))
        simulation.run()
        assert len(simulation.finishes) == 2

    def test_samples_of_a_prompt_that_failed_fail_with_it(self) -> None:
        """The plan in which they fork is outstanding by then, and computes behind what is not there."""
        simulation = Simulation(40, config=config(4, 8, max_outstanding=2))
        simulation.submit(make_request(0, prompt(12), 9, n=3))
        simulation.plan()
        simulation.plan()
        assert simulation.plans[1].rows[0].samples == (0, 1, 2)
        simulation.commit(fails=True)
        simulation.run()
        assert simulation.finishes == {(0, index): "error" for index in range(3)}
        assert not any(simulation.outputs.values())

    def test_what_a_failed_step_computed_is_not_published(self) -> None:
        simulation = Simulation(40, config=config(4, 32))
        simulation.submit(make_request(0, prompt(20), 4))
        simulation.plan()
        simulation.commit(fails=True)
        simulation.submit(make_request(1, prompt(20), 4))
        simulation.run()
        assert simulation.cached_tokens[1] == 0
        assert simulation.finishes == {(0, 0): "error", (1, 0): "length"}

    @pytest.mark.parametrize(("max_waits", "admitted_in"), [(1, 1), (2, 2), (64, 3)])
    def test_waiting_for_outstanding_plans_is_bounded(self, max_waits: int, admitted_in: int) -> None:
        simulation = Simulation(400, config=config(4, 64, max_outstanding=3, max_prefix_waits=max_waits))
        simulation.submit(make_request(0, prompt(20), 9), make_request(1, prompt(20), 9))
        simulation.run()
        assert plans_of_sequences(simulation)[1][0] == admitted_in
