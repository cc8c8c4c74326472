"""Starts a gateway's endpoint picker for Envoy."""

import contextlib
from typing import TYPE_CHECKING

from penstock.core.errors import ConfigurationError
from penstock.gateway.options import FleetOptions
from penstock.server.dialects import DIALECTS

if TYPE_CHECKING:
    from penstock.gateway.dispatch import Dispatch

# What a gateway does with requests that it passes on itself, and cannot do where Envoy does.
_OF_PASSING = {
    "provider": "asks providers",
    "guardrail": "asks guardrails",
    "rule": "gives requests other models",
    "split": "tries models on a part of the requests",
    "shadow": "makes copies of requests",
}


def check_pickable(fleet: FleetOptions, *, keyed: bool) -> None:
    """Raises ConfigurationError for what would be passed over where Envoy passes requests on."""
    if keyed:
        raise ConfigurationError(
            "--ext-proc-port cannot have keys: Envoy's clients never show the gateway any. Leave keys and --database "
            "out, and let Envoy or the replicas check who may ask."
        )
    for name, does in _OF_PASSING.items():
        if getattr(fleet, name):
            raise ConfigurationError(
                f"--ext-proc-port cannot have [[{name}]]: Envoy passes requests on itself, and only the gateway "
                f"{does}. Leave it out, or run a second gateway for it."
            )


def picker(
    dispatch: "Dispatch", host: str, port: int, drain_seconds: float
) -> contextlib.AbstractAsyncContextManager[int]:
    """What listens for Envoy. Raises ConfigurationError where gRPC is not installed."""
    try:
        from penstock.gateway.envoy.service import Picker, picking
    except ImportError:
        raise ConfigurationError("--ext-proc-port needs the extra envoy: pip install 'penstock[envoy]'.") from None
    return picking(Picker(dispatch, DIALECTS), host, port, drain_seconds)
