"""`penstock gateway`: tells a person what it passes requests on to, and runs it."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from penstock.access.exposure import Access
from penstock.assembly.gateway import GatewayOptions, serve_gateway
from penstock.cli.addresses import address_markup
from penstock.gateway.options import FleetOptions
from penstock.server.serve import run_loop

console = Console(stderr=True, highlight=False)


def run_gateway(fleet: FleetOptions, options: GatewayOptions, access: Access, remarks: Sequence[str]) -> None:
    """Pass requests on until a signal ends it, and tell `remarks` at the start. Raises StartupError."""

    def serving(address: tuple[str, int], envoy: int | None) -> None:
        kept = "API keys: those of the database; every request but those to /health needs one"
        for remark in (str(access.reason) if options.database is None else kept, *access.warnings, *remarks):
            console.print(escape(remark), soft_wrap=True)
        replicas = f"{len(fleet.replica)} replica{'s' if len(fleet.replica) != 1 else ''}"
        replicas += " and those that join" if options.join_token is not None else ""
        shown = address_markup(*address, options.tls is not None)
        if envoy is not None:
            console.print(f"Picking replicas for Envoy (ext_proc, gRPC without TLS) on {address[0]}:{envoy}")
        console.print(f"Passing requests on to {replicas}, chosen by {fleet.policy}, on {shown}", soft_wrap=True)

    run_loop(serve_gateway(fleet, options, access, serving))
