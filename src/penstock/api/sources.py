"""What requests mean to an encoder–decoder, whose prompts are sources, and what of them is for such models alone."""

from penstock.api.requests import CompletionFields
from penstock.core.errors import ContextLengthExceeded, InvalidParameter, Lengths
from penstock.core.sourced import no_source
from penstock.engine.interface import ModelInfo
from penstock.text.forced import forced_bos_of
from penstock.text.tokenizer import Tokenizer


def check_sources(fields: CompletionFields, model: ModelInfo, tokenizer: Tokenizer | None) -> int | None:
    """The token that outputs are to begin with; None where the request names none.

    Raises InvalidParameter where it asks for what the model cannot do.
    """
    if model.sourced is None:
        if fields.forced_bos_token is not None:
            raise no_source("forced_bos_token")
        return None
    if fields.echo:
        raise InvalidParameter(
            "echo", "an encoder–decoder's output does not go on where its prompt ends; leave it out."
        )
    if fields.prompt_logprobs is not None:
        raise InvalidParameter(
            "prompt_logprobs", "an encoder–decoder reads its prompt and gives no probabilities of it; leave it out."
        )
    forced = forced_bos_of(fields.forced_bos_token, tokenizer)
    if forced is not None and not 0 <= forced < model.vocab_size:
        raise InvalidParameter(
            "forced_bos_token", f"the token id {forced} is outside the vocabulary, 0..{model.vocab_size - 1}."
        )
    return forced


def check_source(tokens: int, model: ModelInfo, param: str) -> None:
    """Raise ContextLengthExceeded where a prompt of this number of tokens is a source that is too long."""
    if model.sourced is None or tokens <= model.sourced.longest:
        return
    raise ContextLengthExceeded(
        f"The prompt has {tokens} tokens; this model's encoder reads at most {model.sourced.longest} tokens. "
        "Shorten the prompt.",
        param=param,
        lengths=Lengths(tokens, 0, model.sourced.longest),
    )
