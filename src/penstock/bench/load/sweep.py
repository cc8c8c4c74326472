"""The largest rate that meets the service levels, by trying rates."""

from collections.abc import Generator

# The answer is within this factor of a rate that does not meet them.
CLOSE = 1.08
_MOST_STEPS = 8


def largest_rate(first: float) -> Generator[float, bool, float | None]:
    """Yields the rates to try and is told of each whether it met the service levels; returns the largest that did.

    Rates are doubled (or halved) from `first` until one meets them and one does not, and then what is between them is
    halved. None where none of them met them; a rate that none failed above is the largest that was tried.
    """
    met, failed, rate = None, None, first
    for _ in range(_MOST_STEPS):
        if (yield rate):
            met = rate
            rate *= 2
        else:
            failed = rate
            rate /= 2
        if met is not None and failed is not None:
            break
    while met is not None and failed is not None and failed / met > CLOSE:
        # Halfway in proportion, so that low and high rates are found equally well.
        rate = (met * failed) ** 0.5
        if (yield rate):
            met = rate
        else:
            failed = rate
    return met
