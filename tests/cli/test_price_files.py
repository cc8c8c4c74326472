"""Files of prices that users give."""

import json

import pytest

from penstock.cli.price_files import litellm_prices, read_prices
from penstock.core.errors import ConfigurationError
from penstock.planning.prices import ApiPrice


def test_a_table_of_models_and_devices() -> None:
    text = (
        "model,input,output,cached,batch_discount,deprecated,device,hour,kind,as_of\n"
        "mine,0.5,1.5,0.05,0.4,2027-01-01,,,,2026-10-01\n"
        "other,1,2,,,,,,,\n"
        ",,,,,,h100,2.10,,2026-10-02\n"
        ",,,,,,l4,0.4,reserved,\n"
    )
    prices = read_prices(text, "mine.csv")
    assert prices.find("mine") == ApiPrice(0.5, 1.5, 0.05, "mine", 0.4, "2027-01-01", "2026-10-01", "mine.csv, line 2")
    assert prices.find("other") == ApiPrice(1, 2, None, "other", source="mine.csv, line 3")
    hour = prices.device("H100 SXM", "on-demand")
    assert hour is not None and (hour.low, hour.dollars, hour.high, hour.as_of) == (2.1, 2.1, 2.1, "2026-10-02")
    assert prices.device("L4", "reserved") is not None and prices.device("L4", "own") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "f.csv has no rows with the columns model,input,output"),
        ("model,input\nx,1\n", "has no rows with the columns"),
        ("model,input,output\n", "has no rows"),
        ("model,input,output,colour\nx,1,2,red\n", "unknown columns colour; known are model, input"),
        ("model,input,output\nx,one,2\n", "f.csv, line 2: input 'one' is no number of dollars"),
        ("model,input,output\nx,-1,2\n", "input '-1' is no number"),
        ("model,input,output\nx,nan,2\n", "input 'nan' is no number"),
        ("model,input,output\nx,1\n", "output '' is no number"),
        ("model,input,output\n,1,2\n", "line 2 names neither a model nor a device"),
        ("model,input,output,batch_discount\nx,1,2,3\n", "batch_discount 3 is no part"),
        ("model,input,output,as_of\nx,1,2,yesterday\n", "as_of 'yesterday' is no date; write 2026-11-26"),
        ("device,hour\nh1000,1\n", "f.csv, line 2: device 'h1000' is no device that is known here"),
        ("device,hour,kind\nh100,1,spot\n", "kind 'spot' is none of on-demand, reserved, own"),
        ("{", "f.csv is no JSON object of models"),
        ("{}", "has no model with input_cost_per_token"),
        ('{"a": {"input_cost_per_token": "free"}}', "the entry of 'a' cannot be read"),
        ('{"a": {"input_cost_per_token": -1, "output_cost_per_token": 1}}', "'a' has a price below zero"),
    ],
)
def test_what_is_wrong_in_a_file_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_prices(text, "f.csv")
    assert told in raised.value.message


def test_the_form_of_litellm() -> None:
    entries = {
        "sample_spec": {"input_cost_per_token": "in words"},
        "image-1": {"mode": "image_generation"},
        "chat-1": {
            "input_cost_per_token": 2.5e-07,
            "output_cost_per_token": 2e-06,
            "cache_read_input_token_cost": 2.5e-08,
            "input_cost_per_token_batches": 1.25e-07,
            "deprecation_date": "2026-12-11",
            "supports_vision": True,
        },
        "chat-2": {"input_cost_per_token": 0, "output_cost_per_token": 0, "deprecation_date": "soon"},
    }
    prices = litellm_prices(json.dumps(entries), "litellm 1.0")
    assert prices.models == (
        ApiPrice(0.25, 2.0, 0.025, "chat-1", 0.5, "2026-12-11", source="litellm 1.0"),
        ApiPrice(0.0, 0.0, None, "chat-2", source="litellm 1.0"),
    )
