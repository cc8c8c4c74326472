"""A prompt is handed over where those that wait then wait less in all, and only there."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.handover import Side, TransferTimes, judge

LEAST = 256
IDLE = Side(queue=0.0, tokens=4000, prefill=4000.0, streams=0)


def side(**fields: float) -> Side:
    values = {"queue": 0.0, "tokens": 4000, "prefill": 4000.0, "streams": 0, **fields}
    return Side(**values)  # type: ignore[arg-type]


def test_an_idle_replica_computes_its_prompts_itself() -> None:
    assert not judge(IDLE, IDLE, 0.1, LEAST).hands_over


def test_streams_beside_a_long_prompt_are_spared() -> None:
    verdict = judge(side(streams=3), IDLE, 0.1, LEAST)
    assert verdict.hands_over
    assert "would wait 4.00 s for it (3 streams beside it), elsewhere 1.10 s with 0.10 s for its blocks" in verdict.why


def test_neither_a_queue_nor_a_slow_way_is_worth_it() -> None:
    assert not judge(side(streams=3), side(queue=3.0), 0.1, LEAST).hands_over
    assert not judge(side(streams=3), IDLE, 3.1, LEAST).hands_over
    # Nor a replica that computes prompts slowly.
    assert not judge(side(streams=3), side(prefill=900.0), 0.1, LEAST).hands_over


def test_what_is_cached_where_it_is_decoded_stays() -> None:
    verdict = judge(side(tokens=LEAST - 1, streams=50), side(tokens=0), 0.0, LEAST)
    assert not verdict.hands_over and "only 255 tokens" in verdict.why
    assert judge(side(tokens=LEAST, streams=50), side(tokens=0), 0.0, LEAST).hands_over


def test_a_queue_where_it_is_decoded_is_a_reason_without_streams() -> None:
    assert judge(side(queue=2.0), IDLE, 0.1, LEAST).hands_over


sides = st.builds(Side, st.floats(0, 100), st.integers(0, 100_000), st.floats(1, 1e5), st.integers(0, 256))


@given(sides, sides, st.floats(0, 10))
def test_more_to_wait_for_never_turns_it_round(here: Side, there: Side, transfer: float) -> None:
    """More streams or a longer queue here speak for handing over, there against it."""
    more_here = Side(here.queue + 1, here.tokens, here.prefill, here.streams + 1)
    more_there = Side(there.queue + 1, there.tokens, there.prefill, there.streams + 1)
    assert judge(here, there, transfer, 0).hands_over <= judge(more_here, there, transfer, 0).hands_over
    assert judge(here, more_there, transfer, 0).hands_over <= judge(here, there, transfer, 0).hands_over
    assert judge(here, there, transfer + 1, 0).hands_over <= judge(here, there, transfer, 0).hands_over


def test_what_handing_over_takes_is_learnt() -> None:
    times = TransferTimes()
    guessed = times.expected(4000)
    for _ in range(50):
        times.measured(4000, 2.0)
    assert guessed < 0.5 and abs(times.expected(4000) - 2.0) < 0.01
    assert abs(times.expected(2000) - 1.0) < 0.02
    for _ in range(50):
        times.measured(1000, 0.0)
    assert times.expected(1000) < 0.01
