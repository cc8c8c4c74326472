"""Words that must not be generated, as sequences of tokens."""

from collections.abc import Iterable

from msgspec.structs import replace

from penstock.core.sampling import SamplingParams
from penstock.text.tokenizer import Tokenizer


def with_words_as_ids(params: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
    """The parameters with `bad_words` added to `bad_words_ids`; as they are where there is no tokenizer."""
    if not params.bad_words or tokenizer is None:
        return params
    ids = (*params.bad_words_ids, *bad_words_ids(params.bad_words, tokenizer))
    return replace(params, bad_words=(), bad_words_ids=ids)


def bad_words_ids(words: Iterable[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The sequences of tokens that `words` stand for, each once.

    A word stands for itself and for itself behind a space, as in vLLM, each at the beginning of a text and within one.
    Spaces before it are left out, unless there is nothing else.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        for text in (bare, f" {bare}"):
            for ids in (tokenizer.encode(text, add_special_tokens=False), tokenizer.encode_continuation(text)):
                if ids:
                    found[tuple(ids)] = None
    return list(found)
