"""How the outputs of an encoder–decoder begin, as its files say it: start and forced tokens, and those of languages."""

import re
import reprlib
from typing import Any

from penstock.core.errors import InvalidParameter, ModelFileError
from penstock.core.sampling import SamplingParams
from penstock.core.sourced import Sourced
from penstock.loading.checkpoint import GENERATION_CONFIG, Checkpoint
from penstock.loading.folder import CONFIG
from penstock.text.tokenizer import Tokenizer

# As NLLB, mBART and M2M100 write them: eng_Latn, en_XX, __en__.
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})|([a-z]{2,3}_[A-Z]{2})")


def read_sourced(checkpoint: Checkpoint, tokenizer: Tokenizer | None, vocab_size: int, longest: int) -> Sourced:
    """What the files say; `longest` is how many tokens a source has at most.

    Raises ModelFileError where they name no token with which the decoder begins, or something else than a token.
    """
    start = _token(checkpoint, "decoder_start_token_id", vocab_size)
    if start is None:
        start = _token(checkpoint, "bos_token_id", vocab_size)
    if start is None:
        raise ModelFileError(
            f"{checkpoint.path}: neither {GENERATION_CONFIG} nor {CONFIG} has a decoder_start_token_id, with which the "
            "decoder begins."
        )
    languages = {} if tokenizer is None else _languages(tokenizer, vocab_size)
    forced = _token(checkpoint, "forced_bos_token_id", vocab_size)
    return Sourced(longest, start, forced, languages, _never(checkpoint))


def _token(checkpoint: Checkpoint, name: str, vocab_size: int) -> int | None:
    """What the first file says that says anything."""
    for file, settings in ((GENERATION_CONFIG, checkpoint.generation_config), (CONFIG, checkpoint.config)):
        value: Any = settings.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
            raise ModelFileError(
                f"{file}: {name} is {reprlib.repr(value)}; it must be a token id, 0 to {vocab_size - 1}."
            )
        return value
    return None


def _never(checkpoint: Checkpoint) -> tuple[tuple[int, ...], ...]:
    """What the files say that no output may have."""
    for file, settings in ((GENERATION_CONFIG, checkpoint.generation_config), (CONFIG, checkpoint.config)):
        value: Any = settings.get("bad_words_ids")
        if value is None:
            continue
        try:
            return SamplingParams(bad_words_ids=value).bad_words_ids
        except InvalidParameter as error:
            raise ModelFileError(f"{file}: {error.message}") from None
    return ()


def _languages(tokenizer: Tokenizer, vocab_size: int) -> dict[str, int]:
    """Special tokens that are codes of languages, in the order of their ids."""
    found = {}
    for index in tokenizer.special_ids():
        token = tokenizer.token(index) or ""
        match = _LANGUAGE.fullmatch(token)
        if match is not None and index < vocab_size:
            found[next(code for code in match.groups() if code)] = index
    return found
