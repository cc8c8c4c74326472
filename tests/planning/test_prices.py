"""Lists of prices, and files of them."""

import re

import pytest

from penstock.core.errors import ConfigurationError
from penstock.planning.hardware import DEVICES
from penstock.planning.listed import LISTED
from penstock.planning.prices import KINDS, OLD_DAYS, ApiPrice, PriceList, aged, ended, model_price

HOSTS = PriceList(
    "a list",
    models=(
        ApiPrice(0.2, 0.6, model="one/maker/Big-70B"),
        ApiPrice(0.1, 0.4, model="two/maker/big-70b"),
        ApiPrice(1.0, 2.0, 0.1, "small-1", batch_discount=0.5, deprecated="2026-12-01", as_of="2026-11-01"),
    ),
)


def test_the_list_is_whole() -> None:
    names = [device.name for device in DEVICES]
    assert len(LISTED.models) >= 60 and len(LISTED.devices) >= 20
    assert len({price.model for price in LISTED.models}) == len(LISTED.models)
    assert len({(price.device, price.kind) for price in LISTED.devices}) == len(LISTED.devices)
    for price in LISTED.devices:
        assert price.device in names and price.kind in KINDS and price.source
        assert 0 < price.low <= price.dollars <= price.high and re.fullmatch(r"20\d\d-\d\d-\d\d", price.as_of)
    for model in LISTED.models:
        assert 0 < model.input <= model.output and (model.cached or 0) <= model.input and 0 <= model.batch_discount < 1
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", model.as_of) and model.source
        assert LISTED.find(model.model) is model


def test_a_model_is_found_by_what_is_behind_its_host() -> None:
    assert HOSTS.find("SMALL-1") is HOSTS.models[2]
    assert HOSTS.find("one/maker/big-70b") is HOSTS.models[0]
    assert HOSTS.find("big") is None
    with pytest.raises(ConfigurationError, match="several hosts, so name one: two/maker/big-70b at 0.1,0.4; one/"):
        HOSTS.find("big-70b")


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    assert model_price([HOSTS, LISTED], "gpt-5-mini").cached == 0.025
    with pytest.raises(ConfigurationError, match="no model in a list, nor dollars.*Near it are small-1"):
        model_price([HOSTS], "smal-1")
    with pytest.raises(ConfigurationError, match=r"as in 0\.5,1\.5\. `penstock plan --list` shows"):
        model_price([HOSTS], "zzzzzzzz")


def test_old_prices_and_ends_are_told() -> None:
    assert aged("it", "2026-01-01", OLD_DAYS) == []
    (note,) = aged("an H100", "2026-01-01", OLD_DAYS + 1)
    assert note.startswith("The price of an H100 is of 2026-01-01, 91 days ago")
    small = HOSTS.models[2]
    assert ended(small, "2026-11-30") == ["small-1 is served until 2026-12-01 by its price list."]
    (note,) = ended(small, "2026-12-01")
    assert note.startswith("small-1 is not served since 2026-12-01")
    assert ended(HOSTS.models[0], "2099-01-01") == []
