"""Inputs that are cut because their request asks for it."""

from typing import Literal

import msgspec

from penstock.api.requests import EmbeddingFields, ScoringFields
from penstock.core.errors import InvalidParameter
from penstock.engine.interface import ModelInfo

FIELD = "truncate_prompt_tokens"


class Truncation(msgspec.Struct, frozen=True):
    """Which tokens of an input stay.

    Attributes:
        most: the largest number of tokens that stay.
        side: where others are left out: "right" keeps the first ones, "left" the last ones.
    """

    most: int
    side: Literal["left", "right"]

    def cut(self, tokens: list[int], prefix: int = 0, suffix: int = 0) -> list[int]:
        """The tokens that stay: the first `prefix` and the last `suffix` always do.

        Raises InvalidParameter where there is no room for another one beside these.
        """
        if len(tokens) <= self.most:
            return tokens
        room = self.most - prefix - suffix
        if room < 1:
            raise InvalidParameter(
                FIELD,
                f"{self.most} leaves no room beside the {prefix + suffix} tokens put around texts; ask for more.",
            )
        end = len(tokens) - suffix
        kept = tokens[prefix : prefix + room] if self.side == "right" else tokens[end - room : end]
        return [*tokens[:prefix], *kept, *tokens[end:]]


def truncation_of(fields: EmbeddingFields | ScoringFields, model: ModelInfo) -> Truncation | None:
    """What a request wants cut; None where it wants nothing cut. Raises InvalidParameter.

    As in vLLM, -1 stands for what the model takes, and what is left out is at the end unless the request says other.
    """
    most = fields.truncate_prompt_tokens
    if most is None:
        if fields.truncation_side is not None:
            raise InvalidParameter("truncation_side", f"needs {FIELD}.")
        return None
    if most == -1:
        most = model.max_model_len
    if not 1 <= most <= model.max_model_len:
        raise InvalidParameter(FIELD, f"{most} is outside 1..{model.max_model_len}; -1 stands for the latter.")
    return Truncation(most, fields.truncation_side or "right")
