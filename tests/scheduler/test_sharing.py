"""KV that requests and samples share, and KV that leaves the window."""

import pytest

from penstock.core.events import KeptTokens
from penstock.core.request import KeptPrefix
from support.endings import finish_of
from support.simulation import Simulation, config, make_request, prompt, rows_of


class TestSamples:
    def test_samples_share_the_prompt(self) -> None:
        simulation = Simulation(100)
        simulation.submit(make_request(0, prompt(16), 8, n=4))
        simulation.step()
        assert simulation.executor.computed_tokens == 16
        assert simulation.cache.pool.num_used == 4
        simulation.step()
        assert simulation.cache.pool.num_used == 8
        simulation.run()
        assert len({tuple(output) for output in simulation.outputs.values()}) == 4

    def test_a_partly_filled_block_is_copied_by_all_but_the_last_writer(self) -> None:
        simulation = Simulation(100)
        simulation.submit(make_request(0, prompt(18), 8, n=4))
        simulation.step()
        assert simulation.cache.pool.num_used == 5
        simulation.step()
        assert len(simulation.plans[1].pairs("pool", "pool")) == 3
        assert simulation.cache.pool.num_used == 8
        simulation.run()

    def test_samples_begin_at_their_first_token(self) -> None:
        simulation = Simulation(100, config=config(8, 8))
        simulation.submit(make_request(0, prompt(18), 3, n=3))
        simulation.run()
        assert [len(plan.begin) for plan in simulation.plans[:3]] == [1, 0, 2]
        assert [begin.forked_from for begin in simulation.plans[2].begin] == [0, 0]
        assert simulation.plans[2].rows[0].samples == (0, 1, 2)

    def test_more_samples_than_places(self) -> None:
        simulation = Simulation(100, config=config(2, 32))
        simulation.submit(make_request(0, prompt(9), 5, n=7), make_request(1, prompt(9, 50), 5))
        simulation.run()
        assert len(simulation.finishes) == 8
        load = simulation.scheduler.snapshot()
        assert load.prefill_tokens == 18, "what a late sample computes again is not new work"
        assert load.recomputed_tokens > 0


class TestPrefixCache:
    def test_identical_prompts_in_one_step_are_computed_once(self) -> None:
        simulation = Simulation(400, config=config(64, 128))
        simulation.submit(*(make_request(index, prompt(20), 4, seed=index) for index in range(64)))
        simulation.step()
        assert simulation.executor.computed_tokens == 20, "the others wait for the first"
        simulation.run()
        load = simulation.scheduler.snapshot()
        assert load.prefill_tokens == 20 + 63
        assert load.prefix_hit_tokens == 63 * 19
        assert simulation.cached_tokens == {0: 0} | dict.fromkeys(range(1, 64), 19)

    def test_a_common_prefix_is_computed_once(self) -> None:
        simulation = Simulation(2000, block_size=16, config=config(100, 256))
        requests = [make_request(index, prompt(500) + prompt(30, 1000 * index), 2) for index in range(1, 101)]
        simulation.submit(*requests)
        simulation.run()
        # 31 whole blocks are shared, the 4 tokens after them are everybody's own to compute.
        assert simulation.scheduler.snapshot().prefill_tokens == 530 + 99 * (530 - 496)

    def test_a_later_duplicate_only_computes_the_last_token(self) -> None:
        simulation = Simulation(40)
        simulation.submit(make_request(0, prompt(16), 4))
        simulation.run()
        simulation.submit(make_request(1, prompt(16), 4))
        simulation.run()
        assert rows_of(simulation, 1)[0] == (15, 1)
        assert simulation.outputs[0, 0] == simulation.outputs[1, 0]

    def test_a_conversation_hits_its_own_output(self) -> None:
        simulation = Simulation(40)
        simulation.submit(make_request(0, prompt(10), 11))
        simulation.run()
        simulation.submit(make_request(1, prompt(10) + simulation.outputs[0, 0] + prompt(3), 4))
        simulation.run()
        assert simulation.cached_tokens[1] == 20

    def test_salts_do_not_share(self) -> None:
        simulation = Simulation(40)
        simulation.submit(make_request(0, prompt(16), 4, salt="one"))
        simulation.run()
        simulation.submit(make_request(1, prompt(16), 4, salt="two"), make_request(2, prompt(16), 4, salt=""))
        simulation.run()
        assert simulation.scheduler.snapshot().prefix_hit_tokens == 0

    @pytest.mark.parametrize(("max_waits", "computed"), [(0, 40), (1, 20)])
    def test_waiting_for_another_request_is_bounded(self, max_waits: int, computed: int) -> None:
        simulation = Simulation(400, config=config(4, 64, max_prefix_waits=max_waits))
        simulation.submit(make_request(0, prompt(20), 4), make_request(1, prompt(20), 4))
        simulation.step()
        assert simulation.executor.computed_tokens == computed
        simulation.run()

    def test_waiting_ends_when_the_other_request_does(self) -> None:
        simulation = Simulation(400, config=config(4, 8))
        simulation.submit(make_request(0, prompt(200), 4), make_request(1, prompt(200), 4))
        simulation.step()
        simulation.abort(0)
        plan = simulation.plan()
        assert plan is not None
        assert [row.sequence for row in plan.rows] == [1]
        simulation.commit()
        simulation.run()

    def test_switched_off(self) -> None:
        simulation = Simulation(40, prefix_caching=False)
        for request_id in range(2):
            simulation.submit(make_request(request_id, prompt(16), 4))
            simulation.run()
        assert simulation.scheduler.snapshot().prefix_hit_tokens == 0
        assert simulation.cache.pool.num_cached == 0

    @pytest.mark.parametrize("windows", [(6,), (None, 6), (6, None, 3)])
    def test_hits_of_windows(self, windows: tuple[int | None, ...]) -> None:
        simulation = Simulation(100, windows=windows)
        simulation.submit(make_request(0, prompt(30), 4))
        simulation.run()
        simulation.submit(make_request(1, prompt(30) + prompt(9, 50), 4))
        simulation.run()
        assert simulation.cached_tokens[1] == 28


