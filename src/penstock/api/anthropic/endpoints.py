"""The endpoints of Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Callable

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.anthropic.marks import kept_prefixes, marks_of
from penstock.api.anthropic.schema import Fields, MessagesFields, PromptFields, parse
from penstock.api.anthropic.thinking import Disabled, asks_for_reasoning
from penstock.api.anthropic.translate import NAMES, chat_of_messages, chat_of_prefix, chat_of_prompt
from penstock.api.anthropic.writer import MessagesWriter
from penstock.api.fields import FieldReader
from penstock.api.generation import GenerationResponse
from penstock.api.job import Job
from penstock.api.parsing import in_terms_of
from penstock.api.reading import told
from penstock.api.resolve import check_model_name
from penstock.api.service import Service
from penstock.http.answers import json_response


class MessagesApi:
    """The endpoints in the form of Anthropic's API."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
        ]

    async def messages(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/messages`"""
        return await self._service.generate(request, "messages", self._prepare)

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`"""
        body, reader = await self._service.read(request), self._service.reading.reader()
        count = await self._service.reading.beside(len(body), self._count, body, reader)
        return json_response({"input_tokens": count}, ignored=reader.ignored)

    async def _prepare(self, body: bytes) -> tuple[Job, Callable[[Job], MessagesWriter]]:
        job = await self._service.reading.beside(len(body), self._resolve, body)
        return job, lambda job: MessagesWriter(job, self._service.engine.model.name, self._service.reading.table)

    def _resolve(self, body: bytes) -> Job:
        reader, variables = self._service.reading.reader(), self._service.reading.resolver.template_variables
        fields = self._parse(body, MessagesFields, reader)
        marks = marks_of(fields)
        job = told(
            reader, self._service.reading.chat(chat_of_messages(fields, variables), NAMES, self._service.engine.model)
        )
        return replace(job, keep=kept_prefixes(marks, job.prompts[0], self._encode_prefix)) if marks else job

    def _parse(self, body: bytes, kind: type[Fields], reader: FieldReader) -> Fields:
        """The fields; what they say of reasoning in vain is told."""
        fields = parse(body, kind, reader)
        off = isinstance(fields.thinking, Disabled)
        if off and fields.output_config is not None and fields.output_config.effort not in (None, "none"):
            # What does not reason does so with no effort.
            reader.ignore("output_config.effort")
        if off and self._service.reading.resolver.always_reasons:
            reader.ignore("thinking")
        if self._service.reading.resolver.reasons or not asks_for_reasoning(fields.thinking):
            return fields
        reader.ignore("thinking")
        return replace(fields, thinking=None)

    def _encode_prefix(self, fields: PromptFields) -> list[int]:
        resolver = self._service.reading.resolver
        return resolver.chat_prompt(chat_of_prefix(fields, resolver.template_variables))

    def _count(self, body: bytes, reader: FieldReader) -> int:
        asked, resolver = self._parse(body, PromptFields, reader), self._service.reading.resolver
        # Keeping changes no count, but a request that is refused there has none.
        marks_of(asked)
        fields = chat_of_prompt(asked, resolver.template_variables)
        with in_terms_of(NAMES):
            check_model_name(fields.model, self._service.engine.model)
            return len(resolver.chat_prompt(fields))
