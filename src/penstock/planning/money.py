"""What tokens cost on one's own devices, and from which volume that is less than an API's price."""

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.planning.asked import Asked
from penstock.planning.decisions import Decision, Facts, decide
from penstock.planning.efficiency import Efficiency
from penstock.planning.estimates import Estimate, Workload, estimate, prompts_of
from penstock.planning.interval import Interval, around
from penstock.planning.latency import Deployment
from penstock.planning.load import MOST_UTILISATION, Load
from penstock.planning.owning import HOURS_A_MONTH, Owning, owning
from penstock.planning.prices import ApiPrice, DevicePrice
from penstock.planning.volume import Replica, Volume, volume_of

_MILLION = 1e6
SECONDS_A_MONTH = HOURS_A_MONTH * 3600


class BreakEven(msgspec.Struct, frozen=True):
    """Own devices against an API.

    Attributes:
        own_month: dollars a month for devices and operations, whatever is served.
        api_request: dollars a request at the API.
        requests_a_month: from this number on, the own devices cost less.
        most_a_month: that they can serve; with fewer than the other number, they never cost less.
    """

    own_month: float
    api_request: float
    requests_a_month: float
    most_a_month: float

    @property
    def comes(self) -> bool:
        """Whether the devices can serve enough for it."""
        return self.requests_a_month <= self.most_a_month


class TokenCosts(msgspec.Struct, frozen=True):
    """Dollars a million tokens of each kind.

    A request's cost is shared out by device seconds: a prompt's own computation against its part of the steps that
    decode. Idle time and operations are shared in the same way. A cached token costs what it adds to the computation of
    the rest of its prompt.

    Attributes:
        cached: None where a prompt has one token only.
        cached_tokens: of a prompt, with which `cached` was computed: those of the workload, or half of the prompt.
        prompt_part: of a request's device seconds, in its prompt.
    """

    input: Interval
    cached: Interval | None
    output: Interval
    cached_tokens: float
    prompt_part: float


class Money(msgspec.Struct, frozen=True):
    """What tokens cost.

    Attributes:
        device_hour: dollars, for one device.
        device_price: the row of a list that this is from, None where it was given.
        devices: that are paid; with a rate, those of the replicas that it needs.
        utilisation: part of what they could serve that is served; with a rate, the part of their places that is taken.
        output_million: dollars a million output tokens, where these bear the whole cost, operations included.
        million: dollars a million tokens of each kind.
        month: dollars for 730 hours of all devices; `total_month`: and for operations.
        requests_a_month: that these figures are of.
        api: the price that own devices are compared with; None where none is known.
        against_api: from how many requests a month these devices cost less than that.
        volume: own replicas in the number that it takes, against that.
        owning: buying devices against renting them; None where no price of a device is known.
        decisions: which branch these figures lead to, and why.
    """

    device_hour: float
    device_price: DevicePrice | None
    devices: int
    utilisation: float
    output_million: float
    million: TokenCosts
    month: float
    total_month: float
    requests_a_month: float
    api: ApiPrice | None
    against_api: BreakEven | None
    volume: Volume | None
    owning: Owning | None
    decisions: list[Decision]


class Served(msgspec.Struct, frozen=True):
    """What a plan has found of speed.

    Attributes:
        each: the workload of one replica, and `told` what is estimated of it.
        output_rate: output tokens a second of all devices, where none of the requests at a time is ever missing.
        slower, faster: throughputs that are likely, as parts of the estimate, and what they stand on.
        largest: the most requests at a time on a replica that keep what was asked; None: none does.
        load: of a rate; None where no rate is known.
    """

    each: Workload
    told: Estimate
    output_rate: float
    slower: float
    faster: float
    basis: str
    largest: int | None
    load: Load | None


def money_of(asked: Asked, efficiency: Efficiency, served: Served) -> Money | None:
    """What a plan costs; None where no price of a device is known."""
    if asked.device_hour is None:
        return None
    output, load = max(1.0, asked.workload.output_tokens), served.load
    devices, busy = asked.machine.count, 1.0 if asked.utilisation is None else asked.utilisation
    full = served.output_rate / output
    if asked.rate is not None:
        busy = min(1.0, asked.rate / full)
    requests = full * busy * SECONDS_A_MONTH
    if load is not None:
        devices, busy = load.replicas * asked.deployment.devices, load.utilisation
        requests = load.rate * SECONDS_A_MONTH
    month = asked.device_hour * devices * HOURS_A_MONTH
    total = month + asked.operations_month
    request = around(total / requests, 1 / served.faster, 1 / served.slower, served.basis)
    against = volume = replica = None
    if asked.api is not None:
        workload = asked.workload
        api_request = asked.api.month(1, workload.input_tokens, workload.output_tokens, workload.cached_tokens)
        against = break_even(total, api_request, requests / SECONDS_A_MONTH)
        replica = _replica(asked, efficiency, served)
        if replica is not None:
            volume = volume_of(replica, asked.operations_month, api_request, workload.input_tokens + output)
    bought = None
    if asked.purchase is not None:
        bought = owning(asked.purchase, asked.device_hour, asked.deployment.device.watts)
    if load is not None:
        served = _under(asked, efficiency, served, load.in_flight / load.replicas)
    facts = Facts(
        volume=volume,
        replica=replica,
        api=asked.api,
        requests_a_month=None if load is None else requests,
        device_hour=asked.device_hour,
        device_price=asked.device_price,
        reserved_hour=asked.reserved_hour,
        owning=bought,
    )
    return Money(
        device_hour=asked.device_hour,
        device_price=asked.device_price,
        devices=devices,
        utilisation=busy,
        output_million=total / (requests * output) * _MILLION,
        million=token_costs(asked.deployment, efficiency, served, request),
        month=month,
        total_month=total,
        requests_a_month=requests,
        api=asked.api,
        against_api=against,
        volume=volume,
        owning=bought,
        decisions=decide(facts),
    )


