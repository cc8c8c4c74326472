"""Requests for vectors: prompts before texts, texts of late interaction, and what the engine is asked for."""

from collections.abc import Sequence
from typing import Any

from penstock.api.extras import asked_standing
from penstock.api.job import Job
from penstock.api.requests import EmbeddingFields
from penstock.core.errors import InvalidParameter
from penstock.core.late_interaction import text_kind
from penstock.core.vector_form import VectorForm
from penstock.core.vectors import Pooling, pooled_tokens
from penstock.text.late_interaction import LateText, LateTokens

MAX_TEXTS = 1024
# Numbers of all vectors in one response, each of some 20 bytes of JSON.
MAX_VALUES = 2**22
_OF_TOKENS = "a model of late interaction has a vector for each token of a text"


def put_before(prompt: str, given: Any, *, asked: bool) -> tuple[Any, str]:
    """An input with a prompt before each of its texts, and what was put there.

    Token ids stay as they are unless it was `asked` for: then it raises InvalidParameter.
    """
    if not prompt:
        return given, ""
    texts = [given] if isinstance(given, str) else given
    if not all(isinstance(text, str) for text in texts):
        if not asked:
            return given, ""
        raise InvalidParameter(
            "input", "token ids have no prompt put before them; send texts, or leave out input_type."
        )
    return (prompt + given if isinstance(given, str) else [prompt + text for text in texts]), prompt


def late_texts(fields: EmbeddingFields, tokens: LateTokens) -> tuple[LateText, ...]:
    """The texts of a request to a model of late interaction. Raises RequestError."""
    kind = text_kind(fields.input_type)
    for name, usual, given in (
        ("pooling", "tokens", fields.pooling),
        ("add_special_tokens", True, fields.add_special_tokens),
        ("truncate_prompt_tokens", -1, fields.truncate_prompt_tokens),
        ("truncation_side", "right", fields.truncation_side),
    ):
        if given is not None and given != usual:
            raise InvalidParameter(name, f"{_OF_TOKENS}; leave it out, or send {usual!r}.")
    texts = [fields.input] if isinstance(fields.input, str) else fields.input
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidParameter(
            "input", "must be a text, or texts, none of them empty: tokens are marked as the model needs."
        )
    if len(texts) > MAX_TEXTS:
        raise InvalidParameter("input", f"{len(texts)} texts given, at most {MAX_TEXTS} are accepted.")
    cut = fields.truncate_prompt_tokens is not None
    return tuple(tokens(text, kind, cut=cut) for text in texts if isinstance(text, str))


def vector_job(
    fields: EmbeddingFields,
    form: VectorForm,
    prompts: list[list[int]],
    pooling: Pooling,
    *,
    pooled_from: int = 0,
    late: tuple[LateText, ...] = (),
) -> Job:
    """What the engine is asked for; raises InvalidParameter where an answer would be too long."""
    values = form.size * _vectors(prompts, pooling, pooled_from, late)
    if values > MAX_VALUES:
        raise InvalidParameter(
            "input",
            f"{values // form.size} vectors of {form.size} numbers are more than the {MAX_VALUES} of an answer.",
        )
    # OpenAI's client asks for base64 on its own, and reads float32 there whatever it is.
    plain = form.output_dtype != "float" or pooling == "tokens"
    unread = plain and fields.encoding_format == "base64"
    return Job(
        prompts=prompts,
        params=[],
        standing=asked_standing(fields),
        timeout=fields.timeout,
        user=fields.user,
        pooling=pooling,
        pooled_from=pooled_from,
        form=form,
        encoding_format="float" if unread else fields.encoding_format or "float",
        late=late,
        values=values,
        ignored=("encoding_format",) if unread else (),
    )


def _vectors(prompts: Sequence[list[int]], pooling: Pooling, pooled_from: int, late: tuple[LateText, ...]) -> int:
    """How many an answer has."""
    if late:
        return sum(len(text.places) for text in late)
    if pooling != "tokens":
        return len(prompts)
    return sum(pooled_tokens(len(prompt), pooled_from) for prompt in prompts)
