"""Rules give requests other models than they name."""

import json
from typing import Any

import pytest

from gateway.conftest import Start
from gateway.test_told import line, telling
from penstock.core.errors import ConfigurationError
from penstock.gateway.asked import parse_asked
from penstock.gateway.options import FleetOptions, ReplicaOptions
from penstock.gateway.rules import Rule, with_model
from support.scripted_http import whole_answer
from support.waiting import until

RULES = (
    Rule(model="auto", to="small", most_prompt=100, most_output=50, without=("tools", "response_format")),
    Rule(model="auto", to="large"),
    Rule(model="gpt", to="large", most_prompt=5),
)
CHAT = [{"role": "user", "content": "Is it raining? ünï"}]


@pytest.mark.parametrize(
    ("fields", "there", "model"),
    [
        ({"max_tokens": 50}, ("small", "large"), "small"),
        ({"max_completion_tokens": 20, "tools": [], "response_format": None}, ("small", "large"), "small"),
        ({"max_tokens": 51}, ("small", "large"), "large"),
        ({}, ("small", "large"), "large"),
        ({"max_tokens": "many"}, ("small", "large"), "large"),
        ({"max_tokens": 5, "tools": [{"type": "function"}]}, ("small", "large"), "large"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": "rain " * 200}]}, ("small", "large"), "large"),
        # Where the first is not there, the next one that applies; where none is, the first.
        ({"max_tokens": 5}, ("large",), "large"),
        ({"max_tokens": 5}, (), "small"),
        ({"model": "gpt", "messages": [{"role": "user", "content": "rain " * 200}]}, ("large",), "gpt"),
        ({"model": "small"}, ("small", "large"), "small"),
    ],
)
def test_the_first_that_applies_and_is_there(fields: dict[str, Any], there: tuple[str, ...], model: str) -> None:
    given = {"model": "auto", "messages": CHAT, "temperature": 0.5, **fields}
    body = json.dumps(given, ensure_ascii=False).encode()
    asked, passed = with_model(RULES, there, parse_asked(body), body)
    assert asked.model == model and json.loads(passed) == {**given, "model": model}
    if model == given["model"]:
        assert passed is body


def test_through_a_gateway(gateway: Start) -> None:
    started = gateway(whole_answer, rule=(Rule(model="auto", to="scripted", without=("logprobs",)),))
    assert started.complete(model="auto", max_tokens=2).status_code == 200
    assert started.servers[0].asked[0].body["model"] == "scripted"
    assert [model["id"] for model in started.http.get("/v1/models").json()["data"]] == ["scripted", "auto"]
    assert started.http.get("/v1/models/auto").json()["id"] == "auto"
    refused = started.complete(model="auto", max_tokens=2, logprobs=1)
    assert refused.status_code == 404 and "No replica has the model 'auto'" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": (Rule(model="a", to="a"),)}, "they must be two models' names"),
        ({"rule": (Rule(model="a", to="b", most_prompt=0),)}, "most_prompt of the rule for a is 0"),
        ({"replica": (ReplicaOptions(url="http://a", handicap=-1.0),)}, "handicap of http://a is -1"),
        (
            {"replica": (ReplicaOptions(url="http://a", handicap=1.0),), "policy": "prefix"},
            "only the policy estimated looks at, not prefix",
        ),
    ],
)
def test_what_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        FleetOptions(**{"replica": (ReplicaOptions(url="http://a"),), **options}).check()


def test_a_name_that_one_replica_alone_has_leads_there(gateway: Start) -> None:
    lines = [line(models=["m", "mine"], most_running=1), line(models=["m"], most_running=1)]
    started = gateway(whole_answer, whole_answer, told=[telling(each) for each in lines], policy="estimated")
    until(lambda: all(each.models for each in started.replicas.all))
    for _ in range(4):
        assert started.complete(model="mine", max_tokens=2).status_code == 200
    assert started.asked == [4, 0]
