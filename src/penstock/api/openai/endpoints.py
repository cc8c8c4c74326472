"""The endpoints of OpenAI's API for one request each."""

from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.fields import FieldReader
from penstock.api.generation import GenerationResponse, Writer
from penstock.api.job import Job
from penstock.api.job_endpoint import JobEndpoint
from penstock.api.openai.embeddings import write_embeddings
from penstock.api.openai.schema import parse_chat, parse_completion, parse_embedding
from penstock.api.openai.writer import CHAT, COMPLETION, ResponseWriter
from penstock.api.reading import Reading, told
from penstock.api.service import Service
from penstock.api.vector_writer import VectorWriter
from penstock.engine.interface import ModelInfo


class OpenAIApi:
    """The endpoints in the form of OpenAI's API.

    Attributes:
        job_endpoints: those for one request each, which a batch may ask for too, by path.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.job_endpoints = job_endpoints(service.reading, lambda: service.engine.model)

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [Route(path, self.generate, methods=["POST"]) for path in self.job_endpoints]

    async def generate(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/completions`, `/v1/chat/completions` and `/v1/embeddings`"""
        endpoint = self.job_endpoints[request.scope["path"]]

        async def prepare(body: bytes) -> tuple[Job, Callable[[Job], Writer]]:
            return await self._service.reading.beside(len(body), endpoint.resolve, body), endpoint.writer

        return await self._service.generate(request, endpoint.name, prepare)


def job_endpoints(reading: Reading, model: Callable[[], ModelInfo]) -> dict[str, JobEndpoint]:
    """What the endpoints for one request each do, by path."""
    resolver = reading.resolver

    def resolving(resolve: Callable[[bytes, FieldReader], Job]) -> Callable[[bytes], Job]:
        def read(body: bytes) -> Job:
            reader = reading.reader()
            return told(reader, resolve(body, reader))

        return read

    return {
        "/v1/completions": JobEndpoint(
            "completions",
            resolving(lambda body, reader: resolver.completion(parse_completion(body, reader), model())),
            lambda job: ResponseWriter(COMPLETION, job, model().name, reading.table),
        ),
        "/v1/chat/completions": JobEndpoint(
            "chat",
            resolving(lambda body, reader: resolver.chat(parse_chat(body, reader), model())),
            lambda job: ResponseWriter(CHAT, job, model().name, reading.table),
        ),
        "/v1/embeddings": JobEndpoint(
            "embeddings",
            resolving(lambda body, reader: resolver.embedding(parse_embedding(body, reader), model())),
            lambda job: VectorWriter(job, "embd-", partial(write_embeddings, model=model().name)),
        ),
    }
