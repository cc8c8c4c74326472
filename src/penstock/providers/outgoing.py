"""A client's request as it can go out: a chat, whichever dialect it came in, and what writes its answer."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.api.anthropic.marks import marks_of
from penstock.api.anthropic.schema import MessagesFields, parse
from penstock.api.anthropic.thinking import Disabled
from penstock.api.anthropic.translate import NAMES as MESSAGES_NAMES
from penstock.api.anthropic.translate import chat_of_messages
from penstock.api.anthropic.writer import MessagesWriter
from penstock.api.extras import told_tier
from penstock.api.fields import FieldReader
from penstock.api.generation import StreamWriter
from penstock.api.history import conversation_of
from penstock.api.job import Job
from penstock.api.openai.schema import parse_chat
from penstock.api.openai.writer import CHAT, ResponseWriter
from penstock.api.parsing import Names, in_terms_of
from penstock.api.requests import ChatFields, Message
from penstock.api.responses.items import parse_items
from penstock.api.responses.parsing import parse_response
from penstock.api.responses.references import referenced
from penstock.api.responses.schema import ResponsesFields
from penstock.api.responses.tools import ToolNames
from penstock.api.responses.translate import NAMES as RESPONSES_NAMES
from penstock.api.responses.translate import chat_of_response, told_back
from penstock.api.responses.writer import ResponsesWriter
from penstock.core.errors import InvalidParameter
from penstock.core.sampling import SamplingParams
from penstock.http.answers import brief
from penstock.providers.told import ToldParsing

# As a token of a text has on average.
_TOKEN_BYTES = 4
# Of chats, what becomes parameters of sampling on own machines and goes on to providers.
_SAMPLING = ("temperature", "top_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty")


class Outgoing(msgspec.Struct, frozen=True):
    """A request.

    Attributes:
        model: as clients call it.
        chat: what it asks.
        names: of its fields, in the terms of its dialect.
        writing: makes the writer of its answer.
        ignored: names of its fields that have no effect.
    """

    model: str
    chat: ChatFields
    names: Names
    writing: Callable[[Job], StreamWriter]
    ignored: tuple[str, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """About, by the bytes of all texts that a provider reads of it."""
        chat = self.chat
        # Of schemas the names are read, too.
        schemas = sum(len(msgspec.json.encode(each)) for each in (chat.tools, chat.response_format) if each)
        return -(-(_bytes_of(msgspec.to_builtins(chat.messages)) + schemas) // _TOKEN_BYTES)

    def job(self) -> Job:
        """What its writer knows of it; the prompt's tokens are told later. Raises InvalidParameter."""
        chat, options = self.chat, self.chat.stream_options
        return Job(
            prompts=[[]],
            params=[_sampling(chat)],
            service_tier=told_tier(chat.service_tier),
            parsing=ToldParsing(
                parsers=[], call_ids=deque(), reasoned=[], reasoning_shown=chat.include_reasoning is not False
            ),
            ignored=self.ignored,
            stream=bool(chat.stream),
            include_usage=options is not None and bool(options.include_usage),
            obfuscated=options is not None and bool(options.include_obfuscation),
        )


def _bytes_of(value: Any) -> int:
    """Of all texts in a value. It may be nested deeper than functions may call themselves."""
    left, size = [value], 0
    while left:
        match left.pop():
            case str(text):
                size += len(text.encode())
            case dict(fields):
                left += fields.values()
            case list(entries):
                left += entries
    return size


def _sampling(chat: ChatFields) -> SamplingParams:
    """What own machines know, too, within their bounds."""
    given = {name: value for name in _SAMPLING if (value := getattr(chat, name)) is not None}
    limits = {each for each in (chat.max_tokens, chat.max_completion_tokens) if each is not None}
    if len(limits) > 1:
        raise InvalidParameter("max_tokens", "differs from max_completion_tokens; send one of them.")
    name = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    with in_terms_of((("max_tokens", name),)):
        return SamplingParams(max_tokens=next(iter(limits), None), **given)


_Read = Callable[[bytes, FieldReader, str], Outgoing]


def outgoing(path: str, body: bytes, model: str) -> Outgoing:
    """The request as it can go out. Raises RequestError where it cannot, and says why.

    Args:
        model: as its answer names it.
    """
    read = _READERS.get(path)
    if read is None:
        raise InvalidParameter(
            "model", f"{model!r} is a provider's here, which answers {', '.join(sorted(_READERS))}, and not {path}."
        )
    reader = FieldReader()
    asked = read(body, reader, model)
    for name in ("prompt_cache_key", "prompt_cache_retention"):
        # What is kept of own machines' caches.
        if getattr(asked.chat, name) is not None:
            reader.ignore(name)
    with in_terms_of(asked.names):
        # Providers may take parts that are no text.
        conversation_of([replace(each, content="") if _has_parts(each) else each for each in asked.chat.messages])
        # What is out of range is refused by the same words as on own machines.
        asked.job()
    return replace(asked, ignored=brief(reader.ignored))


def _has_parts(message: Message) -> bool:
    return isinstance(message.content, list)


def _chat(body: bytes, reader: FieldReader, model: str) -> Outgoing:
    return Outgoing(model, parse_chat(body, reader), (), lambda job: ResponseWriter(CHAT, job, model, None))


def _messages(body: bytes, reader: FieldReader, model: str) -> Outgoing:
    fields = parse(body, MessagesFields, reader)
    if fields.thinking is not None and not isinstance(fields.thinking, Disabled):
        raise InvalidParameter("thinking", "does not go to the provider of this model; use output_config.effort.")
    if marks_of(fields):
        reader.ignore("cache_control")
    chat = chat_of_messages(fields, ())
    return Outgoing(model, chat, MESSAGES_NAMES, lambda job: MessagesWriter(job, model, None))


def _response(body: bytes, reader: FieldReader, model: str) -> Outgoing:
    fields = parse_response(body, reader, ResponsesFields)
    if fields.store is not False:
        raise InvalidParameter("store", "is not false, and nothing of a provider's answers is stored; ask with false.")
    if fields.previous_response_id is not None or referenced(fields.input):
        raise InvalidParameter("previous_response_id", "the provider of this model has no stored responses.")
    names = ToolNames(fields.tools or ())
    chat = chat_of_response(fields, names, (), parse_items(fields.input, reader))
    back: dict[str, Any] = told_back(fields, kept=False)
    terms = (*names.places, *RESPONSES_NAMES)
    return Outgoing(model, chat, terms, lambda job: ResponsesWriter(job, model, None, back, names))


_READERS: Mapping[str, _Read] = {
    "/v1/chat/completions": _chat,
    "/v1/messages": _messages,
    "/v1/responses": _response,
}