class TestWindows:
    def test_a_window_holds_no_more_than_it_sees(self) -> None:
        simulation = Simulation(8, windows=(8,), config=config(1, 8), prefix_caching=False)
        simulation.submit(make_request(0, prompt(200), 50))
        while simulation.step():
            # Eight positions computed, seven before them in the window, spread over at most five blocks of four.
            assert simulation.cache.pool.num_used <= 5
        simulation.run()


class TestChurn:
    @pytest.mark.parametrize("windows", [(None,), (None, 6)])
    def test_a_pool_ten_times_too_small(self, windows: tuple[int | None, ...]) -> None:
        """Sixty conversations of two turns; everything is evicted and preempted again and again."""
        simulation = Simulation(40 * len(windows), windows=windows, config=config(16, 48))
        requests = [
            make_request(index, prompt(10 + index % 30, 10 * (index % 7)), 20, n=1 + index % 2, priority=index % 3)
            for index in range(60)
        ]
        simulation.submit(*requests)
        simulation.run()
        turns = [
            make_request(60 + index, request.prompt_token_ids + simulation.outputs[index, 0][:15] + [5], 10)
            for index, request in enumerate(requests)
        ]
        simulation.submit(*turns)
        simulation.run()
        load = simulation.scheduler.snapshot()
        assert load.preemptions > 0
        assert load.prefix_hit_tokens > 0
        needed = sum(simulation.spec.blocks_for(len(request.prompt_token_ids) + 19, 48) for request in requests)
        assert needed > 10 * simulation.cache.pool.num_blocks


def test_samples_that_never_were_fail_with_their_request() -> None:
    simulation = Simulation(40, config=config(budget=8))
    simulation.submit(make_request(0, prompt(30), max_tokens=4, n=3, prompt_logprobs=0))
    simulation.executor.failing.add(0)
    simulation.plan()
    events = simulation.commit()
    assert [(event.sample_index, finish_of(event.gained)) for event in events] == [
        (index, "error") for index in range(3)
    ]
    assert events[0].gained.ending.error and {event.gained.ending.error for event in events} == {
        events[0].gained.ending.error
    }
    simulation.run()


def test_samples_that_wait_for_a_row_are_not_looked_up_again() -> None:
    simulation = Simulation(40, config=config(1))
    simulation.submit(make_request(0, prompt(20), max_tokens=4, n=3))
    simulation.run()
    load = simulation.scheduler.snapshot()
    assert (load.prefix_queried_tokens, load.prefix_hit_tokens) == (20, 0)


def test_samples_that_never_were_end_with_their_request() -> None:
    simulation = Simulation(40, config=config(budget=8))
    simulation.submit(make_request(0, prompt(30), max_tokens=4, n=3))
    simulation.step()
    simulation.abort(0)
    assert simulation.finishes == {(0, i): "abort" for i in range(3)}
    simulation.run()


