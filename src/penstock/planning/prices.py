"""List prices: of devices an hour, and of tokens at APIs. Tables with dates; what is old or at its end is told.

A date is a text in the form of ISO 8601, since planning has no clock: who asks says which day it is.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError

_MILLION = 1e6
# Prices that were read longer ago than this are told to be old.
OLD_DAYS = 90
Kind = Literal["on-demand", "reserved", "own"]
KINDS: tuple[Kind, ...] = ("on-demand", "reserved", "own")


class DevicePrice(msgspec.Struct, frozen=True):
    """Dollars an hour for one device.

    Attributes:
        device: its name in the table of devices.
        kind: "on-demand" by the hour, "reserved" for three years, "own": everything that an owner pays, over the
            hours of its life.
        dollars: the middle of what was read, between `low` and `high`.
        as_of: the day that the source is of, the first of a month where it names no day.
        source: where it was read.
    """

    device: str
    kind: str
    low: float
    dollars: float
    high: float
    as_of: str
    source: str


class ApiPrice(msgspec.Struct, frozen=True):
    """Dollars a million tokens of an API; cached input tokens are a part of the others.

    Attributes:
        cached: None where cached tokens cost what others do.
        model: its name at the API; empty where only prices were given.
        batch_discount: part of the price that batches do not pay; 0 where none is known.
        deprecated: the day from which the model is not served; empty where none is known.
        as_of: the day that the source is of; empty where that is not known.
        source: where it was read; empty where it was given.
        has_steps: whether long prompts cost more, which is left out.
    """

    input: float
    output: float
    cached: float | None = None
    model: str = ""
    batch_discount: float = 0.0
    deprecated: str = ""
    as_of: str = ""
    source: str = ""
    has_steps: bool = False

    def month(self, requests: float, input_tokens: float, output_tokens: float, cached_tokens: float = 0.0) -> float:
        """Dollars for a number of requests that are alike."""
        cached = self.cached if self.cached is not None else self.input
        each = (input_tokens - cached_tokens) * self.input + cached_tokens * cached + output_tokens * self.output
        return requests * each / _MILLION


class PriceList(msgspec.Struct, frozen=True):
    """Prices of devices and of APIs' models, and what they are called in sentences."""

    called: str
    devices: tuple[DevicePrice, ...] = ()
    models: tuple[ApiPrice, ...] = ()

    def device(self, name: str, kind: Kind) -> DevicePrice | None:
        """The price of a device of the table; None where the list has none of that kind."""
        return next((price for price in self.devices if price.device == name and price.kind == kind), None)

    def find(self, name: str) -> ApiPrice | None:
        """The price of a model, by its whole name or by what is behind the host's. None where it is not in the list.

        Raises ConfigurationError where several hosts serve a model of that name.
        """
        wanted = name.strip().lower()
        exact = [price for price in self.models if price.model.lower() == wanted]
        found = exact or [price for price in self.models if _short(price.model) == wanted]
        if len(found) > 1:
            found = sorted(found, key=lambda each: each.input)
            offers = "; ".join(f"{price.model} at {price.input:g},{price.output:g}" for price in found)
            raise ConfigurationError(f"--api-price {name!r} is served by several hosts, so name one: {offers}.")
        return found[0] if found else None


def model_price(lists: Sequence[PriceList], name: str) -> ApiPrice:
    """The price of a model in the first list that has it. Raises ConfigurationError with the nearest names."""
    for prices in lists:
        found = prices.find(name)
        if found is not None:
            return found
    names = {key: price.model for prices in reversed(lists) for price in prices.models for key in _keys(price.model)}
    near = list(dict.fromkeys(names[key] for key in get_close_matches(name.strip().lower(), names, n=5, cutoff=0.5)))
    hint = f" Near it are {', '.join(near[:3])}." if near else ""
    called = " or ".join(prices.called for prices in lists)
    raise ConfigurationError(
        f"--api-price {name!r} is no model in {called}, nor dollars a million tokens as in 0.5,1.5.{hint} "
        "`penstock plan --list` shows the models whose prices come with Penstock."
    )


def aged(what: str, as_of: str, days: int) -> list[str]:
    """That a price of a day that is so long past is old; nothing where it is not."""
    if days <= OLD_DAYS:
        return []
    return [f"The price of {what} is of {as_of}, {days:,} days ago, and prices move; give today's."]


def ended(price: ApiPrice, today: str) -> list[str]:
    """That a model is not served any more, or will end; nothing where that is not known."""
    if not price.deprecated:
        return []
    if price.deprecated <= today:
        return [f"{price.model} is not served since {price.deprecated} by its price list; compare with another model."]
    return [f"{price.model} is served until {price.deprecated} by its price list."]


def _short(model: str) -> str:
    return model.rpartition("/")[2].lower()


def _keys(model: str) -> tuple[str, str]:
    return model.lower(), _short(model)
