"""The endpoints of Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.anthropic.read import MessagesReader
from penstock.api.anthropic.writer import MessagesWriter
from penstock.api.generation import GenerationResponse
from penstock.api.job import Job
from penstock.api.service import Service
from penstock.http.answers import json_response


class MessagesApi:
    """The endpoints in the form of Anthropic's API."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reader = MessagesReader(service.reading, lambda: service.engine.model)

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
        count = await self._service.reading.beside(len(body), self._reader.count, body, reader)
        return json_response({"input_tokens": count}, ignored=reader.ignored)

    async def _prepare(self, body: bytes) -> tuple[Job, Callable[[Job], MessagesWriter]]:
        job = await self._service.reading.beside(len(body), self._reader.resolve, body)
        return job, lambda job: MessagesWriter(job, self._service.engine.model.name, self._service.reading.table)
