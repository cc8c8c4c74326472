"""What `make test` leaves to `make soak`: of each value of each parameter, something is tried all the same."""

from itertools import product

import pytest

from support.subsets import kept

CASES = {
    f"test[{letter}-{size}-{flag}]": {"letter": letter, "size": size, "flag": flag}
    for letter, size, flag in product("abcdefgh", (1, 2, 3, [4]), (True, False))
}


@pytest.mark.parametrize("number", [1, 2, 5, 64, 1000])
def test_each_value_of_each_parameter_is_kept(number: int) -> None:
    names = kept(CASES, number)
    for parameter in ("letter", "size", "flag"):
        assert {str(CASES[name][parameter]) for name in names} == {str(each[parameter]) for each in CASES.values()}
    # Beside the share, at most what shows a value that nothing before it has.
    assert -(-64 // number) <= len(names) <= -(-64 // number) + 14


def test_it_may_be_asked_of_some_parameters() -> None:
    assert len(kept(CASES, 64, each=())) == 1
    names = kept(CASES, 64, each=("flag",))
    assert len(names) == 2 and {CASES[name]["flag"] for name in names} == {True, False}


def test_it_does_not_depend_on_the_order_of_cases() -> None:
    assert kept(dict(reversed(CASES.items())), 5) == kept(CASES, 5)
