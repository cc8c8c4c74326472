"""Options of `penstock gateway`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import parse_seconds
from penstock.cli.serve_options import (
    AccessOptions,
    ConnectedOptions,
    FrontOptions,
    ListenFd,
    LogOptions,
    TlsOptions,
)

if TYPE_CHECKING:
    from penstock.assembly.gateway import GatewayOptions

Replica = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="A server to pass requests on to; may be given several times."),
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TOML with replicas, policy, time-outs, holding and retries.")
]
PolicyName = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="Which replica gets a request: estimated (the default), prefix, session, least-loaded, power-of-two or "
        "round-robin.",
    ),
]

Prompts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL",
        help="Read prompts as replicas with this model do (its tokenizer is enough), so that it is known exactly what "
        "of them is in whose cache; may be given several times.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class GatewayArguments:
    """Everything that a gateway is asked for beside its fleet."""

    listen_fd: ListenFd = None
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds for running requests to finish in after the first signal.")
    ] = 30.0
    otlp_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Send traces to this OpenTelemetry collector (the extra otel).")
    ] = None
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PENSTOCK_DATABASE",
            help="PostgreSQL, or a file of SQLite, with tenants, their keys and the ledger (the extra gateway).",
        ),
    ] = None
    limits_store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PENSTOCK_LIMITS_STORE",
            help="Valkey or Redis where several gateways count limits together (the extra gateway); else in memory.",
        ),
    ] = None
    answer_store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PENSTOCK_ANSWER_STORE",
            help="Valkey or Redis where several gateways keep answers for tenants that let them (the extra gateway); "
            "else in memory.",
        ),
    ] = None
    ext_proc_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Answer Envoy's ext_proc filter over gRPC here: to which replica each request goes (the extra envoy).",
        ),
    ] = None
    log: LogOptions = LogOptions()
    access: AccessOptions = AccessOptions()
    tls: TlsOptions = TlsOptions()
    connected: ConnectedOptions = ConnectedOptions()
    front: FrontOptions = FrontOptions()

    def gateway(self, host: str, port: int) -> "GatewayOptions":
        """The same for the gateway. Raises ConfigurationError where a value cannot be."""
        from penstock.assembly.gateway import GatewayOptions, join_token
        from penstock.http.tls import choose_tls
        from penstock.observability.tracing import check_endpoint

        return GatewayOptions(
            join_token=join_token(),
            host=host,
            port=port,
            listen_fd=self.listen_fd,
            drain_timeout=parse_seconds(self.drain_timeout, "--drain-timeout", 0.0),
            connections=self.connected.limits(),
            edge=self.front.edge(),
            tls=choose_tls(**vars(self.tls)),
            otlp_endpoint=check_endpoint(self.otlp_endpoint),
            database=self.database,
            limits_store=self.limits_store,
            answer_store=self.answer_store,
            ext_proc_port=self.ext_proc_port,
        )
