"""What a server is asked for."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.access.limits import AdmissionOptions
from penstock.api.policies import FieldPolicies
from penstock.configuration.options import EngineOptions
from penstock.engine.watch import Patience
from penstock.http.edge import EdgeOptions
from penstock.http.limits import ConnectionOptions
from penstock.http.tls import Tls
from penstock.observability.settings import FigureOptions
from penstock.server.serve import DRAIN_SECONDS


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """Gateways that a server joins.

    Attributes:
        gateways: their URLs.
        advertised: URL at which they reach the server; None: the address that it listens on.
        token: that they want.
    """

    gateways: tuple[str, ...] = ()
    advertised: str | None = None
    token: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is served, beside what concerns its engine.

    Attributes:
        names: under which it is served; its own where there are none.
        chat_template: the file with it; None where the model's own is used.
        parsers: of tool calls and of reasoning.
    """

    names: tuple[str, ...] = ()
    chat_template: str | None = None
    parsers: tuple[str, str] = ("auto", "auto")


class ModelToServe(NamedTuple):
    """A model, as a server is asked for it: its engine's options, and how it is served."""

    engine: EngineOptions
    served: ModelOptions = ModelOptions()


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What a server is asked for, beside what concerns its engine.

    Attributes:
        host, port: where it listens; port 0 is any free one.
        listen_fd: the descriptor of a socket that listens already, in their place; None: there is none.
        memory: bytes that all its models may use together; None: what is available.
        model: how its model is served.
        beside: other models that it serves.
        data_dir: the folder of what outlives the server, or "off"; None: one by the model's name, where it can be had.
        database: URL of one that other servers may have, too, in the place of a folder; None: there is none.
        drain_timeout: seconds for running requests to finish in.
        notice: where a notice comes that the machine will be taken away; None where none is looked for.
        watchdog: seconds without progress after which the engine is started again.
        admin_socket: path of the operator's socket; None where there is none.
        admission: which requests are taken on.
        connections: how many there are, and for how long.
        edge: how the server speaks with those in front of it.
        policies: what becomes of fields that a request need not have been right about.
        figures: what requests are judged by, and what the machine costs.
        tls: what connections are encrypted with, None where they are not.
        explain_prompts: whether prompts are kept with the accounts of recent requests.
        otlp_endpoint: of the collector that traces are sent to; None where they are not.
        kv_events: host and port at which it tells what changes in its prefix cache; None where it does not.
        join: gateways that it joins.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    listen_fd: int | None = None
    memory: int | None = None
    model: ModelOptions = ModelOptions()
    beside: tuple[ModelToServe, ...] = ()
    data_dir: str | None = None
    database: str | None = None
    drain_timeout: float = DRAIN_SECONDS
    notice: str | None = None
    watchdog: float = Patience().hang_seconds
    admin_socket: str | None = None
    admission: AdmissionOptions = AdmissionOptions()
    connections: ConnectionOptions = ConnectionOptions()
    edge: EdgeOptions = EdgeOptions()
    policies: FieldPolicies = FieldPolicies()
    figures: FigureOptions = FigureOptions()
    tls: Tls | None = None
    explain_prompts: bool = False
    otlp_endpoint: str | None = None
    kv_events: tuple[str, int] | None = None
    join: JoinOptions = JoinOptions()

    def models(self, engine: EngineOptions) -> tuple[ModelToServe, ...]:
        """All that it serves; `engine` are the options of the first."""
        return (ModelToServe(engine, self.model), *self.beside)
