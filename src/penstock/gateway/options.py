"""What a gateway is asked for: its replicas, and how it treats them."""

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from penstock.core.checks import LONGEST_SECONDS
from penstock.core.errors import ConfigurationError
from penstock.core.text_files import decoded
from penstock.gateway.answers import AnswerCacheOptions
from penstock.gateway.guardrail_options import Guardrail, check_guardrails
from penstock.gateway.pool import address_of
from penstock.gateway.rules import Rule
from penstock.gateway.trials import Shadow, Split, Splits
from penstock.metering.prices import Price, Prices
from penstock.providers.options import ProviderOptions
from penstock.routing.policies import policy_of
from penstock.tenancy.oidc_options import IssuerOptions

_MOST_FILE_BYTES = 1 << 20
_MOST_PORT = 65535
_MOST_BLOCK = 4096
_MOST_HEDGED = 0.5
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Content = TypeVar("Content")


class KVOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a server of another program tells what changes in its prefix cache, as vLLM does.

    Attributes:
        events: port of its host at which it publishes events.
        replay: port at which it tells them again.
        block_size: tokens of a block.
        prompts: the model whose prompts it reads: one of the gateway's `prompts`.
    """

    events: int
    replay: int
    prompts: str
    block_size: int = 16


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica.

    Attributes:
        url: where it listens; paths of the API are behind it.
        key_variable: of the environment, with the API key that it wants; None: that of all replicas.
        most_requests: at a time; more wait at the gateway. None: what it takes on, where it says so.
        handicap: seconds by which it has to answer sooner than others, since it costs more or is far away.
        dns: whether each address behind the name in the URL is a replica.
        kv: where its cache's events are, if it does not say so itself.
    """

    url: str
    key_variable: str | None = None
    most_requests: int | None = None
    handicap: float = 0.0
    dns: bool = False
    kv: KVOptions | None = None


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that a replica has.

    Attributes:
        connect: to take a connection.
        first_byte: to begin an answer.
        idle: to send more of an answer.
        silence: to tell its state again, which it does twice a second.
    """

    connect: float = 2.0
    first_byte: float = 600.0
    idle: float = 120.0
    silence: float = 1.5


class HoldOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to requests while no replica can answer, or all have as much as they take on.

    Attributes:
        seconds: for which one waits at most; 0: none waits.
        requests: the most that wait.
        ahead: requests that each replica has beyond those that it computes, so that it never waits for the gateway.
    """

    seconds: float = 30.0
    requests: int = 1000
    ahead: int = 8


class HandoverOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which prompts replicas with the role prefill compute for those with the role decode.

    Attributes:
        when: "pays": where those that wait then wait less in all; "always": all that are long enough.
        least_tokens: of a prompt that are to be computed; shorter ones stay where they are decoded.
    """

    when: Literal["pays", "always"] = "pays"
    least_tokens: Annotated[int, msgspec.Meta(ge=0)] = 256


class JoinOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How replicas join.

    Attributes:
        lease: seconds after which one is gone that has not said again that it is there.
    """

    lease: float = 10.0


class RetryOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a request is sent to another replica, because one did not begin an answer.

    Attributes:
        most: of a request.
        part: of all requests, in the long run.
        unlike: whether a stream that breaks may go on at a replica of Penstock that may give other bits.
    """

    most: int = 2
    part: float = 0.2
    unlike: bool = False


class HedgeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests are sent to a second replica, too, because their answers have not begun.

    Attributes:
        part: of all streams, those that begin last, and the most that are sent twice; 0: none is.
    """

    part: float = 0.0


