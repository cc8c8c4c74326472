"""Keys of blocks."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.keys import keys_of, namespace

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_keys_are_alike_as_far_as_prompts_are(one: list[int], other: list[int], block: int) -> None:
    alike = 0
    while alike < min(len(one), len(other)) and one[alike] == other[alike]:
        alike += 1
    keys, others = keys_of(one, block, 7).keys, keys_of(other, block, 7).keys
    assert len(keys) == len(one) // block and len(set(keys)) == len(keys)
    assert [a == b for a, b in zip(keys, others, strict=False)] == [
        (place + 1) * block <= alike for place in range(min(len(keys), len(others)))
    ]
    assert not set(keys) & set(keys_of(one, block, 8).keys)


def test_parts_of_a_name_are_not_run_together() -> None:
    assert len({namespace(), namespace(b""), namespace(b"ab"), namespace(b"a", b"b"), namespace(b"", b"ab")}) == 5
