"""What a server serves: models, each with an engine and with all that is its own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.routing import Route

from penstock.access.admission import AdmissionControl
from penstock.access.gate import Gate
from penstock.api.anthropic.endpoints import MessagesApi
from penstock.api.job_endpoint import JobEndpoint
from penstock.api.openai.endpoints import OpenAIApi
from penstock.api.openai.tokens import TokensApi
from penstock.api.policies import FieldPolicies
from penstock.api.reading import Reading
from penstock.api.records import Records
from penstock.api.responses.endpoints import ResponsesApi
from penstock.api.scoring.endpoints import ScoringApi
from penstock.api.service import Entrance, Service
from penstock.api.translation.endpoints import TranslationApi
from penstock.configuration.slo import Slo
from penstock.core.errors import EngineUnavailable
from penstock.core.sampling import SamplingDefaults
from penstock.engine.interface import EngineClient, ModelInfo
from penstock.http.body import BodyReader
from penstock.observability.accounts import Accounts
from penstock.observability.metrics import Metrics
from penstock.observability.stats import Settings
from penstock.server.capacity import default_admission
from penstock.server.dialects import DIALECTS
from penstock.text.chat_template import ChatTemplate
from penstock.text.output_format import OutputFormat
from penstock.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as a server is given it.

    Attributes:
        engine: where its requests go.
        names: under which it is served, its own first; those that its engine says by default.
        tokenizer: None serves token-id prompts only.
        template: the chat template; the model's own by default.
        output_format: how it writes calls of tools and reasoning; what the template says by default.
        defaults: sampling parameters where a request is silent.
        admission: which requests are taken on; as the default options have it by default.
        settings: what figures are to be read with; they have the service levels that requests are judged by.
        accounts: of requests; kept for it alone by default.
    """

    engine: EngineClient
    names: tuple[str, ...] = ()
    tokenizer: Tokenizer | None
    template: ChatTemplate | None = None
    output_format: OutputFormat | None = None
    defaults: SamplingDefaults | None = None
    admission: AdmissionControl | None = None
    settings: Settings | None = None
    accounts: Accounts | None = None


@dataclass(frozen=True)
class Common:
    """What all models of a server share: what reads bodies, what becomes of wrong fields, the time of a request."""

    bodies: BodyReader
    policies: FieldPolicies | None = None
    request_timeout: float | None = None


@dataclass(frozen=True)
class Served:
    """A model that is served, as a server's endpoints use it.

    Attributes:
        service: what the endpoints of one request share; `openai` are those that batches ask for too, and some of
            `scoring`.
        metrics, accounts: what becomes of its requests; `settings` are what the first are read with.
        given_names: that it was given; none: those that its engine says.
    """

    engine: EngineClient
    service: Service
    openai: OpenAIApi
    scoring: ScoringApi
    metrics: Metrics
    accounts: Accounts
    settings: Settings
    given_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model, common: Common) -> "Served":
        """The model with what serves it. Raises TokenizerError where its chat template cannot be used."""
        engine, settings = model.engine, model.settings or Settings()
        reading = Reading(model.tokenizer, model.template, model.output_format, model.defaults, common.policies)
        metrics, accounts = _metrics_of(engine, settings), model.accounts or Accounts(engine)
        gate = Gate(engine, model.admission or default_admission())
        entrance = Entrance(common.bodies, gate, DIALECTS, common.request_timeout)
        service = Service(engine, reading, entrance, Records(metrics, accounts))
        return cls(engine, service, OpenAIApi(service), ScoringApi(service), metrics, accounts, settings, model.names)

    @property
    def batched(self) -> dict[str, JobEndpoint]:
        """What a batch may ask for, by path."""
        return {**self.openai.job_endpoints, **self.scoring.batched}

    @property
    def names(self) -> tuple[str, ...]:
        """Those under which it is served, its own first; none before they are known."""
        return self.given_names or names_of(self.engine)

    def routes(self, responses: ResponsesApi) -> list[Route]:
        """The routes of requests to a model."""
        return [
            *self.openai.routes(),
            *self.scoring.routes(),
            *MessagesApi(self.service).routes(),
            *responses.routes(),
            *TokensApi(self.service).routes(),
            *TranslationApi(self.service).routes(),
        ]


def info_of(engine: EngineClient) -> ModelInfo | None:
    """What is known of its model; None before there is one."""
    try:
        return engine.model
    except EngineUnavailable:
        return None


def names_of(engine: EngineClient) -> tuple[str, ...]:
    """Under which its model is served; none before there is one."""
    info = info_of(engine)
    return () if info is None else (info.name, *info.aliases)


def why_not(engine: EngineClient) -> str:
    """Why it cannot serve now; empty where it can."""
    try:
        engine.check_ready()
    except EngineUnavailable as error:
        return error.message
    return ""


def _metrics_of(engine: EngineClient, settings: Settings) -> Metrics:
    """The figures of an engine, which tells them of its steps from now on."""
    slo = None if settings.slo is None else Slo(**settings.slo)
    metrics = Metrics(lambda: engine.load, lambda: engine.totals, slo=slo, soon=_soon)
    engine.observe(metrics.step)
    return metrics


def _soon(function: Callable[[], None]) -> None:
    """Call it in the loop's next turn, before which it writes what it was given in this one."""
    asyncio.get_running_loop().call_soon(function)
