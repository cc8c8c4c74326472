"""How fast a replica is: what it says of itself, and how it measures that."""

from typing import Annotated

import msgspec

# The weight of the newest step beside all before it.
_NEWEST = 0.05
# Of steps' rows: where it is less, they say nothing of what a row takes.
_LEAST_VARIANCE = 0.25


class Speed(msgspec.Struct, frozen=True, gc=False):
    """What a replica's steps take, as it measured them.

    Attributes:
        prefill: tokens of prompts a second, where nothing else is computed.
        decode: seconds of a step that only decodes, with one row.
        row: seconds by which each further row makes it longer.
        token: seconds by which each token that the rows see makes it longer.
    """

    prefill: Annotated[float, msgspec.Meta(gt=0)]
    decode: Annotated[float, msgspec.Meta(gt=0)]
    row: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    token: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    def step(self, rows: int, context: int) -> float:
        """Seconds of a step that only decodes."""
        return self.decode + self.row * max(0, rows - 1) + self.token * context


# Of a replica that tells nothing of its speed: it is taken to be as fast as others like it.
GUESSED = Speed(prefill=5000.0, decode=0.02, row=0.0005)


class SpeedMeter:
    """Measures a replica's speed from its steps: means in which older steps weigh less.

    Steps that only decode are taken to last a constant and a time for each row, by least squares through the last ones.
    What a step with prompts takes beyond that is its prompts'.
    """

    def __init__(self) -> None:
        self._rows = self._seconds = self._variance = self._covariance = 0.0
        self._tokens = self._longer = 0.0

    @property
    def speed(self) -> Speed | None:
        """None until steps of both kinds were measured."""
        if not self._longer or not self._rows:
            return None
        row = self._row
        return Speed(self._tokens / self._longer, max(1e-6, self._seconds - row * (self._rows - 1)), row)

    @property
    def of_prompts(self) -> Speed | None:
        """The speed of a replica that only computes prompts; None until it has."""
        return Speed(self._tokens / self._longer, GUESSED.decode, GUESSED.row) if self._longer else None

    @property
    def _row(self) -> float:
        """Seconds of a further row, at most what a row takes in the mean."""
        if self._variance <= _LEAST_VARIANCE:
            return 0.0
        return min(max(0.0, self._covariance / self._variance), self._seconds / self._rows)

    def step(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step computed the next token of `decodes` sequences, and `prompt_tokens` of prompts."""
        if prompt_tokens:
            own = seconds - (self._seconds + self._row * (decodes - self._rows) if decodes and self._rows else 0.0)
            self._tokens += _NEWEST * (prompt_tokens - self._tokens)
            self._longer += _NEWEST * (max(own, 0.1 * seconds) - self._longer)
        elif decodes:
            if not self._rows:
                self._rows, self._seconds = float(decodes), seconds
            more, longer = decodes - self._rows, seconds - self._seconds
            self._rows += _NEWEST * more
            self._seconds += _NEWEST * longer
            self._variance = (1 - _NEWEST) * (self._variance + _NEWEST * more * more)
            self._covariance = (1 - _NEWEST) * (self._covariance + _NEWEST * more * longer)
