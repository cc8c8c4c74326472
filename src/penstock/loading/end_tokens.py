"""Which tokens end an output: every one that a file of the model names for it.

Files often name different ones. A fine-tune's tokenizer ends a turn with a token of its own, while the configuration
still has the base model's; an output that went on behind either would run to its limit.
"""

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core.config import Reason
from penstock.core.errors import ModelFileError
from penstock.loading.checkpoint import GENERATION_CONFIG, Checkpoint
from penstock.loading.folder import CONFIG
from penstock.loading.gguf import is_gguf
from penstock.text.tokenizer import Tokenizer

_SETTING = "end tokens"


@dataclass(frozen=True, slots=True)
class EndTokens:
    """The ids, without those that the model has no logit for, and the files that they are from."""

    ids: tuple[int, ...]
    reason: Reason


def end_tokens(checkpoint: Checkpoint, tokenizer: Tokenizer | None, vocab_size: int) -> EndTokens:
    """What ends an output: the union of what generation_config.json, config.json and the tokenizer say.

    Raises ModelFileError where a file says something else than ids.
    """
    named = [(file, ids) for file, ids in _sources(checkpoint) if ids]
    why = [f"{file}: {', '.join(map(str, ids))}" for file, ids in named]
    ids = [token for _, each in named for token in each]
    if tokenizer is not None and tokenizer.eos_token is not None:
        own = tokenizer.eos_token_id
        why.append(f"tokenizer: {tokenizer.eos_token}" + ("" if own is not None else ", which it has no id for"))
        ids += [] if own is None else [own]
    beyond = sorted({token for token in ids if token >= vocab_size})
    if beyond:
        why.append(f"without {', '.join(map(str, beyond))}, beyond the vocabulary of {vocab_size}")
    kept = tuple(dict.fromkeys(token for token in ids if token < vocab_size))
    if not why:
        why.append("no file names one; an output ends at max_tokens, or where a request's stop says")
    return EndTokens(kept, Reason(_SETTING, _shown(kept, tokenizer), "; ".join(why)))


def _sources(checkpoint: Checkpoint) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Files, and the ids in them. What metadata of a GGUF file say is its configuration."""
    config = checkpoint.config
    if is_gguf(checkpoint.path):
        yield checkpoint.path.name, _token_ids(checkpoint.path.name, config.get("eos_token_id"))
        return
    yield GENERATION_CONFIG, _token_ids(GENERATION_CONFIG, checkpoint.generation_config.get("eos_token_id"))
    yield CONFIG, _token_ids(CONFIG, config.get("eos_token_id"))
    inner = config.get("text_config")
    if isinstance(inner, dict):
        yield f"text_config in {CONFIG}", _token_ids(f"{CONFIG}: text_config", inner.get("eos_token_id"))


def _token_ids(file: str, value: Any) -> tuple[int, ...]:
    """The ids in a file's `eos_token_id`, which is one, a list of them, or nothing."""
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise ModelFileError(
                f"{file}: eos_token_id is {reprlib.repr(value)}; it must be a token id, or a list of token ids."
            )
    return tuple(ids)


def _shown(ids: tuple[int, ...], tokenizer: Tokenizer | None) -> str:
    if not ids:
        return "none"
    names = {token: None if tokenizer is None else tokenizer.token(token) for token in ids}
    return ", ".join(str(token) if name is None else f"{name} ({token})" for token, name in names.items())
