"""Requests whose outputs were begun elsewhere go on as if they had been begun here."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from support.made_up_model import expected_output
from support.simulation import Simulation, config, make_request, prompt

PROMPTS = st.lists(st.tuples(st.integers(1, 40), st.integers(2, 30), st.integers(1, 29)), min_size=1, max_size=6)


@given(PROMPTS, st.integers(40, 80), st.sampled_from([1, 2]), st.sampled_from([0, 20]))
def test_they_get_the_tokens_that_are_missing(
    asked: list[tuple[int, int, int]], blocks: int, outstanding: int, swap: int
) -> None:
    """Beside one another, with preemptions, swapping and shared prefixes; `Simulation` checks every token."""
    simulation = Simulation(blocks, config=config(max_outstanding=outstanding), windows=(None, 8), swap_blocks=swap)
    for number, (length, output, known) in enumerate(asked):
        request = make_request(number, prompt(length), output)
        whole, _ = expected_output(simulation.spec, request.prompt_token_ids, request.sampling, 0, ())
        simulation.submit(msgspec.structs.replace(request, output=tuple(whole[: min(known, len(whole) - 1)])))
    simulation.run()
    simulation.check_idle()
    for number, (_, output, _) in enumerate(asked):
        request = simulation.requests[number]
        assert len(simulation.outputs[number, 0]) == output - len(request.output)
