"""The HTTP application: routes over an engine client.

It is Starlette, with bodies parsed by msgspec: strict types, unknown fields refused by name, and no validation layer
between a token and its socket.
"""

from collections.abc import Collection, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from penstock.access.auth import KeysRequired
from penstock.access.keys import Keyring
from penstock.api.openai.models import ModelsApi
from penstock.api.policies import FieldPolicies
from penstock.api.responses.endpoints import ResponsesApi, RunningResponses
from penstock.batches.lines import LineRunner, RunModel
from penstock.batches.stored import NO_STORE, StoredApi
from penstock.engine.interface import EngineClient
from penstock.http.body import BodyReader
from penstock.http.cross_origin import CrossOriginGuard
from penstock.http.error_bodies import ErrorHandlers
from penstock.http.request_ids import Identified
from penstock.observability.monitor import Monitor, Monitors
from penstock.server.choosing import Choice
from penstock.server.description import DescriptionApi
from penstock.server.dialects import DIALECTS
from penstock.server.explain import ExplainApi
from penstock.server.figures import FiguresApi
from penstock.server.health import HealthApi
from penstock.server.page.endpoints import page_routes
from penstock.server.paths import OPEN_PATHS
from penstock.server.replica_state import ReplicaStateApi, Telling
from penstock.server.served import Common, Model, Served
from penstock.storage.store import Store
from penstock.text.tokenizer import Tokenizer

MAX_BODY_BYTES = 32 * 1024 * 1024


def create_app(
    engine: EngineClient,
    tokenizer: Tokenizer | None,
    *,
    policies: FieldPolicies | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    store: Store | None = None,
    why_no_store: str = NO_STORE,
    keys: Keyring | None = None,
    request_timeout: float | None = None,
    local: bool = False,
    allowed_origins: Collection[str] = (),
    telling: Telling | None = None,
    beside: Sequence[Model] = (),
    **parts: Any,
) -> Starlette:
    """The ASGI application that serves `engine`.

    Args:
        engine: where requests go.
        tokenizer: None serves token-id prompts only.
        policies: what becomes of unknown fields, and of a max_tokens that the context has no room for.
        max_body_bytes: longer bodies are refused with 413.
        store: where files, batches and responses are kept, the caller's; None keeps nothing, as `why_no_store` tells.
        keys: who may ask; without any, every client.
        request_timeout: seconds that any request has at most; None where it has the time that it asks for.
        local: whether a server without keys is meant for its own machine only, and needs no name of the public DNS.
        allowed_origins: of pages that may use a server without keys; "*" stands for all.
        telling: what gateways are told of this server, beside what its engines say.
        beside: other models that it serves.
        parts: what else there is of the model; see `Model`.

    Raises TokenizerError where the model's chat template cannot be used.
    """
    common = Common(BodyReader(max_body_bytes), policies, request_timeout)
    first = Model(engine=engine, tokenizer=tokenizer, **parts)
    models = [Served.of(each, common) for each in (first, *beside)]
    keys, choice = keys or Keyring(), Choice(models, common.bodies)
    lines = LineRunner([RunModel(each.engine, each.batched, each.accounts) for each in models], choice.of_body, keys)
    stored = StoredApi(store, why_no_store, lines, models[0].metrics)
    application = Starlette(
        lifespan=stored.lifespan,
        middleware=[_guard(keys, local, allowed_origins)],
        routes=[
            *_routes(models, choice, store),
            *stored.routes(),
            *DescriptionApi(keyed=bool(keys), simulated=models[0].settings.simulated).routes(),
            *ReplicaStateApi([each.engine for each in models], telling or Telling()).routes(),
            *page_routes(),
        ],
        exception_handlers=ErrorHandlers(DIALECTS).all(),
    )
    return _identified(application)


def _routes(models: Sequence[Served], choice: Choice, store: Store | None) -> list[Route]:
    """The routes of requests to models, and of what is told of these."""
    kept, condition = (None, None) if store is None else (store.responses, store.condition)
    running: RunningResponses = {}
    responses = [ResponsesApi(each.service, kept, running) for each in models]
    engines = [each.engine for each in models]
    monitors = [Monitor(each.engine, each.metrics, each.settings, condition, each.accounts.tracing) for each in models]
    return [
        *choice.routes([each.routes(own) for each, own in zip(models, responses, strict=True)]),
        *responses[0].kept_routes(),
        *ModelsApi(engines).routes(),
        *ExplainApi([each.accounts for each in models]).routes(),
        *HealthApi(engines, condition, choice.number_of).routes(),
        *FiguresApi(Monitors(monitors), choice.number_of).routes(),
    ]


def _guard(keys: Keyring, local: bool, allowed_origins: Collection[str]) -> Middleware:
    """What refuses those who may not ask."""
    if keys:
        return Middleware(KeysRequired, DIALECTS, keys=keys, open_paths=OPEN_PATHS)
    return Middleware(CrossOriginGuard, DIALECTS, local=local, allowed=allowed_origins)


def _identified(application: Starlette) -> Starlette:
    """The application, each of whose responses has an id."""
    # They would lead to wherever the Host header says.
    application.router.redirect_slashes = False
    # Around what answers for endpoints that failed, too, which Starlette puts around all middleware of ours.
    application.middleware_stack = Identified(application.build_middleware_stack(), DIALECTS)
    return application
