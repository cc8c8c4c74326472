"""What is given to a model from Python: texts, token ids, and what becomes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import InvalidParameter, RowFailed, rebuild_error
from penstock.core.vector_form import VectorForm
from penstock.core.vectors import VectorModules
from penstock.engine.interface import RequestOutput
from penstock.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer | None) -> list[int]:
    """Ids of a prompt given as text, as ids, or as {"prompt": …} or {"prompt_token_ids": […]}."""
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown or len(prompt) != 1:
            raise InvalidParameter("prompt", 'a mapping must have exactly one of "prompt" and "prompt_token_ids".')
        prompt = next(iter(prompt.values()))
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InvalidParameter("prompt", "no tokenizer is loaded, so text cannot be read; give prompt_token_ids.")
        if not prompt:
            raise InvalidParameter("prompt", "it is empty; at least one character, or one token id, is needed.")
        return tokenizer.encode(prompt)
    ids = [token for token in prompt if isinstance(token, int) and not isinstance(token, bool)]
    if len(ids) != len(prompt):
        raise InvalidParameter("prompt", "token ids must be integers.")
    return ids


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Prompts as a list, of one or of several."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """Conversations as a list, of one or of several."""
    one = [message for message in messages if isinstance(message, Mapping)]
    many = [conversation for conversation in messages if not isinstance(conversation, Mapping)]
    if one and many:
        raise InvalidParameter("messages", "give one list of messages, or a list of such lists, not a mixture.")
    return [one] if one else many


def vector_input(
    prompt: Prompt, tokenizer: Tokenizer | None, modules: VectorModules, input_type: str | None
) -> tuple[list[int], int]:
    """Token ids of what becomes a vector, and how many of the first do not go into it.

    A text gets the checkpoint's prompt of this name before it, or the usual one. Raises InvalidParameter.
    """
    before = modules.prompt(input_type)
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    if not before or not isinstance(text, str) or not text:
        if before and input_type is not None and not isinstance(text, str):
            raise InvalidParameter(
                "prompt", "token ids have no prompt put before them; give texts, or leave out input_type."
            )
        return prompt_tokens(prompt, tokenizer), 0
    ids = prompt_tokens(before + text, tokenizer)
    return ids, 0 if modules.includes_prompt or tokenizer is None else tokenizer.around(before)[0]


def vector_in(output: RequestOutput, form: VectorForm) -> list[float]:
    """The numbers of a finished request for a vector. Raises RowFailed or StepOutOfMemory where it has none."""
    if output.embedding is None:
        ending = output.deltas[0].ending
        error, code = (None, None) if ending is None else (ending.error, ending.code)
        raise rebuild_error(code or RowFailed.code, error or "The engine stopped before this vector was computed.")
    return list(form.of(output.embedding))
