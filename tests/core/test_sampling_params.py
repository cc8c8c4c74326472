"""Parameters are valid from the moment they exist."""

import math

import msgspec
import pytest

from penstock.core.errors import InvalidParameter, ModelFileError
from penstock.core.sampling import SamplingDefaults, SamplingParams

REFUSED = {
    "n": [0, -1, 129, 1_000_000, True, 1.5],
    "temperature": [-0.1, math.nan, math.inf, 101.0, 10**400, -(10**400), "hot"],
    "top_k": [-2, 1.5, 2**31],
    "top_p": [0.0, -0.5, 1.01, math.nan],
    "min_p": [-0.1, 1.1, math.nan],
    "repetition_penalty": [0.0, 1e-60, -1.0, math.nan, math.inf],
    "presence_penalty": [-2.1, 2.1, math.nan],
    "frequency_penalty": [-2.1, 2.1, math.nan],
    "seed": [1.5, 2**64, -(2**63) - 1],
    "max_tokens": [0, -1, 1.5],
    "min_tokens": [-1, 1.5],
    "logprobs": [-1, 21, True],
    "prompt_logprobs": [-1, 21, True, 1.5],
    "stop": [[""], ["x"] * 17, [5], ["x" * 1025], ["\ud800"], 5, True, {"a": 1}],
    "stop_token_ids": [[-1], [2**31], list(range(1025)), ["a"], 5, True, "12"],
    "kept_special_tokens": [[-1], list(range(1025)), 5, "12"],
    "logit_bias": [{1: 101.0}, {1: math.nan}, {-1: 0.0}, dict.fromkeys(range(1025), 0.0), [1], 5, "a"],
    "allowed_token_ids": [[], [-1], [2**31], [True], ["a"], 5, "12", {1: 2}],
    "bad_words": ["word", [""], [5], ["x" * 1025], ["x"] * 1025, ["\ud800"], 5],
    "bad_words_ids": [[[]], [[-1]], [[2**31]], [["a"]], [5], 5, [[1, True]], None],
    "ignore_eos": [1, 0, "no", None],
    "include_stop_str_in_output": [1, "yes", None],
    "skip_special_tokens": [0, "yes", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_a_value_out_of_bounds_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    "params",
    [
        {"n": 128, "temperature": 100.0, "top_k": -1, "top_p": 1.0, "min_p": 1.0},
        {"repetition_penalty": 100.0, "presence_penalty": -2.0, "frequency_penalty": 2},
        {"seed": -(2**63), "max_tokens": 1, "min_tokens": 1, "logprobs": 20},
        {"seed": 2**64 - 1, "logprobs": 0, "logit_bias": {5: -100}},
        {"prompt_logprobs": 20, "max_tokens": 0},
        {"allowed_token_ids": (0, 2**31 - 1), "bad_words": ("a", " "), "bad_words_ids": ((5,), (6, 7))},
    ],
)
def test_bounds_are_inclusive(params: dict[str, object]) -> None:
    chosen = SamplingParams(**params)
    assert all(getattr(chosen, name) == value for name, value in params.items())


def test_min_tokens_must_not_exceed_max_tokens() -> None:
    with pytest.raises(InvalidParameter, match="min_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_nothing_is_generated_only_where_the_prompt_is_scored() -> None:
    with pytest.raises(InvalidParameter, match="max_tokens: 0 is accepted only where"):
        SamplingParams(max_tokens=0, logprobs=1)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_parameters_cross_the_wire() -> None:
    params = SamplingParams(n=2, stop=("a",), logit_bias={5: -1.5}, seed=2**64 - 1, logprobs=3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_what_is_given_wins_over_what_the_model_recommends() -> None:
    recommended = SamplingDefaults.from_generation_config({"temperature": 0.6, "top_p": 0.9, "do_sample": True})
    params = recommended.params(temperature=0.0, seed=None, max_tokens=5)
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.0, 0.9, 5, None)
    assert recommended.params(temperature=None).temperature == 0.6
    assert SamplingDefaults().params() == SamplingParams()
    with pytest.raises(ModelFileError, match="generation_config.json"):
        SamplingDefaults.from_generation_config({"temperature": -1})
    with pytest.raises(InvalidParameter):
        recommended.params(max_tokens=0)
