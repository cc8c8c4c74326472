"""Options of `penstock serve` beside those of its engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.log_format import LogFormat, LogLevel
from penstock.cli.options import ChatTemplateFile, parse_seconds

if TYPE_CHECKING:
    from penstock.access.exposure import Access
    from penstock.access.limits import AdmissionOptions
    from penstock.api.policies import FieldPolicies
    from penstock.assembly.server_options import JoinOptions, ModelOptions, ModelToServe, ServeOptions
    from penstock.http.edge import EdgeOptions
    from penstock.http.limits import ConnectionOptions
    from penstock.observability.settings import FigureOptions

DataDir = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|off",
        help="Folder for files, batches and stored responses, which outlive the server; off keeps none.",
    ),
]
MaxQueuedRequests = Annotated[int | None, typer.Option(help="Prompts that may wait; more are refused with 503.")]
MaxQueuedTokens = Annotated[int | None, typer.Option(help="Tokens of the prompts that may wait.")]
MaxTtft = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Refuse requests whose first token is expected later than this."),
]
RequestTimeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="Longest time of any request.")]
StallTimeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Cut off clients that read nothing of an answer for this time.")
]
MaxConnections = Annotated[
    int | None, typer.Option(help="Connections at a time; idle ones give way to new ones, more are refused with 503.")
]
ListenFd = Annotated[
    int | None,
    typer.Option(
        "--listen-fd",
        metavar="N",
        min=0,
        help="Listen on this inherited socket, such as 3 of a systemd socket unit, instead of --host and --port.",
    ),
]
Slo = Annotated[
    str | None,
    typer.Option(metavar="LIMITS", help="Service levels, such as ttft=500ms,itl=50ms, that requests are judged by."),
]
CostPerHour = Annotated[
    float | None, typer.Option(metavar="AMOUNT", help="What the machine costs, for the cost of a million tokens.")
]

ApiKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY|-",
        help="One API key that requests must have; - reads it from standard input. PENSTOCK_API_KEY does the same.",
    ),
]
ApiKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="API keys that requests must have; `penstock key` makes entries.")
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Listen on an address that others reach, although there are no API keys.")
]
TlsCertificate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate (PEM, with its chain) to speak TLS with.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How conversations become prompts, and outputs answers."""

    chat_template: ChatTemplateFile = None
    tool_call_parser: Annotated[
        str,
        typer.Option(
            help="Format of tool calls: auto (as the chat template), none, hermes, llama3, mistral, qwen3_coder, "
            "glm45, pythonic, gemma4 or harmony."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str, typer.Option(help="Format of reasoning: auto (as the chat template), none, think, gemma4 or harmony.")
    ] = "auto"

    def model(self, names: tuple[str, ...]) -> "ModelOptions":
        """How a model is served under some names, its own where there are none."""
        from penstock.assembly.server_options import ModelOptions

        return ModelOptions(
            names=names, chat_template=self.chat_template, parsers=(self.tool_call_parser, self.reasoning_parser)
        )


@dataclass(frozen=True, kw_only=True)
class RunningOptions:
    """What a server has beside it, and how it ends."""

    listen_fd: ListenFd = None
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="What all models may use of the memory, such as 8GiB; all that is available without."
        ),
    ] = None
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds for running requests to finish in after the first signal.")
    ] = 30.0
    notice: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Where it is told that the machine will be taken away: aws, gcp, azure, or the path of a file.",
        ),
    ] = None
    watchdog: Annotated[
        float, typer.Option(help="Seconds without progress after which the engine is started again.")
    ] = 30.0
    admin_socket: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Unix socket for the operator: settings, invariants, pause, fail-points."),
    ] = None
    data_dir: DataDir = None
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PENSTOCK_DATABASE",
            help="PostgreSQL (the extra gateway), or a file of SQLite, in the place of --data-dir: replicas that have "
            "the same go on with each other's conversations and batches.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """How a server's log is written."""

    log_level: Annotated[LogLevel, typer.Option(help="info logs a line for each request.")] = LogLevel.INFO
    log_format: Annotated[
        LogFormat, typer.Option(help="console for people, json for programs: an object in a line.")
    ] = LogFormat.CONSOLE


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What a server writes down of its requests."""

    log: LogOptions = LogOptions()
    explain_prompts: Annotated[
        bool, typer.Option("--explain-prompts", help="Keep prompts with the accounts of recent requests.")
    ] = False
    otlp_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Send traces to this OpenTelemetry collector (the extra otel).")
    ] = None


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Who may use a server."""

    api_key: ApiKey = None
    api_key_file: ApiKeyFile = None
    no_auth: NoAuth = False

    def who_may_ask(self) -> "Access":
        """As options and the environment say. Raises ConfigurationError."""
        from penstock.cli.keys import read_access

        return read_access(**vars(self))


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """What connections are encrypted with."""

    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None


@dataclass(frozen=True, kw_only=True)
class ConnectedOptions:
    """Which connections a server has."""

    stall_timeout: StallTimeout = None
    max_connections: MaxConnections = None

    def limits(self) -> "ConnectionOptions":
        """How many connections there are, and for how long."""
        from penstock.http.limits import ConnectionOptions

        return ConnectionOptions(stall_timeout=self.stall_timeout, max_connections=self.max_connections)