class PriceLike(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that costs what another one does by a list of prices.

    Attributes:
        like: the other one's name in the list.
    """

    model: str
    like: str


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the file of `--config` can have.

    Attributes:
        replica: those that there are.
        provider: hosted APIs that answer where own machines would take too long, in the order in which they are asked.
        policy: how they are chosen.
        rule: which models requests get that name others.
        split, shadow: which models are tried on a part of the requests for others, or on copies of them.
        prompts: models whose prompts the gateway reads as their replicas do, so that it knows their blocks.
        expect: models that replicas have at times: requests for them wait where none has them now.
        key_variable: of the environment, with the API key of replicas that have none of their own.
        price: what tokens of models cost.
        price_like: models that cost what a list says of others; `ListedPrices` makes prices of them.
        free: models that cost nothing.
        oidc: who issues tokens that are taken beside keys.
        answer_cache: what is kept of answers.
        guardrail: who looks at requests, and at answers, one after the other.
    """

    replica: tuple[ReplicaOptions, ...] = ()
    provider: tuple[ProviderOptions, ...] = ()
    policy: str = "estimated"
    prompts: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    rule: tuple[Rule, ...] = ()
    split: tuple[Split, ...] = ()
    shadow: tuple[Shadow, ...] = ()
    key_variable: str | None = None
    price: tuple[Price, ...] = ()
    price_like: tuple[PriceLike, ...] = ()
    free: tuple[str, ...] = ()
    guardrail: tuple[Guardrail, ...] = ()
    oidc: IssuerOptions | None = None
    timeouts: Timeouts = Timeouts()
    hold: HoldOptions = HoldOptions()
    handover: HandoverOptions = HandoverOptions()
    join: JoinOptions = JoinOptions()
    retries: RetryOptions = RetryOptions()
    hedge: HedgeOptions = HedgeOptions()
    answer_cache: AnswerCacheOptions = AnswerCacheOptions()

    def check(self, *, joinable: bool = False) -> "FleetOptions":
        """Itself; `joinable`: replicas may come by themselves. Raises ConfigurationError for what cannot be."""
        if not self.replica and not self.provider and not joinable:
            raise ConfigurationError(
                "The gateway has no replica; name one with --replica URL or in --config FILE, or let them join, with a "
                "token in PENSTOCK_JOIN_TOKEN."
            )
        addresses = [str(address_of(each.url)) for each in self.replica]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ConfigurationError(f"The replica {address} is given twice; name it once.")
        for name in (names := [each.check().name for each in self.provider]):
            if names.count(name) > 1:
                raise ConfigurationError(f"The provider {name} is there twice; give each a name of its own.")
        policy_of(self.policy)
        for each in self.replica:
            if each.kv is not None:
                _check_kv(each.url, each.kv, self.prompts)
        _check_names(self.replica)
        _check_handicaps(self.replica, self.policy)
        for rule in self.rule:
            rule.check()
        for split in self.split:
            split.check()
        for shadow in self.shadow:
            shadow.check()
        Splits(self.split)
        if self.price_like:
            raise ConfigurationError("price_like needs a list of prices, and none was read.")
        Prices(self.price, self.free)
        if self.oidc is not None:
            self.oidc.check()
        self.answer_cache.check()
        check_guardrails(self.guardrail)
        check_seconds("join.lease", self.join.lease, 1.0)
        for name, seconds in msgspec.structs.asdict(self.timeouts).items():
            check_seconds(f"timeouts.{name}", seconds, 0.001)
        check_seconds("hold.seconds", self.hold.seconds, 0.0)
        if self.hold.requests < 0:
            raise ConfigurationError(f"hold.requests is {self.hold.requests}; it must be 0 or more.")
        if self.hold.ahead < 1:
            raise ConfigurationError(f"hold.ahead is {self.hold.ahead}; it must be 1 or more.")
        for each in self.replica:
            if each.most_requests is not None and each.most_requests < 1:
                raise ConfigurationError(f"most_requests of {each.url} is {each.most_requests}; it must be 1 or more.")
        if not 0 <= self.retries.most <= 10:
            raise ConfigurationError(f"retries.most is {self.retries.most}; it must be from 0 to 10.")
        if not 0 <= self.retries.part <= 1:
            raise ConfigurationError(f"retries.part is {self.retries.part:g}; it must be from 0 to 1.")
        if not 0 <= self.hedge.part <= _MOST_HEDGED:
            raise ConfigurationError(f"hedge.part is {self.hedge.part:g}; it must be from 0 to {_MOST_HEDGED:g}.")
        keyed: tuple[ReplicaOptions | Guardrail, ...] = (*self.replica, *self.guardrail)
        for variable in (self.key_variable, *(each.key_variable for each in keyed)):
            if variable is not None and not _VARIABLE.fullmatch(variable):
                raise ConfigurationError(
                    f"key_variable is {variable!r}, which is no name of a variable of the environment; "
                    "put the key into one, such as REPLICA_KEY, and name that."
                )
        return self


def read_fleet(path: Path) -> FleetOptions:
    """The options in a file of TOML, or of JSON by its name.

    Raises ConfigurationError where it cannot be read, or has something unknown.
    """

    def read(content: bytes) -> FleetOptions:
        if path.suffix == ".json":
            return msgspec.json.decode(content, type=FleetOptions)
        return msgspec.convert(tomllib.loads(decoded(content)), FleetOptions)

    return read_file(path, "configuration", read)


def read_file(path: Path, what: str, read: Callable[[bytes], Content]) -> Content:
    """What `read` makes of a file. Raises ConfigurationError where it cannot be read, or is not `what` it should be."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"The file {path} cannot be read ({error.strerror}).") from error
    if len(content) > _MOST_FILE_BYTES:
        raise ConfigurationError(f"The file {path} has more than {_MOST_FILE_BYTES} bytes, and so is no {what}.")
    try:
        return read(content)
    except UnicodeDecodeError:
        raise ConfigurationError(f"The file {path} is not UTF-8, and so no TOML.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"The file {path} is no TOML: {error}.") from None
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"The file {path} cannot be used: {error}.") from None


def fleet_of(
    config: Path | None,
    replicas: Sequence[str],
    policy: str | None,
    prompts: Sequence[str] = (),
    *,
    joinable: bool = False,
    fill: Callable[[FleetOptions], FleetOptions] = lambda fleet: fleet,
) -> FleetOptions:
    """The options of a file, or those of the command line, which count where both say something.

    `fill` adds what is left to lists, before all is checked.

    Raises ConfigurationError.
    """
    fleet = FleetOptions() if config is None else read_fleet(config)
    if replicas:
        fleet = msgspec.structs.replace(fleet, replica=tuple(ReplicaOptions(url=url) for url in replicas))
    if policy is not None:
        fleet = msgspec.structs.replace(fleet, policy=policy)
    if prompts:
        fleet = msgspec.structs.replace(fleet, prompts=tuple(prompts))
    return fill(fleet).check(joinable=joinable)


def _check_handicaps(replicas: Sequence[ReplicaOptions], policy: str) -> None:
    for each in replicas:
        check_seconds(f"handicap of {each.url}", each.handicap, 0.0)
        if each.handicap and policy != "estimated":
            raise ConfigurationError(
                f"{each.url} has a handicap, which only the policy estimated looks at, not {policy}."
            )


def _check_names(replicas: Sequence[ReplicaOptions]) -> None:
    for each in replicas:
        if each.dns and (address_of(each.url).encrypted or each.kv is not None):
            raise ConfigurationError(
                f"{each.url} has dns = true, which goes with http:// and without kv; replicas of Penstock say "
                "themselves where their events are."
            )


def _check_kv(url: str, kv: KVOptions, prompts: Sequence[str]) -> None:
    for name, port in (("events", kv.events), ("replay", kv.replay)):
        if not 1 <= port <= _MOST_PORT:
            raise ConfigurationError(f"kv.{name} of {url} is {port}; it must be a port, from 1 to {_MOST_PORT}.")
    if not 1 <= kv.block_size <= _MOST_BLOCK:
        raise ConfigurationError(
            f"kv.block_size of {url} is {kv.block_size}; it must be from 1 to {_MOST_BLOCK} tokens."
        )
    if kv.prompts not in prompts:
        there = f"there are {', '.join(prompts)}" if prompts else "there are none"
        raise ConfigurationError(f"kv.prompts of {url} is {kv.prompts!r}, none of the gateway's prompts; {there}.")


def check_seconds(name: str, value: float, least: float) -> None:
    """Raises ConfigurationError for what is no time, or less than the least."""
    if not least <= value <= LONGEST_SECONDS:
        raise ConfigurationError(f"{name} is {value:g}; it must be from {least:g} to {LONGEST_SECONDS:.0f} seconds.")
