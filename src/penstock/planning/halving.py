"""A search by halving."""

from collections.abc import Callable


def largest_that(keeps: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which `keeps` holds; 0 where it does not hold for 1.

    It must hold for all numbers below one for which it does.
    """
    if most < 1 or not keeps(1):
        return 0
    if keeps(most):
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
