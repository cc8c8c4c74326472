"""Prices that are left to a list: which are taken, and what is said where there is none."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.plan_prices import installed_prices
from penstock.cli.price_files import litellm_prices
from penstock.core.errors import ConfigurationError
from penstock.gateway.listed import ListedPrices
from penstock.gateway.options import FleetOptions, PriceLike, fleet_of
from penstock.planning.prices import PriceList

FILE = """
{
  "gpt-5-mini": {
    "input_cost_per_token": 2.5e-07, "cache_read_input_token_cost": 2.5e-08, "output_cost_per_token": 2e-06
  },
  "gemini/pro": {
    "input_cost_per_token": 2e-06, "output_cost_per_token": 1.2e-05, "input_cost_per_token_above_200k_tokens": 4e-06
  }
}
"""
TOML = """
[[provider]]
name = "openai"
api = "openai"
key_variable = "OPENAI_API_KEY"
[[provider.model]]
model = "haiku"
at = "{at}"
{prices}

[[price_like]]
model = "large"
like = "gemini/pro"
"""


def listed() -> PriceList:
    return litellm_prices(FILE, "litellm 1.0")


def fleet(folder: Path, prices: ListedPrices, at: str = "gpt-5-mini", given: str = "") -> FleetOptions:
    path = folder / "fleet.toml"
    path.write_text(TOML.format(at=at, prices=given))
    return fleet_of(path, (), None, fill=prices.fill)


def test_what_is_left_out_is_taken_and_told(tmp_path: Path) -> None:
    prices = ListedPrices(listed)
    made = fleet(tmp_path, prices)
    mini = made.provider[0].model[0].price
    assert (mini.model, mini.input, mini.cached, mini.output) == (
        "haiku",
        Decimal("0.25"),
        Decimal("0.025"),
        Decimal(2),
    )
    [large] = made.price
    assert (large.model, large.input, large.cached, large.output) == ("large", Decimal(2), None, Decimal(12))
    first, second = prices.taken
    assert first == (
        "The provider openai: a million tokens of haiku cost input 0.25, cached 0.025, output 2, as gpt-5-mini in "
        "litellm 1.0"
    )
    assert "gemini/pro in litellm 1.0; more for long prompts is not counted" in second


def test_what_is_written_counts(tmp_path: Path) -> None:
    prices = ListedPrices(listed)
    price = fleet(tmp_path, prices, given="input = 3\noutput = 4").provider[0].model[0].price
    assert (price.input, price.cached, price.output) == (3, None, 4) and len(prices.taken) == 1


@pytest.mark.parametrize("given", ["input = 3", "output = 3", "cached = 3"])
def test_half_a_price_is_none(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigurationError, match="price of haiku is not whole; write input and output"):
        fleet(tmp_path, ListedPrices(listed), given=given)


def test_a_model_that_the_list_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        fleet(tmp_path, ListedPrices(listed), at="gpt-5-mino")
    assert caught.value.message == (
        "The provider openai has no price for 'gpt-5-mino', nor has litellm 1.0: write input and output, what a "
        "million tokens cost. Near it are gpt-5-mini."
    )


def test_without_a_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"write input and output.*or install.*penstock\[litellm\]"):
        fleet(tmp_path, ListedPrices(lambda: None))


def test_options_whose_prices_were_not_looked_up_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(TOML.format(at="gpt-5-mini", prices="input = 1\noutput = 1"))
    with pytest.raises(ConfigurationError, match="price_like needs a list"):
        fleet_of(path, (), None)


@given(st.integers(0, 10**9))
def test_prices_are_exact(millionths: int) -> None:
    """Whatever a list has, down to a millionth for a million tokens, is taken to the last digit."""
    token = Decimal(millionths).scaleb(-12)
    entry = f'{{"m": {{"input_cost_per_token": {token:E}, "output_cost_per_token": {token:E}}}}}'
    prices = ListedPrices(lambda: litellm_prices(entry, "list"))
    [price] = prices.fill(FleetOptions(price_like=(PriceLike(model="own", like="m"),))).price
    assert price.check().input == Decimal(millionths).scaleb(-6)


def test_the_installed_list_has_prices_that_can_be_charged() -> None:
    prices = installed_prices()
    if prices is None:
        pytest.skip("LiteLLM is not installed")
    assert len(prices.models) > 1000 and any(each.has_steps for each in prices.models)
    for each in prices.models:
        like = FleetOptions(price_like=(PriceLike(model="own", like=each.model),))
        [price] = ListedPrices(lambda: PriceList("list", models=(each,))).fill(like).price  # noqa: B023
        price.check()
