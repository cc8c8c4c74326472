"""Options of `penstock serve` for a fleet where some replicas compute prompts and others decode."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class HandoverArguments:
    """Whether a replica computes prompts, outputs or both, and where it offers what it has computed."""

    role: Annotated[
        str,
        typer.Option(
            metavar="both|prefill|decode",
            help="Behind a gateway, compute prompts only, or go on with what others have computed. With "
            "--prefix-secret-file.",
        ),
    ] = "both"
    kv_offer_at: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --role prefill, where replicas that decode reach the blocks of prompts.",
            show_default="a free port of 127.0.0.1",
        ),
    ] = None
    kv_offer_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With --role prefill, memory for these blocks.", show_default="1GiB"),
    ] = None
    kv_transport: Annotated[
        str | None,
        typer.Option(
            metavar="tcp|nixl|mooncake",
            help="With a role, what blocks are pulled by: NIXL and Mooncake's transfer engine are extras.",
            show_default="tcp",
        ),
    ] = None

    def engine(self, *, alone: bool) -> dict[str, Any]:
        """Keyword arguments for `EngineOptions.of`. Raises ConfigurationError where it is one of several models."""
        if self.role != "both" and not alone:
            raise ConfigurationError(
                f"--role {self.role} and --with do not go together: a replica with a role serves one model; start "
                "another server for the others."
            )
        return {**vars(self), "kv_offer_memory": parse_size(self.kv_offer_memory, "--kv-offer-memory")}
