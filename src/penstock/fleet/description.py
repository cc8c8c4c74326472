"""A fleet as a person describes it in `fleet.toml`: models, how many replicas each has, and the gateway before them."""

import hashlib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from penstock.configuration.options import AUTO
from penstock.configuration.sizes import parse_size
from penstock.configuration.slo import parse_slo
from penstock.core.errors import ConfigurationError
from penstock.core.handover import Role
from penstock.core.text_files import decoded
from penstock.gateway.options import FleetOptions, check_seconds, read_file

# Of files that this release reads.
VERSION = 1
MOST_REPLICAS = 1000
# Of dollars an hour: a tenth of a millionth is a matter of rounding.
EXACT = 1e-7
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# What the fleet itself says to a server.
_OF_REPLICAS = frozenset(
    {
        *("host", "port", "listen-fd", "memory", "threads", "join", "advertise", "served-model-name", "drain-timeout"),
        *("database", "data-dir", "api-key", "api-key-file", "no-auth", "tls-certificate", "tls-key", "slo"),
        *("cost-per-hour", "root-path", "explain-config", "role", "machines", "machines-at", "machines-secret-file"),
    }
)
_OF_GATEWAYS = frozenset({"host", "port", "listen-fd", "replica", "config", "policy", "prompts"})

Option = str | int | float | bool | list[str]
Options = dict[str, Option]


