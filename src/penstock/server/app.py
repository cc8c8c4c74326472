"""The HTTP application: routes over an engine client.

It is Starlette, with bodies parsed by msgspec: strict types, unknown fields refused by name, and no validation layer
between a token and its socket.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.core.errors import PenstockError
from penstock.core.sampling import SamplingDefaults
from penstock.engine.interface import EngineClient, ModelInfo
from penstock.observability.metrics import Endpoint, Metrics, Outcome
from penstock.server.batch_lines import BatchEndpoint, LineRunner
from penstock.server.body import read_json_body
from penstock.server.embeddings import EmbeddingWriter
from penstock.server.errors import as_penstock_error, error_response, on_error, on_method_not_allowed, on_not_found
from penstock.server.generation import GenerationResponse
from penstock.server.resolve import Job, Resolver, check_model_name
from penstock.server.schema import parse_chat, parse_completion, parse_embedding
from penstock.server.storage.store import Store
from penstock.server.stored import NO_STORE, StoredApi
from penstock.server.writer import CHAT, COMPLETION, ResponseWriter, Shape
from penstock.text.chat_template import ChatEncoder, ChatTemplate, load_chat_template
from penstock.text.output_format import OutputFormat, choose_format
from penstock.text.tokenizer import Tokenizer

logger = logging.getLogger("penstock.server")

MAX_BODY_BYTES = 32 * 1024 * 1024
# Shorter bodies are tokenized on the event loop: it takes less time than handing them to a thread.
INLINE_BODY_BYTES = 8 * 1024
TOKENIZER_THREADS = 2


def create_app(
    engine: EngineClient,
    tokenizer: Tokenizer | None,
    *,
    template: ChatTemplate | None = None,
    output_format: OutputFormat | None = None,
    defaults: SamplingDefaults | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    store: Store | None = None,
    why_no_store: str = NO_STORE,
) -> Starlette:
    """The ASGI application that serves `engine`.

    Args:
        engine: where requests go.
        tokenizer: None serves token-id prompts only.
        template: the chat template; the model's own by default.
        output_format: how the model writes calls of tools and reasoning; what the template says by default.
        defaults: sampling parameters where a request is silent.
        max_body_bytes: longer bodies are refused with 413.
        store: where files and batches are kept; it stays the caller's. None serves neither, and `why_no_store` tells.

    Raises TokenizerError where the model's chat template cannot be used.
    """
    chat = None
    if tokenizer is not None:
        template = template or load_chat_template(tokenizer)
        chat = ChatEncoder(tokenizer, template)
        output_format = output_format or choose_format(template, tokenizer)[0]
    resolver = Resolver(tokenizer, chat, defaults or SamplingDefaults(), output_format)
    metrics = Metrics(lambda: engine.load)
    api = _Api(engine, tokenizer, resolver, metrics, max_body_bytes)
    stored = StoredApi(store, why_no_store, LineRunner(engine, tokenizer, batch_endpoints(engine, resolver)), metrics)
    return Starlette(
        lifespan=stored.lifespan,
        routes=[
            *stored.routes(),
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/v1/chat/completions", api.chat_completions, methods=["POST"]),
            Route("/v1/embeddings", api.embeddings, methods=["POST"]),
            Route("/v1/models", api.models, methods=["GET"]),
            Route("/v1/models/{name:path}", api.one_model, methods=["GET"]),
            Route("/health/live", api.live, methods=["GET"]),
            Route("/health/ready", api.ready, methods=["GET"]),
            Route("/metrics", api.metrics, methods=["GET"]),
        ],
        exception_handlers={
            404: on_not_found,
            405: on_method_not_allowed,
            PenstockError: on_error,
            Exception: on_error,
        },
    )


class _Api:
    """The endpoints."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer | None,
        resolver: Resolver,
        metrics: Metrics,
        max_body_bytes: int,
    ) -> None:
        self._engine = engine
        self._table = None if tokenizer is None else tokenizer.table
        self._resolver = resolver
        self._max_body_bytes = max_body_bytes
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    async def completions(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/completions`"""
        return await self._generate(
            request,
            "completions",
            COMPLETION,
            lambda body: self._resolver.completion(parse_completion(body), self._engine.model),
        )

    async def chat_completions(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/chat/completions`"""
        return await self._generate(
            request, "chat", CHAT, lambda body: self._resolver.chat(parse_chat(body), self._engine.model)
        )

    async def embeddings(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/embeddings`"""
        return await self._generate(
            request,
            "embeddings",
            None,
            lambda body: self._resolver.embedding(parse_embedding(body), self._engine.model),
        )

    async def _generate(
        self, request: Request, endpoint: Endpoint, shape: Shape | None, resolve: Callable[[bytes], Job]
    ) -> Response | GenerationResponse:
        meter = self._metrics.begin(endpoint)
        try:
            # Before it is ready, an engine knows nothing of its model that a request could be checked against.
            self._engine.check_ready()
            body = await read_json_body(request, self._max_body_bytes)
            if len(body) <= INLINE_BODY_BYTES:
                job = resolve(body)
            else:
                job = await asyncio.get_running_loop().run_in_executor(self._threads, resolve, body)
        except asyncio.CancelledError:
            meter.end("cancelled")
            raise
        except Exception as problem:
            error = as_penstock_error(problem)
            outcome: Outcome = "failed" if error.http_status >= 500 else "rejected"
            meter.end(outcome)
            logger.info("%s request %s: %d %s", endpoint, outcome, error.http_status, error.message)
            return error_response(error)
        meter.accepted(job.prompt_tokens)
        name = self._engine.model.name
        writer = EmbeddingWriter(job, name) if shape is None else ResponseWriter(shape, job, name, self._table)
        return GenerationResponse(self._engine, job, writer, meter)

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`"""
        model = self._engine.model
        return _json({"object": "list", "data": [_model_card(model, name) for name in (model.name, *model.aliases)]})

    async def one_model(self, request: Request) -> Response:
        """`GET /v1/models/{name}`"""
        model, name = self._engine.model, request.path_params["name"]
        check_model_name(name, model)
        return _json(_model_card(model, name))

    async def live(self, request: Request) -> Response:
        """`GET /health/live`: this process answers; whether the engine does is for `ready` to say."""
        return _json({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """`GET /health/ready`: requests can be served now; else 503 with the cause."""
        self._engine.check_ready()
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`, in Prometheus' text format."""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def batch_endpoints(engine: EngineClient, resolver: Resolver) -> dict[str, BatchEndpoint]:
    """The endpoints that a batch may ask for, by path."""
    return {
        "/v1/completions": BatchEndpoint(
            lambda body: resolver.completion(parse_completion(body), engine.model), COMPLETION
        ),
        "/v1/chat/completions": BatchEndpoint(lambda body: resolver.chat(parse_chat(body), engine.model), CHAT),
    }


def _model_card(model: ModelInfo, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "penstock",
        "root": model.name,
        "max_model_len": model.max_model_len,
    }


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
