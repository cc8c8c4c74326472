"""The endpoints of LibreTranslate's API: `/translate` and `/languages`."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.generation import GenerationResponse
from penstock.api.job import Job
from penstock.api.reading import told
from penstock.api.service import Service
from penstock.api.translation.languages import languages_of
from penstock.api.translation.schema import parse_translation
from penstock.api.translation.translate import translation
from penstock.api.translation.writer import TranslationWriter
from penstock.http.answers import json_response


class TranslationApi:
    """The endpoints in the form of LibreTranslate's API."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/languages", self.languages, methods=["GET"]),
        ]

    async def translate(self, request: Request) -> Response | GenerationResponse:
        """`POST /translate`"""
        return await self._service.generate(request, "translate", self._prepare)

    async def languages(self, request: Request) -> Response:
        """`GET /languages`"""
        self._service.engine.check_ready()
        return json_response(msgspec.to_builtins(languages_of(self._service.engine.model.sourced)))

    async def _prepare(self, body: bytes) -> tuple[Job, Callable[[Job], TranslationWriter]]:
        job, listed = await self._service.reading.beside(len(body), self._resolve, body)
        return job, lambda job: TranslationWriter(job, listed=listed)

    def _resolve(self, body: bytes) -> tuple[Job, bool]:
        """The job, and whether texts came as a list."""
        reading = self._service.reading
        reader = reading.reader()
        fields = parse_translation(body, reader)
        job = translation(fields, self._service.engine.model, reading.tokenizer)
        return told(reader, job), isinstance(fields.q, list)
