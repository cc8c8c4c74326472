"""The endpoints of scores and classes, and of vectors as TEI has them."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.fields import FieldReader
from penstock.api.generation import GenerationResponse, Writer
from penstock.api.job import Job
from penstock.api.job_endpoint import JobEndpoint
from penstock.api.parsing import decode_object
from penstock.api.reading import Reading, told
from penstock.api.scoring import writers
from penstock.api.scoring.errors import TEI, in_tei_form
from penstock.api.scoring.fields import (
    RERANK_RULES,
    ClassifyFields,
    RerankFields,
    ScoreFields,
    TeiEmbedFields,
    TeiPredictFields,
    TeiRerankFields,
    convert,
    parse,
)
from penstock.api.scoring.resolve import ScoringResolver
from penstock.api.scoring.tei import embed_job, predict_job, rerank_job
from penstock.api.service import Service
from penstock.api.vector_writer import Computed, VectorWriter
from penstock.engine.interface import ModelInfo
from penstock.http.error_bodies import PLAIN

# Paths that a batch may ask for.
BATCHED = ("/v1/rerank", "/v1/score", "/v1/classify")


class ScoringApi:
    """The endpoints of scores and classes.

    Attributes:
        job_endpoints: by path.
        batched: those that a batch may ask for, by path.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.job_endpoints = job_endpoints(service.reading, lambda: service.engine.model)
        self.batched = {path: self.job_endpoints[path] for path in BATCHED}

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [Route(path, self.answer, methods=["POST"]) for path in self.job_endpoints]

    async def answer(self, request: Request) -> Response | GenerationResponse:
        """`POST` to any of them"""
        endpoint = self.job_endpoints[request.scope["path"]]

        async def prepare(body: bytes) -> tuple[Job, Callable[[Job], Writer]]:
            return await self._service.reading.beside(len(body), endpoint.resolve, body), endpoint.writer

        return await self._service.generate(request, endpoint.name, prepare)


def job_endpoints(reading: Reading, model: Callable[[], ModelInfo]) -> dict[str, JobEndpoint]:
    """What each endpoint does, by path."""
    resolver = ScoringResolver(reading.tokenizer)

    def resolving(resolve: Callable[[bytes, FieldReader], Job]) -> Callable[[bytes], Job]:
        def read(body: bytes) -> Job:
            reader = reading.reader()
            return told(reader, resolve(body, reader))

        return read

    def writing(write: Callable[[writers.Answer], Any], prefix: str) -> Callable[[Job], Writer]:
        def body(computed: Computed) -> bytes:
            return msgspec.json.encode(write(writers.Answer(computed, model().name)))

        return lambda job: VectorWriter(job, prefix, body, TEI if _is_tei(job) else PLAIN)

    def rerank(body: bytes, reader: FieldReader, *, returned: bool = True) -> Job:
        fields = parse(body, reader, RerankFields, RERANK_RULES)
        return resolver.rerank(fields, model(), returned=returned)

    def either(body: bytes, reader: FieldReader) -> Job:
        """Jina's and TEI's form have the same path."""
        fields = decode_object(body)
        if in_tei_form(fields):
            return rerank_job(convert(fields, reader, TeiRerankFields), resolver, model())
        return resolver.rerank(convert(fields, reader, RerankFields, RERANK_RULES), model(), returned=True)

    def either_form(answer: writers.Answer) -> Any:
        return (writers.write_tei_ranks if answer.scored.form == "tei" else writers.write_rerank)(answer)

    score = JobEndpoint(
        "score",
        resolving(lambda body, reader: resolver.score(parse(body, reader, ScoreFields), model())),
        writing(writers.write_scores, "score-"),
    )
    classify = JobEndpoint(
        "classify",
        resolving(lambda body, reader: resolver.classify(parse(body, reader, ClassifyFields), model())),
        writing(writers.write_classes, "classify-"),
    )
    return {
        "/v1/rerank": JobEndpoint("rerank", resolving(rerank), writing(writers.write_rerank, "rerank-")),
        # Cohere's second version tells no documents.
        "/v2/rerank": JobEndpoint(
            "rerank",
            resolving(lambda body, reader: rerank(body, reader, returned=False)),
            writing(writers.write_rerank, "rerank-"),
        ),
        "/rerank": JobEndpoint("rerank", resolving(either), writing(either_form, "rerank-")),
        "/v1/score": score,
        "/score": score,
        "/v1/classify": classify,
        "/classify": classify,
        "/predict": JobEndpoint(
            "classify",
            resolving(lambda body, reader: predict_job(parse(body, reader, TeiPredictFields), resolver, model())),
            writing(writers.write_tei_classes, "classify-"),
        ),
        "/embed": JobEndpoint(
            "embeddings",
            resolving(lambda body, reader: embed_job(parse(body, reader, TeiEmbedFields), reading.resolver, model())),
            lambda job: VectorWriter(job, "embd-", writers.write_tei_vectors, TEI),
        ),
    }


def _is_tei(job: Job) -> bool:
    return job.scored is not None and job.scored.form == "tei"
