"""Which branch the figures of a plan lead to, and why: an API or own devices, rented, reserved or bought.

Each answer is computed from this plan's break-even. Rules of thumb of the field stand beside it and are judged by it.
"""

from collections.abc import Iterator
from math import floor, log10

import msgspec

from penstock.planning.owning import HOURS_A_MONTH, Owning
from penstock.planning.prices import ApiPrice, DevicePrice
from penstock.planning.volume import Replica, Volume, volume_of

_DAYS_A_MONTH = HOURS_A_MONTH / 24
# Below the first an API, above the second own devices: what is often said of tokens a month and of requests a day.
THUMB_TOKENS = (10e6, 100e6)
THUMB_REQUESTS = (10_000.0, 100_000.0)


class Decision(msgspec.Struct, frozen=True):
    """A question, which branch is taken, and what figures lead there."""

    question: str
    answer: str
    because: str


class Facts(msgspec.Struct, frozen=True):
    """What decisions are made from; None: not known.

    Attributes:
        volume: own replicas against the API, and `replica` one of them.
        requests_a_month: that are to be served, where a rate is known.
        device_hour, reserved_hour: dollars for a device as it is paid here, and on a lease of three years.
    """

    volume: Volume | None
    replica: Replica | None
    api: ApiPrice | None
    requests_a_month: float | None
    device_hour: float
    device_price: DevicePrice | None
    reserved_hour: float | None
    owning: Owning | None


def decide(facts: Facts) -> list[Decision]:
    """The decisions that the facts are enough for."""
    found: list[Decision] = []
    if facts.volume is not None:
        found.append(_api_or_own(facts.volume, facts.requests_a_month))
        found += _thumbs(facts.volume)
        found += _mixed(facts.volume)
        found += _batches(facts)
    found += _reserved(facts)
    if facts.owning is not None:
        found.append(_buying(facts.owning))
    return found


def _api_or_own(volume: Volume, requests: float | None) -> Decision:
    question = "An API or own devices?"
    if volume.first is None or volume.always is None:
        own = volume.replica_month / volume.replica_requests
        return Decision(
            question,
            "An API, at any volume",
            f"a request costs {small(volume.api_request)} there, and {small(own)} on a replica at "
            f"{volume.utilisation:.0%} utilisation.{_likely(volume)}",
        )
    ends = f"own replicas cost less from {_volume(volume, volume.first)} on"
    if volume.always > volume.first:
        ends += f", and from {_volume(volume, volume.always)} on whatever part of the last replica is used"
    ends += f".{_likely(volume)}"
    if requests is None:
        return Decision(question, "It depends on the volume; give --rate", ends)
    own, api, count = volume.own(requests), volume.api(requests), volume.replicas(requests)
    replicas = "one own replica" if count == 1 else f"{count:,} own replicas"
    told = f"{requests:,.0f} requests a month cost ${api:,.0f} there and ${own:,.0f} on {replicas}; {ends}"
    return Decision(question, "Own devices" if own <= api else "An API", told)


def _likely(volume: Volume) -> str:
    """What is said of the ends of the estimate, where they lead elsewhere."""
    ends = [
        "never" if first is None else f"from {first:,.0f} requests a month on"
        for first in (volume.first_faster, volume.first_slower)
    ]
    if ends[0] == ends[1]:
        return ""
    return f" At the fast end of the estimate {ends[0]}, at the slow end {ends[1]}."


def _thumbs(volume: Volume) -> Iterator[Decision]:
    """Whether the rules of thumb hold for this model and API."""
    meets = None if volume.first is None else volume.first * volume.request_tokens
    yield _thumb("tokens a month", THUMB_TOKENS, meets)
    yield _thumb("requests a day", THUMB_REQUESTS, None if volume.first is None else volume.first / _DAYS_A_MONTH)


