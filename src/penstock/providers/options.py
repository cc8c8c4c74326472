"""What the operator says of a provider."""

import re
import urllib.parse
from decimal import Decimal
from typing import Literal

import msgspec

from penstock.access.tenants import OWN, Bounds
from penstock.core.checks import LONGEST_SECONDS
from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.metering.prices import Price
from penstock.tenancy.settings import Settings

# The name of what is asked through that library.
LITELLM = "litellm"
ROOTS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VISIBLE = re.compile(r"[!-~]+")
_PATHS = ("/chat/completions", "/messages")
_OPENAI = "api.openai.com"
_MOST_OUTPUT = 10**7
_BOUNDS = ("requests_per_minute", "tokens_per_minute", "budget_per_day", "budget_per_month")


class ProviderModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a provider.

    Attributes:
        model: what clients call it; where own machines have one of that name, it answers in their place.
        at: what the provider calls it; None: the same.
        input, cached, output: what a million tokens of it cost; `cached` as `input` without. None of them: a list of
            prices says it, before this is checked.
    """

    model: str
    input: Decimal | None = None
    output: Decimal | None = None
    cached: Decimal | None = None
    at: str | None = None

    @property
    def leaves_price(self) -> bool:
        """Whether the operator says nothing of what it costs."""
        return self.input is None and self.output is None and self.cached is None

    @property
    def price(self) -> Price:
        """As `metering` has it, under the name that clients use. Raises ConfigurationError where it is not whole."""
        if self.input is None or self.output is None:
            raise ConfigurationError(
                f"The price of {self.model} is not whole; write input and output, what a million tokens cost, or none "
                "of input, cached and output."
            )
        return Price(model=self.model, input=self.input, output=self.output, cached=self.cached)


class ProviderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider.

    Attributes:
        name: that accounts and answers have.
        api: which it speaks; "litellm": what LiteLLM's library makes of a model's name.
        key_variable: of the environment, with the key that it wants; None: LiteLLM's library finds what it needs there.
        url: that paths of its API are behind; None: that of the API's maker.
        model: those that it answers with.
        privacy: what tenants call it who let only some see their requests, such as a region or a contract.
        after: seconds that a request would have to wait, or has waited, for own machines before it goes out.
        most_requests: at a time.
        requests_per_minute, tokens_per_minute: in any 60 seconds.
        budget_per_day, budget_per_month: money, in UTC, in the currency of prices.
        max_output_tokens: of an answer where the request has no bound.
        max_tokens_field: of OpenAI's API: the name of that bound; None: max_completion_tokens at OpenAI, and max_tokens
            elsewhere, which all others know.
        stream_usage: of OpenAI's API: whether stream_options.include_usage is sent, which some refuse.
    """

    name: str
    api: Literal["openai", "anthropic", "litellm"]
    model: tuple[ProviderModel, ...]
    key_variable: str | None = None
    url: str | None = None
    privacy: str = "provider"
    after: float = 1.0
    most_requests: int = 100
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_per_day: Decimal | None = None
    budget_per_month: Decimal | None = None
    max_output_tokens: int = 8192
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    stream_usage: bool = True

    def check(self) -> "ProviderOptions":
        """Itself. Raises ConfigurationError for what cannot be."""
        of = f"The provider {self.name}"
        for what, name in (("name", self.name), ("privacy", self.privacy)):
            if not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"The {what} of a provider is {name[:80]!r}; it can have small letters, digits, and _ . - between."
                )
        if self.privacy == OWN:
            raise ConfigurationError(
                f"The privacy of the provider {self.name} is {OWN}, which is that of own machines."
            )
        if self.key_variable is None and self.api != LITELLM:
            raise ConfigurationError(f"{of} has no key_variable; name that of the environment with the key it wants.")
        if self.key_variable is not None and not _VARIABLE.fullmatch(self.key_variable):
            raise ConfigurationError(
                f"key_variable of the provider {self.name} is no name of a variable of the environment; put the key "
                "into one, such as PROVIDER_KEY, and name that."
            )
        if not self.model:
            raise ConfigurationError(f"{of} has no model; name one in [[provider.model]], with its price.")
        names = [each.model for each in self.model]
        if len(set(names)) < len(names) or not all(names):
            raise ConfigurationError(f"{of} has two models of one name, or one without; name each once.")
        for each in self.model:
            each.price.check()
            if each.at is not None and not each.at.strip():
                raise ConfigurationError(f"{of}: at of the model {each.model!r} is empty; leave it out, or name one.")
        if not 0 <= self.after <= LONGEST_SECONDS:
            raise ConfigurationError(f"{of}: after is {self.after:g}; it must be 0 to {LONGEST_SECONDS:.0f} seconds.")
        if self.most_requests < 1 or not 1 <= self.max_output_tokens <= _MOST_OUTPUT:
            raise ConfigurationError(
                f"{of}: most_requests must be 1 or more, and max_output_tokens 1 to {_MOST_OUTPUT}."
            )
        if self.api != "openai" and (self.max_tokens_field is not None or not self.stream_usage):
            raise ConfigurationError(f'{of}: max_tokens_field and stream_usage are for api = "openai"; leave them out.')
        self._check_url()
        self._settings()
        return self

    @property
    def bound_field(self) -> str:
        """The field of the most tokens of an answer, of OpenAI's API."""
        if self.max_tokens_field is not None:
            return self.max_tokens_field
        host = urllib.parse.urlsplit(self.url or ROOTS.get(self.api, "")).hostname
        # LiteLLM's library knows what each provider calls it.
        return "max_completion_tokens" if host == _OPENAI or self.api == LITELLM else "max_tokens"

    def _check_url(self) -> None:
        if self.url is None:
            return
        try:
            parts = urllib.parse.urlsplit(self.url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and _VISIBLE.fullmatch(self.url)
        except ValueError:
            good = False
        if not good:
            raise ConfigurationError(
                f"The url {self.url[:200]!r} of the provider {self.name} is no URL of a provider; write one such as "
                f"{ROOTS[self.api]}."
            )
        for path in _PATHS:
            if self.url.rstrip("/").endswith(path):
                raise ConfigurationError(
                    f"The url of the provider {self.name} ends in {path}, which is put behind it; leave that out."
                )

    def _settings(self) -> Settings:
        try:
            return Settings(**{name: getattr(self, name) for name in _BOUNDS}).check()
        except InvalidParameter as error:
            raise ConfigurationError(f"The provider {self.name}: {error.message}") from None

    @property
    def bounds(self) -> Bounds:
        """What may be asked of it in a time."""
        return self._settings().bounds
