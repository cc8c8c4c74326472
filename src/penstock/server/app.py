"""The HTTP application: routes over an engine client.

It is Starlette, with bodies parsed by msgspec: strict types, unknown fields refused by name, and no validation layer
between a token and its socket.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import __version__
from penstock.access.admission import Admission
from penstock.access.auth import KeysRequired
from penstock.access.gate import Gate
from penstock.access.keys import Keyring
from penstock.access.limits import default_admission
from penstock.api.anthropic.endpoints import MessagesApi
from penstock.api.fields import FieldReader
from penstock.api.generation import GenerationResponse, Writer
from penstock.api.openai.embeddings import EmbeddingWriter
from penstock.api.openai.tokens import TokensApi
from penstock.api.openai.writer import CHAT, COMPLETION, ResponseWriter
from penstock.api.policies import FieldPolicies
from penstock.api.resolve import Job, Resolver, check_model_name
from penstock.api.responses.endpoints import ResponsesApi
from penstock.api.schema import parse_chat, parse_completion, parse_embedding
from penstock.api.service import Service, told
from penstock.batches.lines import BatchEndpoint, LineRunner
from penstock.batches.stored import NO_STORE, StoredApi
from penstock.configuration.slo import Slo
from penstock.core.sampling import SamplingDefaults
from penstock.engine.interface import EngineClient, ModelInfo
from penstock.http.answers import json_response
from penstock.http.cross_origin import ForeignPagesRefused
from penstock.http.error_bodies import ErrorHandlers
from penstock.http.request_ids import Identified
from penstock.observability.accounts import Accounts
from penstock.observability.metrics import Endpoint, Metrics
from penstock.observability.monitor import Monitor
from penstock.observability.stats import Settings
from penstock.server.dialects import DIALECTS
from penstock.server.docs_page import page
from penstock.server.endpoints import ENDPOINTS
from penstock.server.explain import ExplainApi
from penstock.server.figures import FiguresApi
from penstock.server.health import HealthApi
from penstock.server.openapi import document
from penstock.server.page.endpoints import page_routes
from penstock.server.page.files import PAGE_FILES
from penstock.storage.store import Store
from penstock.text.chat_template import ChatEncoder, ChatTemplate, load_chat_template
from penstock.text.output_format import OutputFormat, choose_format
from penstock.text.tokenizer import Tokenizer

MAX_BODY_BYTES = 32 * 1024 * 1024
# What answers without a key: to those who watch the server, and a page that asks for a key. They say nothing of what is
# served, or to whom.
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", *PAGE_FILES})


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
    keys: Keyring | None = None,
    admission: Admission | None = None,
    request_timeout: float | None = None,
    local: bool = False,
    settings: Settings | None = None,
    accounts: Accounts | None = None,
    allowed_origins: Collection[str] = (),
    policies: FieldPolicies | None = None,
) -> Starlette:
    """The ASGI application that serves `engine`.

    Args:
        engine: where requests go.
        tokenizer: None serves token-id prompts only.
        template: the chat template; the model's own by default.
        output_format: how the model writes calls of tools and reasoning; what the template says by default.
        defaults: sampling parameters where a request is silent.
        max_body_bytes: longer bodies are refused with 413.
        store: where files, batches and responses are kept; it stays the caller's. None keeps nothing, and
            `why_no_store` tells.
        keys: who may ask; without any, every client.
        admission: which requests are taken on; as the default options have it by default.
        request_timeout: seconds that any request has at most; None where it has the time that it asks for.
        local: whether a server without keys is meant for its own machine only, and needs no name of the public DNS.
        settings: what figures are to be read with; they have the service levels that requests are judged by.
        accounts: of requests; kept for this application alone by default.
        allowed_origins: of pages that may use a server without keys; "*" stands for all.
        policies: what becomes of fields that a request need not have been right about.

    Raises TokenizerError where the model's chat template cannot be used.
    """
    chat, policies = None, policies or FieldPolicies()
    if tokenizer is not None:
        template = template or load_chat_template(tokenizer)
        chat = ChatEncoder(tokenizer, template)
        output_format = output_format or choose_format(template, tokenizer)[0]
    resolver = Resolver(tokenizer, chat, defaults or SamplingDefaults(), output_format, policies.max_tokens_policy)
    condition = None if store is None else store.condition
    keys, settings = keys or Keyring(), settings or Settings()
    slo = None if settings.slo is None else Slo(**settings.slo)
    metrics = Metrics(lambda: engine.load, lambda: engine.totals, slo=slo, soon=_soon)
    engine.observe(metrics.step)
    gate = Gate(engine, admission or default_admission())
    accounts = accounts or Accounts(engine)
    service = Service(
        engine,
        tokenizer,
        resolver,
        metrics,
        max_body_bytes,
        gate,
        accounts,
        request_timeout,
        policies.unknown_fields,
        DIALECTS,
    )
    endpoints = batch_endpoints(service)
    api = _Api(service, endpoints, keyed=bool(keys))
    stored = StoredApi(store, why_no_store, LineRunner(engine, endpoints, keys, accounts), metrics)
    application = Starlette(
        lifespan=stored.lifespan,
        middleware=[
            Middleware(KeysRequired, DIALECTS, keys=keys, open_paths=OPEN_PATHS)
            if keys
            else Middleware(ForeignPagesRefused, DIALECTS, local=local, allowed=allowed_origins),
        ],
        routes=[
            *api.routes(),
            *MessagesApi(service).routes(),
            *ResponsesApi(service, None if store is None else store.responses).routes(),
            *ExplainApi(accounts).routes(),
            *stored.routes(),
            *TokensApi(service).routes(),
            *HealthApi(engine, condition).routes(),
            *FiguresApi(Monitor(engine, metrics, settings, condition, accounts.tracing)).routes(),
            *page_routes(),
        ],
        exception_handlers=ErrorHandlers(DIALECTS).all(),
    )
    # They would lead to wherever the Host header says.
    application.router.redirect_slashes = False
    # Around what answers for endpoints that failed, too, which Starlette puts around all middleware of ours.
    application.middleware_stack = Identified(application.build_middleware_stack(), DIALECTS)
    return application


class _Api:
    """OpenAI's completions and chats, and what tells of the server."""

    def __init__(self, service: Service, endpoints: Mapping[str, BatchEndpoint], *, keyed: bool) -> None:
        self._keyed = keyed
        self._service = service
        self._engine = service.engine
        self._endpoints = endpoints

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.one_model, methods=["GET"]),
            Route("/version", self.version, methods=["GET"]),
            Route("/openapi.json", self.description, methods=["GET"]),
            Route("/docs", self.page, methods=["GET"]),
        ]

    async def completions(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/completions`"""
        return await self._generate(request, "completions", "/v1/completions")

    async def chat_completions(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/chat/completions`"""
        return await self._generate(request, "chat", "/v1/chat/completions")

    async def embeddings(self, request: Request) -> Response | GenerationResponse:
        """`POST /v1/embeddings`"""
        return await self._generate(request, "embeddings", "/v1/embeddings")

    async def _generate(self, request: Request, name: Endpoint, path: str) -> Response | GenerationResponse:
        endpoint = self._endpoints[path]

        async def prepare(body: bytes) -> tuple[Job, Writer]:
            job = await self._service.beside(len(body), endpoint.resolve, body)
            return job, endpoint.writer(job)

        return await self._service.generate(request, name, prepare)

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`"""
        model = self._engine.model
        names = (model.name, *model.aliases)
        return json_response({"object": "list", "data": [_model_card(model, name) for name in names]})

    async def one_model(self, request: Request) -> Response:
        """`GET /v1/models/{name}`"""
        model, name = self._engine.model, request.path_params["name"]
        check_model_name(name, model)
        return json_response(_model_card(model, name))

    async def version(self, request: Request) -> Response:
        """`GET /version`"""
        return json_response({"version": __version__})

    async def description(self, request: Request) -> Response:
        """`GET /openapi.json`"""
        return json_response(_description(self._keyed))

    async def page(self, request: Request) -> Response:
        """`GET /docs`"""
        return Response(page(_description(self._keyed)), media_type="text/html")


def _soon(function: Callable[[], None]) -> None:
    """Call it in the loop's next turn, before which it writes what it was given in this one."""
    asyncio.get_running_loop().call_soon(function)


@cache
def _description(keyed: bool) -> dict[str, Any]:
    return document(ENDPOINTS, __version__, keyed=keyed)


def batch_endpoints(service: Service) -> dict[str, BatchEndpoint]:
    """OpenAI's endpoints for one request each, which a batch may ask for too, by path."""
    engine, resolver = service.engine, service.resolver

    def resolving(resolve: Callable[[bytes, FieldReader], Job]) -> Callable[[bytes], Job]:
        def read(body: bytes) -> Job:
            reader = service.reader()
            return told(reader, resolve(body, reader))

        return read

    return {
        "/v1/completions": BatchEndpoint(
            "completions",
            resolving(lambda body, reader: resolver.completion(parse_completion(body, reader), engine.model)),
            lambda job: ResponseWriter(COMPLETION, job, engine.model.name, service.table),
        ),
        "/v1/chat/completions": BatchEndpoint(
            "chat",
            resolving(lambda body, reader: resolver.chat(parse_chat(body, reader), engine.model)),
            lambda job: ResponseWriter(CHAT, job, engine.model.name, service.table),
        ),
        "/v1/embeddings": BatchEndpoint(
            "embeddings",
            resolving(lambda body, reader: resolver.embedding(parse_embedding(body, reader), engine.model)),
            lambda job: EmbeddingWriter(job, engine.model.name),
        ),
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
