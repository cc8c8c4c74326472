"""What tokens cost on one's own devices, and from which volume that is less than an API's price."""

import msgspec

from penstock.core.errors import ConfigurationError

HOURS_A_MONTH = 730.0
_MILLION = 1e6


class ApiPrice(msgspec.Struct, frozen=True):
    """Dollars a million tokens of an API; cached input tokens are a part of the others."""

    input: float
    output: float
    cached: float | None = None

    def month(self, requests: float, input_tokens: float, output_tokens: float, cached_tokens: float = 0.0) -> float:
        """Dollars for a number of requests that are alike."""
        cached = self.cached if self.cached is not None else self.input
        each = (input_tokens - cached_tokens) * self.input + cached_tokens * cached + output_tokens * self.output
        return requests * each / _MILLION


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


def per_million(device_hour: float, devices: float, tokens_per_second: float) -> float:
    """Dollars a million tokens of devices that yield that many a second. Raises ConfigurationError for none."""
    if tokens_per_second <= 0:
        raise ConfigurationError("Tokens that are never made have no price; give a rate above zero.")
    return device_hour * devices / 3600 / tokens_per_second * _MILLION


def break_even(own_month: float, api_request: float, requests_per_second: float) -> BreakEven:
    """From how many requests a month own devices cost less, which serve that number a second at most."""
    if api_request <= 0:
        raise ConfigurationError("An API that costs nothing is never dearer; give its price.")
    most = requests_per_second * HOURS_A_MONTH * 3600
    return BreakEven(own_month, api_request, own_month / api_request, most)
