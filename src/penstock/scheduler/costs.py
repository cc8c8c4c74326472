"""What steps cost that only decode, by how many tokens are in them, as this machine has shown."""

from bisect import bisect_left
from dataclasses import dataclass

# Steps are told apart by the least of these that their tokens do not exceed; larger ones are not told apart.
SIZES = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128),
    *(160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048),
)
# The mean of a size's first `FIRST` steps is taken; then its newest step has the weight `NEWEST` beside all before it.
# Costs of all sizes follow each step with the exponent `COMMON`: a machine that becomes slower does so for all sizes.
FIRST = 10
NEWEST = 0.05
COMMON = 0.1
# A step that took longer than this many times what was expected was held up by something else.
MOST_OFF = 2.0
# Sizes that differ by this factor show how costs grow.
APART = 2.0
# A size without a step among this many newest ones is not known any more: contexts grow and machines change.
FORGOTTEN = 1000


@dataclass(slots=True)
class _Size:
    """Steps of about one size: how many tokens they had in the mean, how long they took, and how many there were.

    `newest` is which step of all was the last of them.
    """

    tokens: float
    seconds: float
    count: int
    newest: int


class StepCosts:
    """Seconds of a step by its size: means in which older steps weigh less, with straight lines between them.

    A step smaller than all measured ones is taken to cost less in proportion, which is the least it can, so that it is
    tried. A larger one is on the line from the smallest to the largest, since neighbours differ by chance too. Where
    these are about one size, half of a step's cost is taken to grow with it.
    """

    def __init__(self, *, even: bool = True) -> None:
        """`even` steps of one size take as long, but for what held them up, and become slower together."""
        self._even = even
        self._sizes: dict[int, _Size] = {}
        # What the seconds of all sizes are multiples of.
        self._common = 1.0
        self._steps = 0
        self._points: tuple[list[float], list[float]] | None = None

    def measured(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`; 0 where that is not known."""
        if seconds <= 0 or tokens > SIZES[-1]:
            return
        self._steps += 1
        self._points = None
        place = bisect_left(SIZES, tokens)
        size = self._sizes.get(place)
        if size is None or self._steps - size.newest >= FORGOTTEN:
            self._sizes[place] = _Size(float(tokens), seconds / self._common, 1, self._steps)
            return
        size.count += 1
        size.newest = self._steps
        weight = max(1 / size.count, NEWEST if size.count > FIRST else 0.0)
        size.tokens += weight * (tokens - size.tokens)
        if not self._even:
            size.seconds += weight * (seconds - size.seconds)
            return
        off = seconds / (size.seconds * self._common)
        if size.count > FIRST:
            off = min(max(off, 1 / MOST_OFF), MOST_OFF)
            self._common *= off**COMMON
        size.seconds *= off**weight

    def of(self, tokens: float) -> float:
        """Seconds that a step of `tokens` tokens takes; 0 where nothing is known of any step."""
        if self._points is None:
            known = [self._sizes[place] for place in sorted(self._sizes)]
            known = [size for size in known if self._steps - size.newest < FORGOTTEN]
            self._points = [size.tokens for size in known], [size.seconds * self._common for size in known]
        sizes, seconds = self._points
        if not sizes:
            return 0.0
        above = bisect_left(sizes, tokens)
        if above == 0:
            return seconds[0] * min(1.0, tokens / sizes[0])
        if above == len(sizes):
            # No token costs less than nothing, nor more than one of a step in which nothing else is.
            most = seconds[-1] / sizes[-1]
            each = most / 2
            if sizes[-1] >= APART * sizes[0]:
                each = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
            return seconds[-1] + (tokens - sizes[-1]) * min(max(0.0, each), most)
        part = (tokens - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return seconds[above - 1] + part * (seconds[above] - seconds[above - 1])
