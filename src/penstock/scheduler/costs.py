"""What steps cost that only decode, by how many tokens are in them, as this machine has shown."""

from bisect import bisect_left

# Steps are told apart by the least of these that their tokens do not exceed; larger ones are not told apart.
SIZES = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128),
    *(160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048),
)
# What the newest step weighs beside all before it.
NEWEST = 0.1
# A size that so many steps have passed by is not known any more, since contexts grow and machines change.
FORGOTTEN = 1000


class StepCosts:
    """Seconds of a step by its size: means in which older steps weigh less, with straight lines between them.

    What is larger than all that was measured is taken to cost no more, and what is smaller to cost as much less: that
    is the least they can, so that they are tried, and then known.
    """

    def __init__(self) -> None:
        self._seconds: list[float | None] = [None] * len(SIZES)
        self._newest = [0] * len(SIZES)
        self._steps = 0

    def measured(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long; 0 where that is not known."""
        if seconds <= 0 or tokens > SIZES[-1]:
            return
        self._steps += 1
        place = bisect_left(SIZES, tokens)
        known = self._known(place)
        self._seconds[place] = seconds if known is None else known + NEWEST * (seconds - known)
        self._newest[place] = self._steps

    def of(self, tokens: float) -> float:
        """Seconds that a step of so many tokens takes; 0 where nothing is known of any."""
        place = min(bisect_left(SIZES, tokens), len(SIZES) - 1)
        above = next((at for at in range(place, len(SIZES)) if self._known(at) is not None), None)
        below = next((at for at in range(place - 1, -1, -1) if self._known(at) is not None), None)
        high = None if above is None else self._known(above)
        low = None if below is None else self._known(below)
        if high is not None and low is None and above is not None:
            return high * min(1.0, tokens / SIZES[above])
        if high is None or low is None or above is None or below is None:
            return low or 0.0
        part = (min(tokens, SIZES[above]) - SIZES[below]) / (SIZES[above] - SIZES[below])
        return low + part * (high - low)

    def _known(self, place: int) -> float | None:
        return self._seconds[place] if self._steps - self._newest[place] < FORGOTTEN else None
