"""Whether another replica computes a prompt than goes on with it: only where those that wait then wait less in all.

A replica that decodes gives its running streams less while it computes a prompt (Zhong et al., DistServe, OSDI 2024,
section 2.3). A prompt that is computed elsewhere costs the time that its blocks take to come. What is compared are
seconds of waiting, summed over the request and the streams beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.routing.ask import Choice
from penstock.routing.loads import Loads
from penstock.routing.speed import Speed

# What handing over takes beside what grows with the prompt, and the time of one token of it, until that is measured.
_GUESSED_SECONDS, _GUESSED_TOKEN = 0.005, 1 / 20_000
# The newest measurement's weight.
_NEWEST = 0.2


@dataclass(frozen=True, slots=True)
class Side:
    """A replica that could compute a prompt.

    Attributes:
        queue: seconds until it has computed the prompts that it has already.
        tokens: of the prompt that it has not in its cache.
        prefill: tokens of prompts that it computes in a second.
        streams: that it decodes meanwhile.
    """

    queue: float
    tokens: int
    prefill: float
    streams: int

    @property
    def seconds(self) -> float:
        """What the prompt takes by itself."""
        return self.tokens / self.prefill

    @property
    def waiting(self) -> float:
        """Seconds that the request and all its streams wait, added up, where it computes the prompt."""
        return self.queue + self.seconds * (1 + self.streams)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a prompt is handed over, with the reason in words."""

    hands_over: bool
    why: str


def judge(here: Side, there: Side, transfer: float, least: int) -> Verdict:
    """Whether a prompt is computed `there` and not where its output is generated.

    `transfer` is how many seconds its blocks take; prompts with fewer than `least` tokens to compute stay.
    """
    if here.tokens < least:
        return Verdict(False, f"only {here.tokens} tokens of the prompt are to be computed, fewer than {least}")
    saved = here.waiting - there.waiting - transfer
    told = (
        f"computed where it is decoded, all would wait {here.waiting:.2f} s for it ({here.streams} streams beside it), "
        f"elsewhere {there.waiting + transfer:.2f} s with {transfer:.2f} s for its blocks"
    )
    return Verdict(saved > 0, told)


def compared(
    loads: Loads, speeds: Sequence[Speed], choice: Choice, able: Mapping[int, int], tokens: int
) -> tuple[int, Side, Side]:
    """Of the replicas that could compute a prompt, the place of the one where all wait least; the side of the one that
    was chosen to decode it, and that one's.

    Args:
        choice: the prompt was counted there already.
        able: the tokens of the prompt that each of them has in its cache, by its place; there is one at least.
    """

    def side(place: int, hit: int, like: int) -> Side:
        # What a replica that decodes measures are the ends of prompts, which say little of how fast it computes long
        # ones: it is taken to be as fast as the other one.
        uncached, prefill = max(0, tokens - hit), speeds[like].prefill
        waiting = loads.uncached[place] - (uncached if place != like else 0)
        streams = max(0, loads.requests[place] - loads.reading[place])
        return Side(max(0, waiting) / prefill, uncached, prefill, streams)

    sides = {place: side(place, hit, place) for place, hit in able.items()}
    best = min(sides, key=lambda place: (sides[place].waiting, place))
    return best, side(choice.replica, choice.hit, best), sides[best]


class TransferTimes:
    """How long handing over takes: what was measured weighs the more, the newer it is."""

    def __init__(self) -> None:
        self._token = _GUESSED_TOKEN

    def expected(self, tokens: int) -> float:
        """Seconds for the blocks of a prompt of this number of tokens."""
        return _GUESSED_SECONDS + tokens * self._token

    def measured(self, tokens: int, seconds: float) -> None:
        """That of this number of tokens took this long, from when it was asked for to the next event of the answer."""
        if tokens > 0:
            token = max(0.0, seconds - _GUESSED_SECONDS) / tokens
            self._token += _NEWEST * (token - self._token)
