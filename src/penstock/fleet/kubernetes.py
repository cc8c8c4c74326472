"""A fleet as values of the Helm chart (`deploy/helm/penstock`)."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError
from penstock.fleet.description import Between, FleetDescription, GatewayDescription, ModelDescription, Options
from penstock.gateway.options import FleetOptions

# The startup probe waits for that many times what a start takes.
_STARTS = 3
_MEBIBYTE = 1 << 20
# Options of a gateway that need a file or an address of this machine, and the chart's value instead.
_SECRETS = {
    "api-key": "keysSecret",
    "api-key-file": "keysSecret",
    "database": "databaseSecret",
    "limits-store": "env, as PENSTOCK_LIMITS_STORE",
    "answer-store": "env, as PENSTOCK_ANSWER_STORE",
}
# What is between clients and pods ends TLS there.
_NOT_THERE = ("tls-certificate", "tls-key")


def values_of(
    fleet: FleetDescription,
    *,
    keys_secret: str | None = None,
    no_auth: bool = False,
    machines_secret: str | None = None,
) -> dict[str, Any]:
    """The chart's values, in types of JSON.

    Args:
        keys_secret: of the cluster, with the keys that gateways take (keys.toml); None: everybody may ask, by
            `no_auth`.
        machines_secret: of the cluster, with what machines of one replica have in common.

    Raises ConfigurationError for what the chart cannot have.
    """
    if bool(keys_secret) is no_auth:
        raise ConfigurationError(
            "In a cluster others can reach the gateway: name a secret that has keys.toml with --keys-secret, or let "
            "everybody ask with --no-auth."
        )
    if fleet.budget_per_hour is not None:
        raise ConfigurationError(
            "budget_per_hour holds where Penstock itself starts replicas, and not in Kubernetes; leave it out, and "
            "bound each model by `most`."
        )
    for each in fleet.model:
        if each.role != "both":
            raise ConfigurationError(
                f"{each.name} has a role, and the chart has none for its replicas in this release; leave the role out."
            )
    _check_machines(fleet, machines_secret)
    values: dict[str, Any] = {"models": [_model(each) for each in fleet.model]}
    if machines_secret:
        values["machinesSecret"] = machines_secret
    gateway: dict[str, Any] = {"keysSecret": keys_secret} if keys_secret else {"noAuth": True}
    if file := _file(fleet.gateway):
        gateway["file"] = file
    if options := _gateway_options(fleet.gateway.options):
        gateway["options"] = options
    values["gateway"] = gateway
    if downs := [each.down_seconds for each in fleet.model if each.bounds.least != each.bounds.most]:
        # The chart has one for all models.
        values["scaling"] = {"by": "keda", "downSeconds": math.ceil(max(downs))}
        # It asks Prometheus what gateways tell.
        values["monitoring"] = {"serviceMonitors": True}
    return values


def _check_machines(fleet: FleetDescription, secret: str | None) -> None:
    """Raise ConfigurationError where a secret is missing, or of no use."""
    several = next((each.name for each in fleet.model if each.machines > 1), None)
    if several is not None and not secret:
        raise ConfigurationError(
            f"Machines of {several} show each other that they have a secret in common: name one of the cluster, with "
            "the key `secret`, by --machines-secret."
        )
    if several is None and secret:
        raise ConfigurationError("No model has several machines; leave --machines-secret out.")


def _model(described: ModelDescription) -> dict[str, Any]:
    bounds, options = described.bounds, dict(described.options)
    if described.cost_per_hour is not None:
        options["cost-per-hour"] = described.cost_per_hour
    found: dict[str, Any] = {
        "name": described.name,
        "model": described.source,
        "replicas": bounds.most if bounds.least == bounds.most else _bounds(bounds),
        "startSeconds": math.ceil(described.start_seconds / _STARTS),
        "drainSeconds": math.ceil(described.drain_seconds),
    }
    if options:
        found["options"] = options
    if described.machines > 1:
        found["machines"] = described.machines
    if described.slo is not None:
        found["slo"] = described.slo
    if resources := _resources(described):
        found["resources"] = resources
    return found


def _bounds(bounds: Between) -> dict[str, Any]:
    if bounds.forecast:
        raise ConfigurationError(
            "forecast holds where Penstock itself starts replicas, and not in Kubernetes; write the `hours` in which "
            "there are more at least."
        )
    hours = {"hours": dict(bounds.hours)} if bounds.hours else {}
    return {"least": bounds.least, "most": bounds.most, **hours}


def _resources(described: ModelDescription) -> dict[str, Any]:
    memory = parse_size(described.memory, f"memory of {described.name}")
    asked: dict[str, str] = {}
    if described.cores is not None:
        asked["cpu"] = str(described.cores)
    if memory is None:
        return {"requests": asked} if asked else {}
    whole = f"{memory // _MEBIBYTE}Mi"
    return {"requests": {**asked, "memory": whole}, "limits": {"memory": whole}}


def _file(gateway: GatewayDescription) -> dict[str, Any]:
    """What the gateway's file has beside replicas, where it is not as without it."""
    for name in ("replica", "expect", "key_variable"):
        if getattr(gateway.file, name):
            raise ConfigurationError(f"The gateway has {name}, which the chart writes itself; leave it out.")
    without, given = FleetOptions(), gateway.file
    changed = (name for name in FleetOptions.__struct_fields__ if getattr(given, name) != getattr(without, name))
    return {name: msgspec.to_builtins(getattr(given, name)) for name in changed}


def _gateway_options(options: Options) -> Mapping[str, Any]:
    found = dict[str, Any]()
    for name, value in options.items():
        spelt = name.replace("_", "-")
        if spelt in _SECRETS:
            raise ConfigurationError(
                f"The gateway has {name}, which is of this machine; leave it out, and give the cluster's secret "
                f"(gateway.{_SECRETS[spelt]} of the chart)."
            )
        if spelt in _NOT_THERE:
            raise ConfigurationError(
                f"The gateway has {name}, which its probes would not speak; leave it out, and end TLS before it."
            )
        if spelt != "no-auth":
            found[name] = value
    return found
