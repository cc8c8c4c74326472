"""Tokens of queries and documents for models of late interaction (`core/late_interaction.py`)."""

from typing import NamedTuple

from penstock.core.errors import ContextLengthExceeded, TokenizerError
from penstock.core.late_interaction import LateInteraction, TextKind
from penstock.text.tokenizer import Tokenizer


class LateText(NamedTuple):
    """A text as the model gets it.

    Attributes:
        ids: its tokens.
        places: those of them whose vectors are compared, in order.
        unseen: how many of the last ones no token sees.
    """

    ids: list[int]
    places: list[int]
    unseen: int


class LateTokens:
    """Makes tokens of queries and documents. Raises TokenizerError where the tokenizer lacks one that is needed."""

    def __init__(self, tokenizer: Tokenizer, late: LateInteraction) -> None:
        self._tokenizer, self._late = tokenizer, late
        markers: dict[TextKind, str] = {"query": late.query_marker, "document": late.document_marker}
        self._markers = {kind: self._token(marker) for kind, marker in markers.items()}
        self._mask = self._token(tokenizer.special_tokens.get("mask_token", "[MASK]")) if late.expands else 0
        found = (tokenizer.token_id(token) for token in late.skipped)
        self._skipped = {token for token in found if token is not None}

    def __call__(self, text: str, kind: TextKind, *, cut: bool = False) -> LateText:
        """Raises ContextLengthExceeded for a text that is too long, unless it is to be `cut`."""
        ids, marker = self._tokenizer.encode(text), self._markers[kind]
        before, behind = self._tokenizer.added
        late = self._late
        longest = late.query_length if kind == "query" else late.document_length
        if len(ids) >= longest:
            if not cut:
                raise ContextLengthExceeded(
                    f"The {kind} has {len(ids) + 1} tokens, and this model takes {longest}; shorten it, or ask for "
                    "truncate_prompt_tokens = -1.",
                    param="input",
                )
            ids = [*ids[: longest - 1 - behind], *ids[len(ids) - behind :]]
        ids = [*ids[: min(before, 1)], marker, *ids[min(before, 1) :]]
        if kind == "document":
            return LateText(ids, [place for place, token in enumerate(ids) if token not in self._skipped], 0)
        filled = late.query_length - len(ids) if late.expands else 0
        ids += [self._mask] * filled
        return LateText(ids, list(range(len(ids))), 0 if late.seen else filled)

    def _token(self, text: str) -> int:
        found = self._tokenizer.token_id(text)
        if found is None:
            raise TokenizerError(
                f"The tokenizer in {self._tokenizer.directory} has no token {text!r}, which the model "
                "of late interaction needs."
            )
        return found
