"""Prices that the operator leaves to a list: of providers' models, and of own ones that cost as much as these."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches

from msgspec.structs import replace

from penstock.core.errors import ConfigurationError
from penstock.gateway.options import FleetOptions
from penstock.metering.prices import Price
from penstock.planning.prices import ApiPrice, PriceList
from penstock.providers.options import ProviderModel, ProviderOptions

_WRITE = "write input and output, what a million tokens cost"


@dataclass
class ListedPrices:
    """A list, which is read where a price is left to it.

    Args:
        read: the list; None where there is none.

    Attributes:
        taken: what was taken from it, in a sentence each.
    """

    read: Callable[[], PriceList | None]
    taken: list[str] = field(default_factory=list)

    def fill(self, fleet: FleetOptions) -> FleetOptions:
        """The same with all prices. Raises ConfigurationError where the list does not have one."""
        providers = tuple(self._provider(each) for each in fleet.provider)
        like = tuple(self._price(each.model, each.like, f"price_like of {each.model}") for each in fleet.price_like)
        return replace(fleet, provider=providers, price=(*fleet.price, *like), price_like=())

    def _provider(self, provider: ProviderOptions) -> ProviderOptions:
        return replace(provider, model=tuple(self._model(provider, each) for each in provider.model))

    def _model(self, provider: ProviderOptions, model: ProviderModel) -> ProviderModel:
        if not model.leaves_price:
            return model
        price = self._price(model.model, model.at or model.model, f"The provider {provider.name}")
        return replace(model, input=price.input, cached=price.cached, output=price.output)

    def _price(self, model: str, name: str, whose: str) -> Price:
        listed = self._find(name, whose)
        price = Price(
            model=model,
            input=_exact(listed.input),
            output=_exact(listed.output),
            cached=None if listed.cached is None else _exact(listed.cached),
        )
        shown = f"input {price.input}, " + ("" if price.cached is None else f"cached {price.cached}, ")
        told = f"{whose}: a million tokens of {model} cost {shown}output {price.output}, as {name} in {listed.source}"
        self.taken.append(told + ("; more for long prompts is not counted" if listed.has_steps else ""))
        return price

    def _find(self, name: str, whose: str) -> ApiPrice:
        prices = self.read()
        if prices is None:
            raise ConfigurationError(
                f"{whose} has no price for {name!r}: {_WRITE}, or install the list of LiteLLM: "
                "pip install 'penstock[litellm]'."
            )
        names = {each.model: each for each in prices.models}
        if name in names:
            return names[name]
        near = get_close_matches(name, names, n=3, cutoff=0.6)
        hint = f" Near it are {', '.join(near)}." if near else ""
        raise ConfigurationError(f"{whose} has no price for {name!r}, nor has {prices.called}: {_WRITE}.{hint}")


def _exact(dollars: float) -> Decimal:
    """The decimal number that a list has: the shortest one that is this binary fraction."""
    return Decimal(repr(dollars)).normalize() + Decimal(0)
