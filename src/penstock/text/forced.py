"""The token that an encoder–decoder's output is to begin with, as a request names it."""

from penstock.core.errors import InvalidParameter
from penstock.text.tokenizer import Tokenizer

_FIELD = "forced_bos_token"


def forced_bos_of(asked: str | int | None, tokenizer: Tokenizer | None) -> int | None:
    """The id of the token, which is asked for as it stands in the vocabulary, or by its id.

    Raises InvalidParameter where there is no such token.
    """
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, (str, int)):
        raise InvalidParameter(_FIELD, "must be a token of the vocabulary, or its id.")
    if isinstance(asked, int):
        return asked
    if tokenizer is None:
        raise InvalidParameter(_FIELD, "this server has no tokenizer, so tokens have no names; send the id.")
    # M2M100 writes codes of languages with lines around them.
    found = next((each for name in (asked, f"__{asked}__") if (each := tokenizer.token_id(name)) is not None), None)
    if found is None:
        raise InvalidParameter(_FIELD, f"{asked[:40]!r} is no token of this model's vocabulary.")
    return found
