"""How models share a machine's memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.configuration.memory_shares import Need, share_memory, told_memory
from penstock.configuration.pool_size import WORKSPACE_BYTES
from penstock.core.errors import InsufficientMemory

GIB = 1 << 30
NEEDS = st.builds(
    Need,
    name=st.just("m"),
    weights=st.integers(0, 8 * GIB),
    smallest=st.just(0) | st.integers(1, GIB),
    most=st.integers(GIB, 32 * GIB),
    asked=st.none() | st.integers(1, 4 * GIB),
).map(lambda need: need if need.smallest else Need(need.name, need.weights))


def test_what_is_left_goes_in_equal_parts_to_pools_without_a_size() -> None:
    encoder, asking = Need("embedder", GIB), Need("small", GIB, smallest=1, asked=2 * GIB)
    shares = share_memory(20 * GIB, [Need("chat", 4 * GIB, 1), encoder, asking, Need("other", 2 * GIB, 1)])
    left = 20 * GIB - (4 + 1 + 1 + 2 + 2) * GIB - 4 * WORKSPACE_BYTES
    assert shares == [
        4 * GIB + WORKSPACE_BYTES + left // 2,
        GIB + WORKSPACE_BYTES,
        3 * GIB + WORKSPACE_BYTES,
        2 * GIB + WORKSPACE_BYTES + left // 2,
    ]


@given(available=st.integers(0, 64 * GIB), needs=st.lists(NEEDS, min_size=1, max_size=4))
def test_shares_are_enough_for_each_and_not_too_much_for_all(available: int, needs: list[Need]) -> None:
    try:
        shares = share_memory(available, needs)
    except InsufficientMemory:
        # With a part for each that is as large as the largest that one of them needs, they do not fit.
        sharing = [need.smallest for need in needs if need.smallest and need.asked is None]
        more = len(sharing) * max(sharing, default=0) - sum(sharing)
        assert sum(need.least for need in needs) + more > available - len(sharing)
        return
    assert sum(shares) <= available
    assert all(share >= need.least for share, need in zip(shares, needs, strict=True))


def test_what_one_has_no_use_for_goes_to_the_others() -> None:
    needs = [Need("chat", 4 * GIB, 1), Need("tiny", GIB, 1, most=GIB), Need("other", 2 * GIB, 1)]
    shares = share_memory(20 * GIB, needs)
    left = 20 * GIB - 7 * GIB - 3 * WORKSPACE_BYTES
    assert shares[1] == 2 * GIB + WORKSPACE_BYTES
    assert shares[0] - 4 * GIB == shares[2] - 2 * GIB == (left - GIB) // 2 + WORKSPACE_BYTES


def test_models_that_do_not_fit_are_told_with_what_each_needs() -> None:
    needs = [Need("chat", 4 * GIB, 1 << 20, asked=GIB), Need("embedder", 100 << 20)]
    with pytest.raises(InsufficientMemory) as caught:
        share_memory(3 * GIB, needs)
    assert str(caught.value) == (
        "The models do not fit into the 3.00 GiB of memory that are available: 'chat' needs 5.50 GiB (4.00 GiB of "
        "weights, 512 MiB of working space, 1.00 GiB of KV pool); 'embedder' needs 612 MiB (100 MiB of weights, "
        "512 MiB of working space). Serve fewer of them, or take smaller ones, or --quantization int8 or int4."
    )


def test_what_they_take_is_told() -> None:
    reason = told_memory(8 * GIB, [("chat", 3 * GIB), ("embedder", GIB // 2)])
    assert str(reason).startswith("memory: chat 3.00 GiB + embedder 512 MiB (weights, 512 MiB of working space each")
