"""What a user asks of beam search: `BeamSearch`, valid from the moment it exists, and what comes of it."""

from typing import Any, Literal

import msgspec

from penstock.core.checks import check_integer, check_number
from penstock.core.errors import InvalidParameter

MAX_BEAMS = 64
# Beyond, the power of a long output's length is no number.
MAX_LENGTH_PENALTY = 10.0

EarlyStopping = bool | Literal["never"]
NEVER: Literal["never"] = "never"


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Search for the likeliest outputs, as transformers' `generate` has it. Construction raises `InvalidParameter`.

    An output's score is the sum of its tokens' log probabilities, divided by their number to the power of
    `length_penalty` (Wu et al., "Google's Neural Machine Translation System", 2016, section 7, in its simple form).

    Attributes:
        width: beams, which is how many outputs that have not ended are followed at a time, 1..64. One is the same as
            greedy decoding.
        length_penalty: -10..10. Above 0 longer outputs gain by it, below 0 shorter ones do; at 0 scores are sums.
        early_stopping: when the search ends, once as many outputs have ended as there are beams. True: at once. False:
            when the best beam, were it to end now, would not score better than the worst of these. "never": when no
            beam could, however long it became; with a `length_penalty` of at most 0 this is the same as False.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        check_integer("beam_width", self.width, 1, MAX_BEAMS)
        check_number("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        given: Any = self.early_stopping
        if given != NEVER and not isinstance(given, bool):
            raise InvalidParameter("early_stopping", f'must be true, false or "{NEVER}", not {given!r}.')


class BeamScore(msgspec.Struct, frozen=True, array_like=True):
    """How likely an output of beam search is.

    Attributes:
        cumulative_logprob: the sum of its tokens' log probabilities.
        score: this with the length penalty, by which outputs are ordered.
    """

    cumulative_logprob: float
    score: float
