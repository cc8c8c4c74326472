"""How the outputs of an encoder–decoder begin, as its files say it: start and forced tokens, and those of languages."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.core.sourced import Sourced
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.start_tokens import start_tokens
from penstock.text.language_names import short_code
from penstock.text.languages import language_tokens
from penstock.text.tokenizer import Tokenizer

_TARGET = re.compile(r">>([a-z]{2,3}(?:_[A-Z][a-z]{3})?)<<")
_TASK = re.compile(r"translation_([a-z]{2,3})_to_([a-z]{2,3})")


def read_sourced(checkpoint: Checkpoint, tokenizer: Tokenizer | None, vocab_size: int, longest: int) -> Sourced:
    """What the files say; `longest` is how many tokens a source has at most.

    Raises ModelFileError where they name no token with which the decoder begins, or something else than a token.
    """
    found = start_tokens(checkpoint, vocab_size)
    languages = {} if tokenizer is None else language_tokens(tokenizer)
    return Sourced(
        longest,
        found.start,
        found.forced,
        {code: token for code, token in languages.items() if token < vocab_size},
        _pairs(checkpoint, tokenizer),
        tuple((token,) for token in found.never),
    )


def _marked(tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Marian's tokens for targets, such as ">>fra<<", with their codes."""
    for index in range(tokenizer.vocab_size):
        token = tokenizer.token(index) or ""
        match = _TARGET.fullmatch(token)
        if match is not None:
            yield token, match[1]


def _pairs(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> dict[tuple[str, str], str]:
    """What the files say of languages that have no tokens: Marian's tokenizers have one pair, T5's tasks have some."""
    settings: Mapping[str, Any] = {} if tokenizer is None else tokenizer.config
    source, target = settings.get("source_lang"), settings.get("target_lang")
    if tokenizer is not None and isinstance(source, str) and isinstance(target, str):
        # Where there are several targets, the text begins with what stands for one of them.
        named = {short_code(code): token for token, code in _marked(tokenizer)}
        return {(short_code(source), code): f"{token} " for code, token in named.items()} or {
            (short_code(source), short_code(target)): ""
        }
    tasks = checkpoint.config.get("task_specific_params")
    found = {}
    for name, task in (tasks if isinstance(tasks, dict) else {}).items():
        match = _TASK.fullmatch(name)
        prefix = task.get("prefix") if isinstance(task, dict) else None
        if match is not None and isinstance(prefix, str):
            found[short_code(match[1]), short_code(match[2])] = prefix
    return found