class Between(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds between which a number of replicas may change.

    Attributes:
        hours: of the day in UTC, such as 8-18 or 22-6, and how many replicas there are at least from the first of them
            until the second begins.
        forecast: at least what the same hour of the last days needed, too.
    """

    least: int
    most: int
    hours: dict[str, int] = {}
    forecast: bool = False

    @property
    def floors(self) -> dict[int, int]:
        """Those that there are at least, by hour of the day, where that is said. Raises ConfigurationError."""
        found: dict[int, int] = {}
        for text, number in self.hours.items():
            for hour in hours_of(text):
                found[hour] = max(number, found.get(hour, 0))
        return found


def hours_of(text: str) -> list[int]:
    """The hours of a day from one until another begins, which may be on the next. Raises ConfigurationError."""
    first, _, end = text.partition("-")
    known = first.isdecimal() and end.isdecimal() and int(first) < 24 and int(end) <= 24
    if not known or int(first) == int(end) % 24:
        raise ConfigurationError(
            f"{text!r} are no hours of a day; write them as 8-18, or 22-6, in UTC, and a whole day as `least`."
        )
    return [(int(first) + each) % 24 for each in range((int(end) - int(first)) % 24)]


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, and the replicas that it has.

    Attributes:
        name: by which requests name it.
        model: as `penstock serve` takes it; None: the name.
        replicas: how many, or the bounds of it.
        cores: of the machine, for each replica; None: an equal part of what is left.
        memory: that each replica may use, such as 4GiB; None: an equal part of what is left.
        machines: that compute a replica together, each some stages of its layers; `cores` and `memory` are of each.
        options: others of `penstock serve`, by their names.
        slo: service levels, such as ttft=500ms,tpot=40ms.
        cost_per_hour: of a replica.
        down_seconds: for which one replica less has to have been enough before one ends; of a number that follows the
            load.
        role: "prefill": its replicas compute prompts for those of the model `of`, "decode": they go on with these.
        start_seconds: within which a replica is ready, or is taken to have failed.
        drain_seconds: that requests have to finish in when a replica ends.
    """

    name: str
    model: str | None = None
    replicas: int | Between = 1
    cores: Annotated[int, msgspec.Meta(ge=1)] | None = None
    memory: str | None = None
    machines: Annotated[int, msgspec.Meta(ge=1)] = 1
    options: Options = {}
    slo: str | None = None
    cost_per_hour: float | None = None
    role: Role = "both"
    of: str | None = None
    down_seconds: float = 300.0
    start_seconds: float = 600.0
    drain_seconds: float = 30.0

    @property
    def bounds(self) -> Between:
        """Of the number of replicas."""
        return self.replicas if isinstance(self.replicas, Between) else Between(self.replicas, self.replicas)

    @property
    def source(self) -> str:
        """The model, as `penstock serve` takes it."""
        return self.model or self.served_name

    @property
    def served_name(self) -> str:
        """By which requests name it."""
        return self.of or self.name

    @property
    def version(self) -> str:
        """What tells replicas that were started otherwise from those that are as described here."""
        alike = msgspec.structs.replace(self, replicas=1, start_seconds=0.0, down_seconds=0.0)
        return hashlib.blake2b(msgspec.json.encode(alike, order="sorted"), digest_size=4).hexdigest()

    def arguments(self) -> list[str]:
        """Those of `penstock serve`, but for what depends on the place."""
        told = ["--served-model-name", self.served_name, "--drain-timeout", f"{self.drain_seconds:g}"]
        if self.slo is not None:
            told += ["--slo", self.slo]
        if self.cost_per_hour is not None:
            told += ["--cost-per-hour", f"{self.cost_per_hour:g}"]
        if self.role != "both":
            told += ["--role", self.role]
        if self.machines > 1:
            told += ["--machines", str(self.machines)]
        return [self.source, *told, *arguments_of(self.options)]

    @property
    def joining(self) -> list[str]:
        """What `penstock join` takes on another machine of a replica, but for what depends on the place."""
        formats = {name: value for name, value in self.options.items() if _spelt(name) == "load-format"}
        return [self.source, *arguments_of(formats)]

    def check(self) -> "ModelDescription":
        """Itself. Raises ConfigurationError for what cannot be."""
        if not _NAME.fullmatch(self.name.lower()):
            raise ConfigurationError(
                f"A model has the name {self.name!r}; write up to 63 letters, digits, dots and dashes, and put what "
                "`penstock serve` takes into `model`."
            )
        least, most = self.bounds.least, self.bounds.most
        if not 0 <= least <= most <= MOST_REPLICAS or not most:
            raise ConfigurationError(
                f"{self.name} has from {least} to {most} replicas; write a number up to {MOST_REPLICAS}, or "
                "{ least = 0, most = 4 }."
            )
        for text, number in self.bounds.hours.items():
            hours_of(text)
            if not max(least, 1) <= number <= most:
                raise ConfigurationError(
                    f"{self.name} has {number} replicas at least from {text} o'clock, and {least} to {most} at any "
                    "time; write a number between these, 1 at least."
                )
        if self.bounds.forecast and least == most:
            raise ConfigurationError(f"{self.name} always has {most} replicas; leave forecast out, or write bounds.")
        parse_size(self.memory, f"memory of {self.name}")
        parse_slo(self.slo)
        _check_options(self.name, self.options, _OF_REPLICAS)
        stages = {_spelt(name): value for name, value in self.options.items()}.get("pipeline-parallel-size", 1)
        whole = isinstance(stages, int) and stages > 0 and stages % self.machines == 0
        if self.machines > 1 and stages != AUTO and not whole:
            raise ConfigurationError(
                f"{self.name} has {self.machines} machines, which share out stages of its layers, and "
                f"pipeline-parallel-size is {stages}; write a multiple of {self.machines} into its options."
            )
        check_seconds(f"start_seconds of {self.name}", self.start_seconds, 1.0)
        check_seconds(f"down_seconds of {self.name}", self.down_seconds, 1.0)
        check_seconds(f"drain_seconds of {self.name}", self.drain_seconds, 0.0)
        if self.cost_per_hour is not None and not 0 <= self.cost_per_hour < math.inf:
            raise ConfigurationError(f"cost_per_hour of {self.name} is {self.cost_per_hour:g}; it must be 0 or more.")
        return self


class GatewayDescription(FleetOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gateway: where it listens, and all that the file of `penstock gateway --config` can have.

    Attributes:
        host, port: where clients reach the fleet.
        options: others of `penstock gateway`, by their names.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    options: Options = {}

    @property
    def file(self) -> FleetOptions:
        """What its file is to have."""
        return FleetOptions(**{name: getattr(self, name) for name in FleetOptions.__struct_fields__})


class FleetDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that `fleet.toml` can have.

    Attributes:
        version: of the file's form.
        name: of the fleet on this machine.
        surge: replicas of a model that an update starts before it ends old ones; 0: it ends one first, where there is
            no room for both.
        budget_per_hour: dollars that all replicas may cost together, by their models' cost_per_hour; None: no bound.
    """

    model: tuple[ModelDescription, ...]
    gateway: GatewayDescription = GatewayDescription()
    version: int = VERSION
    name: str = "fleet"
    surge: Annotated[int, msgspec.Meta(ge=0)] = 1
    budget_per_hour: float | None = None

    def check(self) -> "FleetDescription":
        """Itself. Raises ConfigurationError for what cannot be."""
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"The fleet has the name {self.name!r}; write up to 63 small letters, digits, dots and dashes."
            )
        if not self.model:
            raise ConfigurationError("The fleet has no model; describe one with [[model]].")
        names = [each.check().name for each in self.model]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"Two models have the name {name}; give each its own.")
        self._check_budget()
        check_roles(self.model)
        if not 0 <= self.gateway.port <= 65535:
            raise ConfigurationError(f"gateway.port is {self.gateway.port}; it must be from 0 to 65535.")
        _check_options("the gateway", self.gateway.options, _OF_GATEWAYS)
        return self

    def _check_budget(self) -> None:
        if self.budget_per_hour is None:
            return
        if not 0 < self.budget_per_hour < math.inf:
            raise ConfigurationError(f"budget_per_hour is {self.budget_per_hour:g}; write dollars above 0.")
        for each in self.model:
            if each.cost_per_hour is None:
                raise ConfigurationError(
                    f"budget_per_hour is of all replicas, and {each.name} has no cost_per_hour; write it, 0 if it "
                    "costs nothing."
                )
        least = sum(each.bounds.least * (each.cost_per_hour or 0.0) for each in self.model)
        if least > self.budget_per_hour + EXACT:
            raise ConfigurationError(
                f"The fewest replicas that there may be cost {least:g} dollars an hour, and budget_per_hour is "
                f"{self.budget_per_hour:g}; write a larger budget, or fewer replicas."
            )

    def of(self, name: str) -> ModelDescription:
        """The model of a name. Raises ConfigurationError where there is none."""
        found = next((each for each in self.model if each.name == name), None)
        if found is None:
            there = ", ".join(each.name for each in self.model)
            raise ConfigurationError(f"The fleet has no model {name!r}; it has {there}.")
        return found


def check_roles(models: Sequence[ModelDescription]) -> None:
    """Raises ConfigurationError for a role without a partner, and for what does not go together with one."""
    by_name = {each.name: each for each in models}
    for each in models:
        if (each.role == "prefill") != (each.of is not None):
            raise ConfigurationError(
                f'{each.name} must have role = "prefill" and `of`, the name of the model whose prompts it computes, or '
                "neither."
            )
        if each.role != "both" and each.bounds.least != each.bounds.most:
            raise ConfigurationError(
                f"{each.name} has a role, and a number of replicas that follows the load counts whole requests; write "
                "a number."
            )
        if each.of is None:
            continue
        partner = by_name.get(each.of)
        if partner is None or partner.role != "decode":
            raise ConfigurationError(
                f'{each.name} computes prompts for {each.of}, which is no model here with role = "decode"; describe '
                f"that, or leave {each.name} out."
            )
        if partner.source != each.source:
            raise ConfigurationError(
                f"{each.name} computes prompts with the model {each.source}, and {each.of} goes on with "
                f"{partner.source}; write the same `model`."
            )
    for each in models:
        if each.role == "decode" and not any(other.of == each.name for other in models):
            raise ConfigurationError(
                f'{each.name} has role = "decode", and no model computes its prompts; describe one with '
                f'role = "prefill" and of = "{each.name}", or leave the role out.'
            )


def plain_name(name: str) -> str:
    """A model's name as a part of others, of files and of what Kubernetes has."""
    return "".join(each if each.isalnum() else "-" for each in name.lower())


def read_description(path: Path) -> FleetDescription:
    """What a file describes. Raises ConfigurationError where it cannot be read, or has something unknown."""

    def read(content: bytes) -> FleetDescription:
        found = tomllib.loads(decoded(content))
        check_version(found, str(path))
        found.setdefault("name", _name_of(path))
        return msgspec.convert(found, FleetDescription).check()

    return read_file(path, "fleet", read)


def check_version(found: Mapping[str, Any], path: str) -> None:
    """Raises ConfigurationError for a file that another release writes, whatever else is in it."""
    version = found.get("version", VERSION)
    if version != VERSION:
        raise ConfigurationError(
            f"The file {path} has version {version!r}, and this release of Penstock reads version {VERSION}; install "
            "the release that it was written for."
        )


def arguments_of(options: Mapping[str, Option]) -> list[str]:
    """Options by name as a command takes them: true is a flag, a list is given several times."""
    told: list[str] = []
    for name, value in options.items():
        option = f"--{_spelt(name)}"
        if isinstance(value, bool):
            told.append(option if value else f"--no-{_spelt(name)}")
        else:
            for each in value if isinstance(value, list) else [value]:
                told += [option, str(each)]
    return told


def _spelt(name: str) -> str:
    return name.replace("_", "-")


def _check_options(whose: str, options: Mapping[str, Option], own: frozenset[str]) -> None:
    for name in options:
        if _spelt(name) in own:
            raise ConfigurationError(f"options of {whose} have {name!r}, which the fleet itself sets; leave it out.")


def _name_of(path: Path) -> str:
    """A fleet's name, where its file has none."""
    return re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-._")[:63] or "fleet"
