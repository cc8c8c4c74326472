"""What providers' APIs have in common."""

from collections.abc import Sequence
from typing import Protocol

from penstock.api.requests import ChatFields
from penstock.core.errors import InvalidParameter
from penstock.providers.told import Step

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