@dataclass(frozen=True, kw_only=True)
class BoundOptions:
    """What a server takes on, and for how long."""

    max_queued_requests: MaxQueuedRequests = None
    max_queued_tokens: MaxQueuedTokens = None
    max_ttft: MaxTtft = None
    request_timeout: RequestTimeout = None
    connected: ConnectedOptions = ConnectedOptions()

    def admission(self) -> "AdmissionOptions":
        """Which requests are taken on."""
        from penstock.access.limits import AdmissionOptions

        return AdmissionOptions(
            max_queued_requests=self.max_queued_requests,
            max_queued_tokens=self.max_queued_tokens,
            max_ttft=self.max_ttft,
            request_timeout=self.request_timeout,
        )


@dataclass(frozen=True, kw_only=True)
class FrontOptions:
    """How a server speaks with browsers, and with what is in front of it."""

    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN|*", help="Web pages of this origin may use the server; may be given several times."
        ),
    ] = None
    root_path: Annotated[str, typer.Option(metavar="PATH", help="Path below which a proxy has it, such as /llm.")] = ""
    keep_alive_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a connection without a request stays open.")
    ] = 75.0

    def edge(self) -> "EdgeOptions":
        """The same for the server. Raises ConfigurationError where a value cannot be."""
        from penstock.http.edge import EdgeOptions

        return EdgeOptions(
            allowed_origins=tuple(self.allowed_origin or ()),
            root_path=self.root_path,
            keep_alive_timeout=self.keep_alive_timeout,
        ).check()


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """How a server speaks with clients, and with what is in front of it."""

    front: FrontOptions = FrontOptions()
    unknown_fields: Annotated[
        str, typer.Option(help="Of requests: refuse, or tell in the header x-penstock-ignored.")
    ] = "refuse"
    max_tokens_policy: Annotated[
        str, typer.Option(help="Where the context has no room for max_tokens: cut it, and tell, or refuse.")
    ] = "cut"

    def policies(self) -> "FieldPolicies":
        """What becomes of wrong fields. Raises ConfigurationError where a value cannot be."""
        from penstock.api.policies import FieldPolicies

        # Checked there, as the command line gives any text.
        unknown, most = cast(Any, self.unknown_fields), cast(Any, self.max_tokens_policy)
        return FieldPolicies(unknown_fields=unknown, max_tokens_policy=most).check()


@dataclass(frozen=True, kw_only=True)
class TellingOptions:
    """What a server tells those that route requests."""

    kv_events: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Tell what changes in the prefix cache, in vLLM's form, at this port and the next (the extra "
            "kv-events).",
        ),
    ] = None

    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Be a replica of this gateway, whose token is in PENSTOCK_JOIN_TOKEN; may be given several times.",
        ),
    ] = None
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where gateways reach this server; its own address without."),
    ] = None

    def joining(self) -> "JoinOptions":
        """The gateways to join. Raises ConfigurationError where that cannot be."""
        from penstock.assembly.joining import join_options

        return join_options(tuple(self.join or ()), self.advertise)

    def place(self) -> tuple[str, int] | None:
        """Host and port. Raises ConfigurationError for what is neither."""
        from penstock.configuration.listening import parse_host_and_port

        return None if self.kv_events is None else parse_host_and_port("--kv-events", self.kv_events)


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """What a server's figures are held against."""

    slo: Slo = None
    cost_per_hour: CostPerHour = None

    def figures(self) -> "FigureOptions":
        """The same for the server. Raises ConfigurationError where a value cannot be."""
        from penstock.configuration.slo import parse_slo
        from penstock.observability.settings import FigureOptions

        return FigureOptions(parse_slo(self.slo), self.cost_per_hour).check()


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """Everything that a server is asked for beside its engine."""

    reading: ReadingOptions = ReadingOptions()
    running: RunningOptions = RunningOptions()
    records: RecordOptions = RecordOptions()
    access: AccessOptions = AccessOptions()
    tls: TlsOptions = TlsOptions()
    bounds: BoundOptions = BoundOptions()
    http: HttpOptions = HttpOptions()
    judging: JudgeOptions = JudgeOptions()
    telling: TellingOptions = TellingOptions()

    def serving(
        self, host: str, port: int, names: tuple[str, ...], beside: "tuple[ModelToServe, ...]" = ()
    ) -> "ServeOptions":
        """What the server is asked for, with the models beside its first.

        Raises ConfigurationError where a value cannot be.
        """
        from penstock.assembly.server_options import ServeOptions
        from penstock.configuration.sizes import parse_size
        from penstock.http.tls import choose_tls
        from penstock.observability.tracing import check_endpoint

        running = self.running
        return ServeOptions(
            host=host,
            port=port,
            listen_fd=running.listen_fd,
            memory=parse_size(running.memory, "--memory"),
            model=self.reading.model(names),
            beside=beside,
            data_dir=running.data_dir,
            database=running.database,
            drain_timeout=parse_seconds(running.drain_timeout, "--drain-timeout", 0.0),
            notice=running.notice,
            watchdog=parse_seconds(running.watchdog, "--watchdog", 5.0),
            admin_socket=running.admin_socket,
            admission=self.bounds.admission(),
            connections=self.bounds.connected.limits(),
            edge=self.http.front.edge(),
            policies=self.http.policies(),
            figures=self.judging.figures(),
            tls=choose_tls(**vars(self.tls)),
            explain_prompts=self.records.explain_prompts,
            otlp_endpoint=check_endpoint(self.records.otlp_endpoint),
            kv_events=self.telling.place(),
            join=self.telling.joining(),
        )
