"""Tokens of texts and conversations, and back: `/tokenize` and `/detokenize`, as vLLM has them."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.effort import Effort
from penstock.api.fields import FieldReader, FieldRules, RefusedField
from penstock.api.openai.schema import RULES as CHAT_RULES
from penstock.api.openai.schema import settle_messages
from penstock.api.parsing import decode_object
from penstock.api.requests import ChatFields, Message
from penstock.api.resolve import NO_TOKENIZER, Resolver, check_ids, check_model_name
from penstock.api.service import Service
from penstock.api.tools import ToolFields
from penstock.core.errors import InvalidParameter
from penstock.engine.interface import ModelInfo
from penstock.http.answers import ignored_header
from penstock.text.tokenizer import Tokenizer

RULES: FieldRules = {
    "chat_template": CHAT_RULES["chat_template"],
    "mm_processor_kwargs": RefusedField("is not supported; only text is.", ({},)),
}
_OF_CHATS = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning_effort",
)

_Work = Callable[[bytes, FieldReader, Tokenizer, Resolver, ModelInfo], bytes]


class TokenizeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/tokenize`: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolFields] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/detokenize`."""

    tokens: list[int]
    model: str | None = None


class TokensApi:
    """The endpoints that turn texts into tokens and back."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`"""
        return await self._answer(request, _tokenize)

    async def detokenize(self, request: Request) -> Response:
        """`POST /detokenize`"""
        return await self._answer(request, _detokenize)

    async def _answer(self, request: Request, work: _Work) -> Response:
        service = self._service
        body = await service.read(request)
        if service.reading.tokenizer is None:
            raise InvalidParameter("prompt", NO_TOKENIZER)
        reader = service.reading.reader()
        arguments = (body, reader, service.reading.tokenizer, service.reading.resolver, service.engine.model)
        answer = await service.reading.beside(len(body), work, *arguments)
        return Response(answer, 200, ignored_header(reader.ignored), "application/json")


def _tokenize(body: bytes, reader: FieldReader, tokenizer: Tokenizer, resolver: Resolver, model: ModelInfo) -> bytes:
    given = decode_object(body)
    reader.settle(given, RULES)
    settle_messages(given, reader)
    fields = reader.convert(given, TokenizeFields)
    check_model_name(fields.model, model)
    ids = _ids(fields, tokenizer, resolver)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
    answer["token_strs"] = [tokenizer.token(index) for index in ids] if fields.return_token_strs else None
    return msgspec.json.encode(answer)


def _ids(fields: TokenizeFields, tokenizer: Tokenizer, resolver: Resolver) -> list[int]:
    if fields.messages is not None:
        if fields.prompt is not None:
            raise InvalidParameter("prompt", "cannot be combined with messages; send one of them.")
        chat = {name: getattr(fields, name) for name in (*_OF_CHATS, "add_special_tokens")}
        return resolver.chat_prompt(ChatFields(**chat))
    if fields.prompt is None:
        raise InvalidParameter("prompt", "is missing; send a text as prompt, or a conversation as messages.")
    for name in _OF_CHATS:
        if getattr(fields, name) is not None:
            raise InvalidParameter(name, "needs messages.")
    return tokenizer.encode(fields.prompt, fields.add_special_tokens is not False)


def _detokenize(body: bytes, reader: FieldReader, tokenizer: Tokenizer, resolver: Resolver, model: ModelInfo) -> bytes:
    fields = reader.convert(decode_object(body), DetokenizeFields)
    check_model_name(fields.model, model)
    if fields.tokens:
        check_ids(fields.tokens, model, "tokens")
    # Special ones too, so that what was tokenized comes back.
    return msgspec.json.encode({"prompt": tokenizer.decode(fields.tokens, skip_special=False)})
