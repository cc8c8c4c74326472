"""The search by halving, against looking at each number."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.halving import largest_that


@given(st.integers(-3, 300), st.integers(0, 400))
def test_it_finds_the_largest(most: int, limit: int) -> None:
    asked: list[int] = []

    def keeps(number: int) -> bool:
        asked.append(number)
        return number <= limit

    assert largest_that(keeps, most) == max((number for number in range(1, most + 1) if number <= limit), default=0)
    assert len(asked) <= 12 and all(1 <= number <= most for number in asked)
