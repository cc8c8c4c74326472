"""What the outputs of an encoder-decoder begin with, and which tokens they never have, as the model's files say it."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.loading.checkpoint import GENERATION_CONFIG, Checkpoint
from penstock.loading.folder import CONFIG


@dataclass(frozen=True, slots=True)
class StartTokens:
    """How outputs begin.

    Attributes:
        start: what the decoder is given first; it is no part of the output.
        forced: what it is given next unless a request names another, such as a language; None: nothing.
        never: tokens that are not for outputs: words of one token among `bad_words_ids`. Marian's padding is one.
    """

    start: int
    forced: int | None = None
    never: tuple[int, ...] = ()


def start_tokens(checkpoint: Checkpoint, vocab_size: int) -> StartTokens:
    """What generation_config.json says, and config.json where that does not.

    Raises ModelFileError where neither says how an output begins, or one names what is no token of the model.
    """
    files = ((GENERATION_CONFIG, checkpoint.generation_config), (CONFIG, checkpoint.config))
    start = _named(files, "decoder_start_token_id", vocab_size)
    if start is None:
        start = _named(files, "bos_token_id", vocab_size)
    if start is None:
        raise ModelFileError(
            f"Neither {GENERATION_CONFIG} nor {CONFIG} has a decoder_start_token_id, with which outputs begin; add the "
            "token's id to one of them."
        )
    return StartTokens(start, _named(files, "forced_bos_token_id", vocab_size), _never(files, vocab_size))


_Files = tuple[tuple[str, Mapping[str, Any]], ...]


def _named(files: _Files, key: str, vocab_size: int) -> int | None:
    for file, content in files:
        value = content.get(key)
        if value is not None:
            return _token(file, key, value, vocab_size)
    return None


def _never(files: _Files, vocab_size: int) -> tuple[int, ...]:
    for file, content in files:
        words = content.get("bad_words_ids")
        if words is None:
            continue
        if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
            raise ModelFileError(f"{file}: bad_words_ids is {reprlib.repr(words)}; it must be a list of lists of ids.")
        return tuple(_token(file, "bad_words_ids", word[0], vocab_size) for word in words if len(word) == 1)
    return ()


def _token(file: str, key: str, value: Any, vocab_size: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ModelFileError(
            f"{file}: {key} has {reprlib.repr(value)}, but the model's tokens are 0 to {vocab_size - 1}."
        )
    return value
