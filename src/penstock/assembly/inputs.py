"""What is given to a model from Python: texts, token ids, and what becomes of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.config import BLOCK_SIZE
from penstock.core.errors import InvalidParameter, RowFailed, rebuild_error
from penstock.core.kv_policy import FULL, AskedPolicy, KVPolicy
from penstock.core.late_interaction import text_kind
from penstock.core.vector_form import VectorForm
from penstock.core.vectors import Pooling, VectorModules, vectors_at
from penstock.engine.interface import RequestOutput
from penstock.text.chat_template import ChatEncoder
from penstock.text.judged_pairs import judged_pairs
from penstock.text.late_interaction import LateText, LateTokens
from penstock.text.tokenizer import Tokenizer
from penstock.text.vector_prompts import vector_prompt

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer | None) -> list[int]:
    """Ids of a prompt given as text, as ids, or as {"prompt": …} or {"prompt_token_ids": […]}."""
    (ids,) = prompts_tokens([prompt], tokenizer)
    return ids


def prompts_tokens(prompts: Sequence[Prompt], tokenizer: Tokenizer | None) -> list[list[int]]:
    """The same of each prompt."""
    read = [_read(prompt) for prompt in prompts]
    texts = [each for each in read if isinstance(each, str)]
    if texts and tokenizer is None:
        raise InvalidParameter("prompt", "no tokenizer is loaded, so text cannot be read; give prompt_token_ids.")
    encoded = iter(tokenizer.encode_all(texts) if tokenizer is not None else ())
    return [next(encoded) if isinstance(each, str) else each for each in read]


def _read(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown or len(prompt) != 1:
            raise InvalidParameter("prompt", 'a mapping must have exactly one of "prompt" and "prompt_token_ids".')
        prompt = next(iter(prompt.values()))
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidParameter("prompt", "it is empty; at least one character, or one token id, is needed.")
        return prompt
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


def asked_policy(
    given: AskedPolicy | KVPolicy | Literal["full"] | None, default: AskedPolicy | None
) -> AskedPolicy | None:
    """The policy of a call; None where contexts are held whole."""
    if given is None:
        return default
    if isinstance(given, KVPolicy):
        return AskedPolicy(policy=given)
    if isinstance(given, AskedPolicy):
        return given
    if given != FULL:
        raise InvalidParameter("kv_policy", f'must be a KVPolicy, "full" or None, not {given!r}.')
    return None


def bounding_policy(given: KVPolicy | Literal["full"] | None, default: AskedPolicy | None) -> KVPolicy | None:
    """The same for a prompt that is no conversation: nothing but its sinks is protected."""
    asked = asked_policy(given, default)
    return None if asked is None else asked.policy


def protecting(
    asked: AskedPolicy | None, encoder: ChatEncoder, prompt: list[int], messages: Sequence[Message]
) -> KVPolicy | None:
    """The policy for the prompt of a conversation. Raises InvalidParameter where it cannot hold what it protects."""
    if asked is None or asked.protect == "none":
        return None if asked is None else asked.policy
    return asked.protecting(encoder.opening_tokens(prompt, messages), BLOCK_SIZE)


def vector_input(
    prompt: Prompt, tokenizer: Tokenizer | None, modules: VectorModules, input_type: str | None
) -> tuple[list[int], int]:
    """Token ids of what becomes a vector, and how many of the first do not go into it.

    A text gets the checkpoint's prompt of this name before it, or the usual one. Raises InvalidParameter.
    """
    (given,) = vector_inputs([prompt], tokenizer, modules, input_type)
    return given


def vector_inputs(
    prompts: Sequence[Prompt], tokenizer: Tokenizer | None, modules: VectorModules, input_type: str | None
) -> list[tuple[list[int], int]]:
    """The same of each prompt."""
    before = modules.prompt(input_type)
    whole, skipped = list[Prompt](), list[int]()
    for prompt in prompts:
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if before and isinstance(text, str) and text:
            whole.append(before + text)
            skipped.append(vector_prompt(before, tokenizer, modules).skipped)
            continue
        if before and input_type is not None and not isinstance(text, str):
            raise InvalidParameter(
                "prompt", "token ids have no prompt put before them; give texts, or leave out input_type."
            )
        whole.append(prompt)
        skipped.append(0)
    return list(zip(prompts_tokens(whole, tokenizer), skipped, strict=True))


def late_input(text: Prompt, tokenizer: Tokenizer | None, modules: VectorModules, input_type: str | None) -> LateText:
    """A text whose tokens become vectors. Raises InvalidParameter."""
    if modules.late is None or tokenizer is None:
        ids, first = vector_input(text, tokenizer, modules, input_type)
        return LateText(ids, list(range(first, len(ids))), 0)
    kind = text_kind(input_type)
    if not isinstance(text, str) or not text:
        raise InvalidParameter("prompt", "must be a text that is not empty: its tokens are marked as the model needs.")
    return LateTokens(tokenizer, modules.late)(text, kind)


def one_vector(pooling: Pooling) -> Pooling:
    """The pooling, if it makes one vector of a text. Raises InvalidParameter."""
    if pooling == "tokens":
        raise InvalidParameter("pooling", "each token has a vector; use LLM.embed_tokens, or /v1/embeddings.")
    return pooling


def vectors_in(output: RequestOutput, form: VectorForm, text: LateText) -> list[list[float]]:
    """The numbers of each token's vector that is compared; raises as `vector_in` does."""
    return [list(form.of(each)) for each in vectors_at(text.places, embedding_of(output), len(text.ids))]


def vector_in(output: RequestOutput, form: VectorForm) -> list[float]:
    """The numbers of a finished request for a vector. Raises RowFailed or StepOutOfMemory where it has none."""
    return list(form.of(embedding_of(output)))


def embedding_of(output: RequestOutput) -> bytes:
    """What a finished request for vectors has; raises as `vector_in` does."""
    if output.embedding is None:
        ending = output.deltas[0].ending
        error, code = (None, None) if ending is None else (ending.error, ending.code)
        raise rebuild_error(code or RowFailed.code, error or "The engine stopped before this vector was computed.")
    return output.embedding


def pair_inputs(
    first: str,
    seconds: Sequence[str],
    tokenizer: Tokenizer | None,
    modules: VectorModules,
    instruction: str | None = None,
) -> list[tuple[list[int], int]]:
    """Token ids of a text with each of others, and where the second begins, 0 if the model is not told.

    Raises InvalidParameter.
    """
    if tokenizer is None:
        raise InvalidParameter("text", "no tokenizer is loaded, so texts cannot be read.")
    if not all((first, *seconds)):
        raise InvalidParameter("text", "one is empty; at least one character is needed.")
    if modules.classes is not None and modules.classes.template == "qwen3":
        return [(pair.ids, 0) for pair in judged_pairs(tokenizer, first, seconds, instruction=instruction)]
    typed = modules.classes is not None and modules.classes.tells_apart
    return [(pair.ids, pair.second) for pair in tokenizer.encode_pairs(first, seconds, typed=typed)]
