"""Beams: however they are planned, preempted, shared and moved, each request's outputs are what it alone determines."""

import random
from collections import Counter

import pytest

from penstock.core.beam_search import BeamSearch
from penstock.core.errors import InvalidParameter, RequestTooLarge
from penstock.core.request import Request
from support.made_up_model import kv_spec, made_up_spec, sourced_spec
from support.simulation import Simulation, config, make_request, prompt

EOS = tuple(range(0, 997, 40))


def beams(width: int, **options: object) -> BeamSearch:
    return BeamSearch(width=width, **options)  # type: ignore[arg-type]


class TestProgress:
    @pytest.mark.parametrize("budget", [4, 7, 64])
    def test_the_best_are_found_whatever_the_chunks(self, budget: int) -> None:
        simulation = Simulation(200, config=config(budget=budget, max_num_seqs=4))
        simulation.submit(make_request(0, prompt(21), 12, n=3, beam=beams(4), eos=EOS))
        simulation.run()
        assert [len(simulation.outputs[0, index]) > 0 for index in range(3)] == [True] * 3

    def test_a_beam_that_goes_on_alone_keeps_its_blocks_and_others_share_them(self) -> None:
        simulation = Simulation(200, config=config(max_num_seqs=4))
        simulation.submit(make_request(0, prompt(40), 4, beam=beams(4)))
        while not simulation.running() or simulation.running()[0].output_length == 0:
            simulation.step()
        held = [set(sequence.blocks.tables[0].slots) for sequence in simulation.running()]
        assert len(held) == 4
        assert len(set.intersection(*held)) == 10

    def test_beams_beside_other_requests(self) -> None:
        simulation = Simulation(300, config=config(max_num_seqs=8))
        for index in range(6):
            beam = beams(3, early_stopping=True) if index % 2 else None
            simulation.submit(make_request(index, prompt(9, index % 3), 10, n=2, beam=beam, eos=EOS))
        simulation.run()

    def test_no_beam_computes_what_comes_behind_before_all_are_there(self) -> None:
        """With a budget of one token a step, beams take turns."""
        simulation = Simulation(200, config=config(budget=4, max_num_seqs=4, max_chunk=1))
        simulation.submit(make_request(0, prompt(5), 6, n=2, beam=beams(4)), make_request(1, prompt(30, 7), 9))
        simulation.run()


class TestPreemption:
    @pytest.mark.parametrize("outstanding", [1, 2])
    @pytest.mark.parametrize("swap_blocks", [0, 40])
    def test_requests_that_hold_what_each_other_needs_all_end(self, outstanding: int, swap_blocks: int) -> None:
        simulation = Simulation(
            42, config=config(max_num_seqs=24, max_outstanding=outstanding), swap_blocks=swap_blocks
        )
        for index in range(6):
            simulation.submit(make_request(index, prompt(9, 20 * index), 24, n=2, beam=beams(4)))
        simulation.run()
        assert simulation.scheduler.snapshot().preemptions > 0

    def test_a_request_of_higher_priority_takes_the_place_of_beams(self) -> None:
        simulation = Simulation(60, config=config(max_num_seqs=4))
        simulation.submit(make_request(0, prompt(9), 20, beam=beams(4), priority=1))
        for _ in range(5):
            simulation.step()
        simulation.submit(make_request(1, prompt(30, 50), 20, n=4))
        simulation.run()
        assert simulation.scheduler.snapshot().preemptions > 0

    def test_a_batch_that_is_bounded_by_time_has_room_for_all_beams_of_a_request(self) -> None:
        simulation = Simulation(
            200,
            config=config(max_num_seqs=8, target_itl=0.001, bound_batch=True),
            seconds=lambda plan: 0.1 * plan.num_tokens,
        )
        for index in range(3):
            simulation.submit(make_request(index, prompt(9, 20 * index), 12, n=2, beam=beams(4)))
        simulation.run()


class TestRefusal:
    def test_more_beams_than_the_batch_has_rows(self) -> None:
        simulation = Simulation(200, config=config(max_num_seqs=3))
        with pytest.raises(InvalidParameter, match="4 beams run at a time, and this server's batch has 3 sequences"):
            simulation.submit(make_request(0, prompt(3), beam=beams(4)))

    def test_more_beams_than_the_pool_has_blocks_for(self) -> None:
        request = make_request(0, prompt(9), 8, beam=beams(4))
        # Four blocks for 16 tokens, and one for a copy.
        Simulation(20).submit(request)
        with pytest.raises(RequestTooLarge, match="20 KV blocks .4 beams of 16 tokens. and the pool has 19"):
            Simulation(19).submit(request)

    def test_a_static_batch_has_none(self) -> None:
        simulation = Simulation(200, config=config(static_batching=True))
        with pytest.raises(InvalidParameter, match="static batching"):
            simulation.submit(make_request(0, prompt(3), beam=beams(2)))


