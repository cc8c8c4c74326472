"""Replicas with roles in simulations: what options say of them, and what became of prompts."""

from typing import NamedTuple

import msgspec

from penstock.cli.plan_options import DeploymentOptions, FleetOptions, RoleOptions
from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError
from penstock.planning.efficiency import Efficiency
from penstock.planning.latency import Deployment
from penstock.simulation.fleet import Played


class RoleFigures(msgspec.Struct, frozen=True):
    """What became of prompts where some replicas compute them alone.

    Attributes:
        prefill_replicas, decode_replicas: how many there are of each kind.
        transfer: bytes a second that blocks take to a replica that decodes.
        handed_over, stayed: prompts that others computed, and that stayed where they were decoded.
    """

    prefill_replicas: int
    decode_replicas: int
    transfer: float
    handed_over: int
    stayed: int


class RolesAsked(NamedTuple):
    """How many replicas have each role, and bytes a second that blocks take from one to another."""

    prefills: int
    decodes: int
    transfer: float

    @property
    def places(self) -> tuple[range, range]:
        """Of those that compute prompts, and of those that decode."""
        return range(self.prefills), range(self.prefills, self.prefills + self.decodes)

    def told(self, played: Played) -> RoleFigures:
        """What became of the prompts of a run."""
        return RoleFigures(*self, played.handed_over, played.stayed)


def parse_roles(options: RoleOptions, deployment: Deployment, efficiency: Efficiency) -> RolesAsked | None:
    """The roles that options describe; None: there are none. Raises ConfigurationError.

    Unless a rate is given, blocks go over the link of the devices.
    """
    prefills, decodes, transfer = options.prefill_replicas, options.decode_replicas, options.kv_transfer
    if prefills is None and decodes is None:
        if transfer is not None:
            raise ConfigurationError("--kv-transfer is of replicas with roles; give --prefill-replicas as well.")
        return None
    if prefills is None or decodes is None:
        given, lacks = ("--prefill-replicas", "--decode-replicas")[:: 1 if decodes is None else -1]
        raise ConfigurationError(f"{given} needs {lacks}: a role without a partner has nothing to do.")
    if deployment.device.parts > 1 or deployment.stages * deployment.groups > 1:
        raise ConfigurationError(
            "Processes that share a processor, stages and groups do not go together with roles here; leave "
            "--pipeline-parallel-size, --data-parallel-size and --context-parallel-size out."
        )
    rate = deployment.device.link * efficiency.link * deployment.devices
    if transfer is not None:
        rate = float(parse_size(transfer.removesuffix("/s"), "--kv-transfer") or 0) if transfer.endswith("/s") else 0.0
        if not rate:
            raise ConfigurationError(f"--kv-transfer {transfer!r} is no rate; give one such as 10GB/s.")
    if not rate:
        raise ConfigurationError(
            f"{deployment.device.name} has no link that is known; say how fast blocks go from one replica to another, "
            "such as --kv-transfer 1GB/s."
        )
    return RolesAsked(prefills, decodes, rate)


def check_roles(roles: RolesAsked, fleet: FleetOptions, options: DeploymentOptions) -> int:
    """How many replicas there are. Raises ConfigurationError where something does not go together with roles."""
    count = roles.prefills + roles.decodes
    if fleet.replicas is not None and fleet.replicas != count:
        raise ConfigurationError(
            f"--replicas is {fleet.replicas}, and those with roles are {count}; leave --replicas out."
        )
    for name, value in (("--kv-disk", options.kv_disk), ("--kv-policy", options.kv_policy)):
        if value is not None:
            raise ConfigurationError(f"{name} does not go together with roles; leave it or --prefill-replicas out.")
    if not fleet.enable_prefix_caching:
        raise ConfigurationError("Roles need the prefix cache; leave --no-enable-prefix-caching out.")
    return count


def roles_in_words(roles: RoleFigures) -> str:
    """What became of the prompts, for people."""
    compute = "replica computes" if roles.prefill_replicas == 1 else "replicas compute"
    decode = "decodes" if roles.decode_replicas == 1 else "decode"
    return (
        f"{roles.prefill_replicas} {compute} prompts, and {roles.decode_replicas} {decode}; {roles.handed_over:,} "
        f"prompts were handed over at {roles.transfer / 1e9:,.3g} GB/s, and {roles.stayed:,} stayed where they were "
        "decoded."
    )