def _thumb(unit: str, ends: tuple[float, float], meets: float | None) -> Decision:
    low, high = ends
    question = f"Below {large(low)} {unit} an API, above {large(high)} own devices?"
    if meets is None:
        return Decision(question, "This rule is wrong here", "own devices cost more at any volume.")
    told = f"the costs meet at {large(meets)} {unit}"
    if meets > high:
        return Decision(question, "This rule is wrong here", f"{told}, {meets / high:,.1f} times its upper end.")
    if meets < low:
        return Decision(question, "This rule is wrong here", f"{told}, {meets / low:.2g} of its lower end.")
    return Decision(question, "This rule holds here", f"{told}.")


def _mixed(volume: Volume) -> Iterator[Decision]:
    if volume.first is None:
        return
    yield Decision(
        "A further replica, or an API for the rest?",
        f"A replica from {volume.least_part:.0%} of its requests on",
        f"it costs ${volume.replica_month:,.0f} a month and serves {volume.replica_requests:,.0f} requests. For fewer "
        f"than {volume.least_part * volume.replica_requests:,.0f} of them, as in peaks, an API costs less.",
    )


def _batches(facts: Facts) -> Iterator[Decision]:
    """Against the price of an API's batches, where it has one."""
    volume, replica, api = facts.volume, facts.replica, facts.api
    if volume is None or replica is None or api is None or not 0 < api.batch_discount < 1:
        return
    request = volume.api_request * (1 - api.batch_discount)
    told = f"{api.model} costs {api.batch_discount:.0%} less in batches, {small(request)} a request."
    cheaper = volume_of(replica, volume.operations_month, request, volume.request_tokens)
    answer = "The API's batches, at any volume"
    if cheaper.first is not None:
        answer = f"The API's batches below {_volume(cheaper, cheaper.first)}"
    yield Decision("And where answers may wait?", answer, told)


def _reserved(facts: Facts) -> Iterator[Decision]:
    """On a lease of three years, or by the hour."""
    price, reserved = facts.device_price, facts.reserved_hour
    if price is None or price.kind != "on-demand" or reserved is None or not facts.device_hour:
        return
    part = reserved / facts.device_hour
    question = "By the hour or reserved for three years?"
    told = f"${reserved:.2f} an hour for all hours against ${facts.device_hour:.2f} for those that are used"
    if part >= 1:
        yield Decision(question, "By the hour", f"{told}.")
    elif facts.requests_a_month is not None:
        yield Decision(question, "Reserved", f"{told}; a steady rate uses all hours (--price reserved).")
    else:
        yield Decision(question, f"Reserved, where devices are used more than {part:.0%} of the hours", f"{told}.")


def _buying(owned: Owning) -> Decision:
    question = "Rent or buy?"
    months = 12 * owned.purchase.years
    costs = f"${owned.own_month:,.0f} a month for an owned device, ${owned.rent_month:,.0f} for a rented one"
    if owned.break_even_months is None:
        return Decision(question, "Rent", f"running an owned device costs more than renting one: {costs}.")
    told = f"the rent saved has paid for it after {owned.break_even_months:.1f} months"
    if not owned.pays:
        return Decision(question, "Rent", f"{told}, and it is written off after {months:g}: {costs}.")
    hours = f"For devices that are used less than {owned.least_hours:.0%} of the hours, rent by the hour."
    return Decision(question, "Buy", f"{told} of {months:g}: {costs}. {hours}")


def _volume(volume: Volume, requests: float) -> str:
    """A number of requests a month, and their tokens."""
    return f"{requests:,.0f} requests a month ({large(requests * volume.request_tokens)} tokens)"


def large(number: float) -> str:
    """A number in words where it is large: 25,000, 1.2 million, 30 billion."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:,.3g} {word}"
    return f"{number:,.0f}"


def small(dollars: float) -> str:
    """Dollars with three digits that count, and never fewer than cents."""
    digits = 2 if dollars >= 1 or dollars <= 0 else max(2, 2 - floor(log10(dollars)))
    return f"${dollars:,.{digits}f}"