class TestEnds:
    @pytest.mark.parametrize("steps", range(1, 9))
    @pytest.mark.parametrize("outstanding", [1, 2])
    def test_abort_at_every_step(self, steps: int, outstanding: int) -> None:
        simulation = Simulation(200, config=config(budget=8, max_outstanding=outstanding))
        simulation.submit(make_request(0, prompt(19), 9, n=2, beam=beams(3)), make_request(1, prompt(5), 9))
        for _ in range(steps):
            simulation.step()
        simulation.plan() if simulation.outstanding < outstanding else None
        simulation.abort(0)
        simulation.run()
        assert [simulation.finishes[0, index] for index in range(2)] == ["abort"] * 2

    def test_a_row_that_fails_ends_the_request_and_no_other(self) -> None:
        simulation = Simulation(200)
        simulation.submit(make_request(0, prompt(9), 9, n=2, beam=beams(3)), make_request(1, prompt(9), 9))
        for _ in range(3):
            simulation.step()
        simulation.executor.failing.add(simulation.running()[1].id)
        simulation.run()
        assert [simulation.finishes[0, index] for index in range(2)] == ["error"] * 2
        assert simulation.finishes[1, 0] == "length"

    def test_a_prompt_is_scored_too(self) -> None:
        simulation = Simulation(200)
        simulation.submit(make_request(0, prompt(19), 5, n=2, beam=beams(2), prompt_logprobs=0))
        simulation.run()
        assert len(simulation.scores[0]) == 18


def random_requests(rng: random.Random, width: int, sources: bool) -> list[Request]:
    """Most have beams; their prompts share beginnings, and some are of higher priority, or other tenants'."""
    prefixes = [[rng.randrange(3) for _ in range(rng.randint(1, 30))] for _ in range(2)]
    requests = []
    for index in range(rng.randint(2, 8)):
        own = [rng.randrange(3) for _ in range(rng.randint(1, 12))]
        wide = rng.randint(1, width)
        beam = None
        if rng.random() < 0.8:
            stops = rng.choice([True, False, "never"])
            beam = beams(wide, length_penalty=rng.choice([-0.5, 0.0, 1.0, 2.0]), early_stopping=stops)
        requests.append(
            make_request(
                index,
                [*rng.choice(prefixes), *own],
                rng.choice([1, 2, rng.randint(1, 24)]),
                n=rng.randint(1, wide),
                beam=beam,
                eos=EOS if rng.random() < 0.6 else (),
                priority=rng.choice([0, 0, 1]),
                tenant=rng.choice(["", "a", "b"]),
                source=[7] * rng.choice([3, 17]) if sources else (),
                prompt_logprobs=0 if rng.random() < 0.1 else None,
            )
        )
    return requests


def random_simulation(seed: int) -> Simulation:
    """Pools that are tight, batches that are small, plans made ahead, and steps that fail."""
    rng = random.Random(seed)
    rows = rng.choice([2, 4, 8])
    size = rng.choice([1, 2, 4, 16])
    spec, sources = kv_spec(size, rng.choice([(None,), (None, 5)])), rng.random() < 0.2
    if sources:
        spec = rng.choice([sourced_spec(size), kv_spec(size, sources=True)])
    elif rng.random() < 0.3:
        spec = made_up_spec(size, size * 4)
    limits = config(
        max_num_seqs=rows,
        budget=rows + rng.choice([0, 1, 30]),
        max_outstanding=rng.choice([1, 1, 2, 3]),
        draft_depth=rng.choice([0, 0, 3]),
        max_scored_positions=rng.choice([3, 128]),
        **({"max_source": 17} if sources else {}),
    )
    requests = random_requests(rng, rows, sources)
    needs = [
        request.sequences
        * (
            spec.blocks_for(
                len(request.prompt_token_ids) + (request.max_tokens or 1),
                limits.max_num_batched_tokens,
                None,
                len(request.source),
            )
            + spec.num_tables
        )
        for request in requests
    ]
    blocks = max(1, rng.choice([max(needs), max(needs) + 2, 2 * max(needs)]))
    simulation = Simulation(
        blocks,
        spec=spec,
        config=limits,
        prefix_caching=rng.random() < 0.8,
        swap_blocks=rng.choice([0, 0, blocks]),
        late=random.Random(seed) if rng.random() < 0.3 else None,
    )
    aborts, fails = rng.choice([0.0, 0.0, 0.03]), rng.choice([0.0, 0.0, 0.03])
    waiting = requests[::-1]
    for steps in range(5000):
        while waiting and rng.random() < 0.4:
            simulation.submit(waiting.pop())
        if rng.random() < aborts and simulation.requests:
            simulation.abort(rng.choice(list(simulation.requests)))
        if rng.random() < fails and simulation.sequences():
            simulation.executor.failing.add(rng.choice(simulation.sequences()).id)
        if not simulation.step(fails=rng.random() < fails) and not waiting:
            break
        assert steps < 4000, "no end"
    simulation.check_idle()
    simulation.check_outputs()
    return simulation


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_random_requests_with_beams(first: int) -> None:
    done = Counter[str]()
    for seed in range(first, first + 30):
        try:
            simulation = random_simulation(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        done["preempted"] += simulation.scheduler.snapshot().preemptions
        done["found"] += sum(
            simulation.finishes[each.request_id, 0] in ("stop", "length")
            for each in simulation.requests.values()
            if each.sampling.beam is not None
        )
    assert done["preempted"] > 10
    assert done["found"] > 60
