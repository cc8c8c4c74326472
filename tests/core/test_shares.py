"""What ranks have of a model is all of it, each part once, or on purpose more than once."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.shares import Share, TensorRank, head_shares, shares

COUNTS = st.integers(1, 200)


@given(of=st.integers(1, 5000), size=st.integers(1, 70), unit=st.sampled_from([1, 2, 32, 64, 128, 256]))
def test_shares_follow_one_another_and_are_of_like_size(of: int, size: int, unit: int) -> None:
    assume(of >= size)
    found = shares(of, size, unit)
    assert [each.first for each in found] == [sum(each.count for each in found[:rank]) for rank in range(size)]
    assert sum(each.count for each in found) == of
    assert all(each.count > 0 and each.of == of for each in found)
    unit = next(step for step in (unit, 32, 1) if of // step >= size and step <= unit)
    # All begin with a whole unit, and none has more than one unit more than another, but for a remainder at the end.
    assert all(each.first % unit == 0 for each in found)
    units = [-(-each.count // unit) for each in found]
    assert max(units) - min(units) <= 1


@given(kv_heads=st.integers(1, 40), readers=st.integers(1, 12), size=st.integers(1, 64))
def test_each_query_head_is_in_one_rank_beside_what_it_reads(kv_heads: int, readers: int, size: int) -> None:
    query_heads = kv_heads * readers
    assume(query_heads >= size)
    found = head_shares(query_heads, kv_heads, size)
    assert len(found) == size
    heads = [head for each in found for head in range(each.query.first, each.query.first + each.query.count)]
    assert heads == list(range(query_heads))
    for each in found:
        for place in range(each.query.count):
            # Kernels let a query head read by its place among its rank's: it must be the head it reads in the model.
            local = place * each.kv.count // each.query.count
            assert each.kv.first + local == (each.query.first + place) // readers
    most, least = max(each.query.count for each in found), min(each.query.count for each in found)
    # Heads of keys and values are not taken apart where there are enough of them.
    assert most - least <= (readers if kv_heads >= size else -(-readers // (size // kv_heads)))


@given(kv_heads=COUNTS, readers=COUNTS, more=st.integers(1, 9))
def test_more_ranks_than_query_heads_are_refused_by_name(kv_heads: int, readers: int, more: int) -> None:
    query_heads = kv_heads * readers
    with pytest.raises(ConfigurationError, match=f"has {query_heads} query heads"):
        head_shares(query_heads, kv_heads, query_heads + more)


def test_a_share_of_larger_items() -> None:
    assert Share(2, 3, 9).times(64) == Share(128, 192, 576)
    assert Share(2, 3, 9).behind(9, 18) == Share(11, 3, 18)


@pytest.mark.parametrize("rank, size", [(2, 2), (-1, 2), (0, 0)])
def test_there_is_no_such_rank(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="no rank"):
        TensorRank(rank, size)


def test_items_for_all() -> None:
    with pytest.raises(ValueError, match="3 items are too few for 4 ranks"):
        shares(3, 4)
