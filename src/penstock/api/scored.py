"""What becomes of vectors that are scores."""

from typing import Literal

import msgspec

from penstock.core.vectors import ScoreActivation
from penstock.text.tokenizer import Place


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """How a job's vectors are told as scores.

    Attributes:
        form: whose API it is.
        activation: what makes scores of logits.
        labels: names of classes, in the order of a vector's numbers.
        compared: pairs of prompts whose vectors are compared, of a model that makes vectors of meanings; empty where
            each prompt is a pair.
        most: how many of the best are told; None: all.
        texts: what is told beside scores; None: nothing.
        places: of each prompt, where each of its tokens stands in its text, None for what was put around it; empty
            where scores are not of tokens.
        single: whether one input was given, and not a list.
    """

    form: Literal["own", "tei"] = "own"
    activation: ScoreActivation = "identity"
    labels: tuple[str, ...] = ()
    compared: tuple[tuple[int, int], ...] = ()
    most: int | None = None
    texts: tuple[str, ...] | None = None
    places: tuple[tuple[Place | None, ...], ...] = ()
    single: bool = False