def _under(asked: Asked, efficiency: Efficiency, served: Served, concurrency: float) -> Served:
    """The same with the requests at a time that each replica of a load has."""
    each = msgspec.structs.replace(served.each, concurrency=max(1.0, concurrency))
    return msgspec.structs.replace(served, each=each, told=estimate(asked.deployment, efficiency, each))


def token_costs(deployment: Deployment, efficiency: Efficiency, served: Served, request: Interval) -> TokenCosts:
    """What tokens of each kind cost where a request costs that many dollars, by the rule of `TokenCosts`.

    The first output token comes of the prompt's computation, so a request has one step fewer than output tokens.
    """
    workload, told = served.each, served.told
    output = max(1.0, workload.output_tokens)
    computed = workload.computed_tokens
    decoding = told.step.seconds * (output - 1) / max(1.0, workload.concurrency)
    # Other prompts are in the other stages and groups meanwhile.
    prompt = prompts_of(deployment, efficiency, workload).behind
    seconds = prompt + decoding
    cached = workload.cached_tokens or workload.input_tokens // 2
    return TokenCosts(
        input=_share(request, _prompt_seconds(deployment, efficiency, workload, computed) / seconds, computed),
        cached=_share(request, _cached_seconds(deployment, efficiency, workload, cached) / seconds, cached)
        if cached
        else None,
        output=_share(request, decoding / seconds, output),
        cached_tokens=cached,
        prompt_part=prompt / seconds,
    )


def _prompt_seconds(
    deployment: Deployment, efficiency: Efficiency, workload: Workload, tokens: float, cached: float = 0.0
) -> float:
    """Of the devices' time, what a prompt takes that has `tokens` behind `cached` ones."""
    prompt = msgspec.structs.replace(workload, input_tokens=cached + tokens, cached_tokens=cached)
    return prompts_of(deployment, efficiency, prompt).behind


def _cached_seconds(deployment: Deployment, efficiency: Efficiency, workload: Workload, cached: float) -> float:
    """What tokens in the cache add to the computation of the rest of a prompt."""
    rest = max(1.0, workload.input_tokens - cached)
    behind = _prompt_seconds(deployment, efficiency, workload, rest, cached)
    return behind - _prompt_seconds(deployment, efficiency, workload, rest)


def _share(request: Interval, part: float, tokens: float) -> Interval:
    """Dollars a million of the tokens that bear a part of a request's cost."""
    each = part / tokens * _MILLION
    return Interval(request.value * each, request.low * each, request.high * each, request.basis)


def _replica(asked: Asked, efficiency: Efficiency, served: Served) -> Replica | None:
    """A replica with as many requests at a time as keep what was asked; None where none does."""
    assert asked.device_hour is not None
    if served.largest is None:
        return None
    workload = msgspec.structs.replace(served.each, concurrency=float(served.largest))
    told = estimate(asked.deployment, efficiency, workload)
    used = MOST_UTILISATION if asked.utilisation is None else asked.utilisation
    return Replica(
        month=asked.device_hour * asked.deployment.devices * HOURS_A_MONTH,
        requests=told.output_tokens_per_second / max(1.0, workload.output_tokens) * used * SECONDS_A_MONTH,
        utilisation=used,
        concurrency=served.largest,
        slower=served.slower,
        faster=served.faster,
    )


def per_million(device_hour: float, devices: float, tokens_per_second: float) -> float:
    """Dollars a million tokens of devices that yield that many a second. Raises ConfigurationError for none."""
    if tokens_per_second <= 0:
        raise ConfigurationError("Tokens that are never made have no price; give a rate above zero.")
    return device_hour * devices / 3600 / tokens_per_second * _MILLION


def break_even(own_month: float, api_request: float, requests_per_second: float) -> BreakEven:
    """From how many requests a month own devices cost less, which serve that number a second at most."""
    if api_request <= 0:
        raise ConfigurationError("An API that costs nothing is never dearer; give its price.")
    return BreakEven(own_month, api_request, own_month / api_request, requests_per_second * SECONDS_A_MONTH)