def test_what_is_kept_outlives_what_is_not() -> None:
    """Two prompts are cached, the older one kept; a flood of others pushes out only the newer."""
    simulation = Simulation(24, kept_share=0.5)
    kept, other = prompt(16), prompt(16, start=100)
    simulation.submit(make_request(0, kept, 1, keep=(KeptPrefix(16, 1000.0),)))
    simulation.run()
    simulation.submit(make_request(1, other, 1))
    simulation.run()
    for index in range(2, 12):
        simulation.submit(make_request(index, prompt(30, start=1000 * index), 2))
    simulation.run()
    simulation.submit(make_request(20, kept, 1, keep=(KeptPrefix(16, 1000.0),)))
    simulation.submit(make_request(21, other, 1))
    simulation.run()
    assert simulation.cached_tokens[20] == 15
    assert simulation.cached_tokens[21] == 0


def test_what_is_kept_gives_way_rather_than_stop_everything() -> None:
    """A request that needs the whole pool is served, though all of the pool is kept for another."""
    simulation = Simulation(8, kept_share=1.0)
    simulation.submit(make_request(0, prompt(28), 1, keep=(KeptPrefix(28, 1e9),)))
    simulation.run()
    assert simulation.cache.pool.num_kept == 7
    simulation.submit(make_request(1, prompt(30, start=100), 2))
    simulation.run()
    assert simulation.cache.pool.num_kept == 0


def test_keeping_ends_with_its_time() -> None:
    simulation = Simulation(40, kept_share=1.0)
    simulation.submit(make_request(0, prompt(16), 1, keep=(KeptPrefix(8, 50.0), KeptPrefix(16, 5.0))))
    simulation.run()
    pool = simulation.cache.pool
    assert pool.num_kept == 4
    pool.tick(simulation.now + 10.0)
    assert pool.num_kept == 2
    pool.tick(simulation.now + 100.0)
    assert pool.num_kept == 0


def test_what_was_kept_and_what_is_now_is_told() -> None:
    simulation = Simulation(40, kept_share=1.0)
    marks = (KeptPrefix(9, 50.0), KeptPrefix(16, 5.0))
    simulation.submit(make_request(0, prompt(18), 2, keep=marks))
    simulation.run()
    simulation.submit(make_request(1, prompt(18), 2, keep=marks))
    simulation.run()
    # The longer prefix is still in the cache, but nobody asked for that any more.
    simulation.now += 10.0
    simulation.submit(make_request(2, prompt(18), 2, keep=marks))
    simulation.run()
    simulation.submit(make_request(3, prompt(16), 2, keep=marks))
    simulation.run()
    assert simulation.kept == {
        0: KeptTokens(0, [8, 16]),
        1: KeptTokens(16, [8, 16]),
        2: KeptTokens(8, [8, 16]),
        # Its last block was hit but for the last token, which is computed again.
        3: KeptTokens(16, [8, 16]),
    }
    assert simulation.cached_tokens == {0: 0, 1: 16, 2: 16, 3: 15}


def test_a_request_is_told_of_no_more_than_it_wants_kept() -> None:
    simulation = Simulation(40, kept_share=1.0)
    simulation.submit(make_request(0, prompt(18), 1, keep=(KeptPrefix(16, 5.0),)))
    simulation.run()
    simulation.submit(make_request(1, prompt(18), 1, keep=(KeptPrefix(8, 5.0),)), make_request(2, prompt(18), 1))
    simulation.run()
    assert simulation.kept == {0: KeptTokens(0, [16]), 1: KeptTokens(8, [8])}


def test_no_more_is_kept_than_the_share_of_the_pool() -> None:
    simulation = Simulation(40, kept_share=0.1)
    simulation.submit(make_request(0, prompt(26), 1, keep=(KeptPrefix(8, 50.0), KeptPrefix(26, 50.0))))
    simulation.run()
    assert simulation.kept == {0: KeptTokens(0, [8, 16])}
    assert simulation.scheduler.snapshot().blocks_kept == 4


def test_a_chunked_prompt_is_kept_when_its_last_chunk_is_computed() -> None:
    simulation = Simulation(40, config=config(8, 8), kept_share=1.0)
    simulation.submit(make_request(0, prompt(30), 2, n=2, keep=(KeptPrefix(4, 50.0), KeptPrefix(30, 50.0))))
    assert simulation.step() and simulation.cache.pool.num_kept == 1
    simulation.run()
    assert simulation.kept == {0: KeptTokens(0, [4, 28])}
