"""Memory is used again once all holders have left it, and not before."""

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.copies import Copies, Copy


def test_what_was_left_is_taken_again() -> None:
    copies = Copies()
    first = copies.take(100)
    copies.leave(first)
    assert copies.take(100).content is first.content
    assert copies.take(100).content is not first.content


def test_what_somebody_holds_is_not_taken() -> None:
    copies = Copies()
    first = copies.hold(copies.take(100))
    copies.leave(first)
    assert copies.take(100).content is not first.content
    copies.leave(first)
    assert copies.take(100).content is first.content


def test_another_size_is_not_taken_and_little_is_kept() -> None:
    copies = Copies(most_idle=250)
    held = [copies.take(100) for _ in range(3)]
    for each in held:
        copies.leave(each)
    assert len(copies.take(90).content) == 90
    again = [copies.take(100).content for _ in range(3)]
    assert [any(each.content is content for each in held) for content in again] == [True, True, False]


@given(st.integers(0, 2**32))
def test_no_memory_has_two_owners(seed: int) -> None:
    luck, copies, held = random.Random(seed), Copies(most_idle=400), list[tuple[Copy, int, int]]()
    for number in range(60):
        if held and luck.random() < 0.5:
            copy, mark, times = held.pop(luck.randrange(len(held)))
            assert copy.content == bytes([mark]) * len(copy.content)
            for _ in range(times):
                copies.leave(copy)
        else:
            copy, times = copies.take(luck.choice((50, 100))), luck.randrange(1, 4)
            copy.content[:] = bytes([number]) * len(copy.content)
            for _ in range(times - 1):
                copies.hold(copy)
            held.append((copy, number, times))
