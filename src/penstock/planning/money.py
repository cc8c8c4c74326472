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
    """

    own_month: float
    api_request: float
    requests_a_month: float


def per_million(device_hour: float, devices: float, tokens_per_second: float, utilisation: float = 1.0) -> float:
    """Dollars a million tokens, where devices yield that many a second in the part of the time that they have work."""
    if tokens_per_second <= 0 or utilisation <= 0:
        raise ConfigurationError("Tokens that are never made have no price; give a rate and a utilisation above zero.")
    return device_hour * devices / 3600 / (tokens_per_second * utilisation) * _MILLION


def break_even(
    device_hour: float,
    devices: float,
    operations_month: float,
    api: ApiPrice,
    input_tokens: float,
    output_tokens: float,
) -> BreakEven:
    """From how many requests a month devices that are paid by the hour, and those who operate them, cost less."""
    own = device_hour * devices * HOURS_A_MONTH + operations_month
    each = api.month(1, input_tokens, output_tokens)
    if each <= 0:
        raise ConfigurationError("An API that costs nothing is never dearer; give its price.")
    return BreakEven(own, each, own / each)
