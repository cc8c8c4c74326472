"""The HTTP application: routes over an engine client.

It is Starlette, with bodies parsed by msgspec: strict types, unknown fields refused by name, and no validation layer
between a token and its socket.
"""

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.middleware import Middleware

from penstock.access.admission import AdmissionControl
from penstock.access.auth import KeysRequired
from penstock.access.keys import Keyring
from penstock.api.openai.models import ModelsApi
from penstock.api.policies import FieldPolicies
from penstock.api.responses.endpoints import ResponsesApi
from penstock.batches.lines import LineRunner
from penstock.batches.stored import NO_STORE, StoredApi
from penstock.core.sampling import SamplingDefaults
from penstock.engine.interface import EngineClient
from penstock.http.body import BodyReader
from penstock.http.cross_origin import CrossOriginGuard
from penstock.http.error_bodies import ErrorHandlers
from penstock.http.request_ids import Identified
from penstock.observability.accounts import Accounts
from penstock.observability.monitor import Monitor
from penstock.observability.stats import Settings
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
from penstock.text.chat_template import ChatTemplate
from penstock.text.output_format import OutputFormat
from penstock.text.tokenizer import Tokenizer

MAX_BODY_BYTES = 32 * 1024 * 1024


def create_app(
    engine: EngineClient,
    tokenizer: Tokenizer | None,
    *,
    template: ChatTemplate | None = None,
    output_format: OutputFormat | None = None,
    defaults: SamplingDefaults | None = None,
    policies: FieldPolicies | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    store: Store | None = None,
    why_no_store: str = NO_STORE,
    keys: Keyring | None = None,
    admission: AdmissionControl | None = None,
    request_timeout: float | None = None,
    local: bool = False,
    allowed_origins: Collection[str] = (),
    settings: Settings | None = None,
    accounts: Accounts | None = None,
    telling: Telling | None = None,
) -> Starlette:
    """The ASGI application that serves `engine`.

    Args:
        engine: where requests go.
        tokenizer: None serves token-id prompts only.
        template: the chat template; the model's own by default.
        output_format: how the model writes calls of tools and reasoning; what the template says by default.
        defaults: sampling parameters where a request is silent.
        policies: what becomes of unknown fields, and of a max_tokens that the context has no room for.
        max_body_bytes: longer bodies are refused with 413.
        store: where files, batches and responses are kept, the caller's; None keeps nothing, as `why_no_store` tells.
        keys: who may ask; without any, every client.
        admission: which requests are taken on; as the default options have it by default.
        request_timeout: seconds that any request has at most; None where it has the time that it asks for.
        local: whether a server without keys is meant for its own machine only, and needs no name of the public DNS.
        allowed_origins: of pages that may use a server without keys; "*" stands for all.
        settings: what figures are to be read with; they have the service levels that requests are judged by.
        accounts: of requests; kept for this application alone by default.
        telling: what gateways are told of this server, beside what its engine says.

    Raises TokenizerError where the model's chat template cannot be used.
    """
    common = Common(BodyReader(max_body_bytes), policies, request_timeout)
    model = Model(
        engine=engine,
        tokenizer=tokenizer,
        template=template,
        output_format=output_format,
        defaults=defaults,
        admission=admission,
        settings=settings,
        accounts=accounts,
    )
    served, keys = Served.of(model, common), keys or Keyring()
    settings, metrics, accounts = served.settings, served.metrics, served.accounts
    responses = ResponsesApi(served.service, None if store is None else store.responses)
    stored = StoredApi(store, why_no_store, LineRunner(engine, served.batched, keys, accounts), metrics)
    condition = None if store is None else store.condition
    application = Starlette(
        lifespan=stored.lifespan,
        middleware=[_guard(keys, local, allowed_origins)],
        routes=[
            *served.routes(responses),
            *responses.kept_routes(),
            *ModelsApi([engine]).routes(),
            *ExplainApi(accounts).routes(),
            *stored.routes(),
            *HealthApi(engine, condition).routes(),
            *FiguresApi(Monitor(engine, metrics, settings, condition, accounts.tracing)).routes(),
            *DescriptionApi(keyed=bool(keys), simulated=settings.simulated).routes(),
            *ReplicaStateApi(engine, telling or Telling()).routes(),
            *page_routes(),
        ],
        exception_handlers=ErrorHandlers(DIALECTS).all(),
    )
    return _identified(application)


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
