"""What providers' APIs have in common."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.api.requests import ChatFields
from penstock.api.tools import NamedTool
from penstock.core.errors import InvalidParameter
from penstock.core.plan import FinishReason
from penstock.providers.errors import BrokenAnswer
from penstock.providers.told import Step

logger = logging.getLogger("penstock.providers")

_Event = TypeVar("_Event")

# Of chats, what only own machines can do, with the values that ask for nothing.
_OWN_ONLY: dict[str, tuple[object, ...]] = {
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "repetition_penalty": (1, 1.0),
    "min_tokens": (0,),
    "prompt_logprobs": (),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "add_special_tokens": (),
    "return_token_ids": (False,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "thinking_token_budget": (),
    "kv_policy": ("full",),
    "use_beam_search": (False,),
    "best_of": (1,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
}


class AnswerReader(Protocol):
    """Reads the events of one answer."""

    def read(self, data: bytes) -> Sequence[Step]:
        """What an event says. Raises BrokenAnswer."""

    @property
    def complete(self) -> bool:
        """Whether the answer has come to its end."""


class ProviderApi(Protocol):
    """One API.

    Attributes:
        path: behind the provider's root.
    """

    path: str

    def check(self, chat: ChatFields) -> None:
        """Raise InvalidParameter for what it cannot do."""

    def headers(self, key: str) -> list[tuple[bytes, bytes]]:
        """With which it is asked, beside those of all requests."""

    def body(self, chat: ChatFields, model: str, most: int) -> bytes:
        """What it is asked; `most`: tokens of the answer where the chat has no bound."""

    def reader(self) -> AnswerReader:
        """One for each answer, since events refer to those before them."""


def refuse(chat: ChatFields, fields: dict[str, tuple[object, ...]], who: str) -> None:
    """Raise InvalidParameter for the first of some fields that asks for something; the values ask for nothing."""
    for name, neutral in fields.items():
        value = getattr(chat, name)
        if value is not None and value not in neutral:
            raise InvalidParameter(name, f"{who} cannot do that; leave it out, or ask for a model of own machines.")


def check_common(chat: ChatFields) -> None:
    """Raise InvalidParameter for what no provider can do."""
    refuse(chat, _OWN_ONLY, "the provider of this model")
    options = chat.stream_options
    if options is not None and options.continuous_usage_stats:
        raise InvalidParameter(
            "stream_options.continuous_usage_stats", "the provider of this model tells usage at the end; leave it out."
        )
    _check_choice(chat)
    _check_schema(chat.response_format)


def _check_choice(chat: ChatFields) -> None:
    """As `api/tools.py` does for own machines."""
    choice = chat.tool_choice
    if choice not in (None, "none") and not chat.tools:
        raise InvalidParameter("tool_choice", "needs tools.")
    if isinstance(choice, NamedTool):
        if choice.function.name not in {each.function.name for each in chat.tools or ()}:
            raise InvalidParameter("tool_choice", f"{choice.function.name[:64]!r} is not one of the tools.")
    elif choice not in (None, "none", "auto", "required"):
        raise InvalidParameter(
            "tool_choice", f"{choice[:40]!r} is not one of none, auto, required and an object that names a function."
        )


def _check_schema(asked: dict[str, Any] | None) -> None:
    """As `api/structured.py` does for own machines, as far as a provider may not say it better."""
    if asked is None:
        return
    kind = asked.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidParameter(
            "response_format.type", f"{str(kind)[:40]!r} is not one of text, json_object, json_schema."
        )
    if kind != "json_schema":
        return
    given = asked.get("json_schema")
    if not isinstance(given, dict):
        raise InvalidParameter("response_format.json_schema", "must be an object with the fields name and schema.")
    if not isinstance(given.get("schema"), dict):
        raise InvalidParameter("response_format.json_schema.schema", "must be a JSON schema.")


def read_event(decode: Callable[[bytes], _Event], data: bytes) -> _Event:
    """An event of an answer. Raises BrokenAnswer."""
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenAnswer(f"an event of it cannot be read: {error}") from None
    except RecursionError:
        raise BrokenAnswer("an event of it cannot be read: it is nested too deep") from None


def finish_of(reason: str, known: Mapping[str, FinishReason], broken: frozenset[str]) -> FinishReason:
    """Why an answer has ended. Raises BrokenAnswer where it has not come to its end."""
    if reason in broken:
        raise BrokenAnswer(f"it ended its answer with {reason!r}")
    if reason not in known:
        _tell_unknown(reason[:80])
    return known.get(reason, "stop")


@lru_cache(maxsize=100)
def _tell_unknown(reason: str) -> None:
    """Once for each."""
    logger.warning("A provider ended an answer with %r, which is not known; it is told as 'stop'.", reason)


def bound_of(chat: ChatFields, most: int) -> int:
    """The most tokens of an answer; `most` where the chat has no bound."""
    return min((each for each in (chat.max_tokens, chat.max_completion_tokens) if each is not None), default=most)
