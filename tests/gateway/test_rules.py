"""Rules give requests other models than they name."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.conftest import Start
from gateway.test_told import line, telling
from penstock.core.errors import ConfigurationError
from penstock.gateway.asked import parse_asked
from penstock.gateway.judge import last_text
from penstock.gateway.options import FleetOptions, HedgeOptions, ReplicaOptions
from penstock.gateway.rules import Judge, Rule, with_model
from support.scripted_http import Received, Script, Step, answer, whole_answer
from support.waiting import PATIENCE, until

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
    asked, passed = asyncio.run(with_model(RULES, there, parse_asked(body), body, never))
    assert asked.model == model and json.loads(passed) == {**given, "model": model}
    if model == given["model"]:
        assert passed is body


async def never(judge: Judge) -> bool:
    raise AssertionError(f"{judge} was asked")


def test_through_a_gateway(gateway: Start) -> None:
    started = gateway(whole_answer, rule=(Rule(model="auto", to="scripted", without=("logprobs",)),))
    assert started.complete(model="auto", max_tokens=2).status_code == 200
    assert started.servers[0].asked[0].body["model"] == "scripted"
    assert [model["id"] for model in started.http.get("/v1/models").json()["data"]] == ["scripted", "auto"]
    assert started.http.get("/v1/models/auto").json()["id"] == "auto"
    refused = started.complete(model="auto", max_tokens=2, logprobs=1)
    assert refused.status_code == 404 and "No replica has the model 'auto'" in refused.json()["error"]["message"]


def judging(said: str) -> Script:
    """Answers a judge's question, and any other request."""

    def script(request: Received) -> list[Step]:
        if request.body["model"] != "judge":
            return whole_answer(request)
        return answer(json.dumps({"choices": [{"message": {"role": "assistant", "content": said}}]}).encode())

    return script


@pytest.mark.parametrize(
    ("said", "model", "verdict"),
    [("Yes.", "small", "yes"), (" yes", "small", "yes"), ("No", "large", "no"), ("", "large", "no")],
)
def test_a_judge_decides(gateway: Start, said: str, model: str, verdict: str) -> None:
    judge = Judge(model="judge", question="Say yes if this is easy.", fields={"seed": 1}, seconds=PATIENCE)
    rules = (Rule(model="auto", to="small", judge=judge), Rule(model="auto", to="large"))
    told = [telling(line(models=["judge", "small", "large"]))]
    started = gateway(judging(said), told=told, rule=rules)
    until(lambda: started.replicas.all[0].models)
    chat = [{"role": "user", "content": "first"}, {"role": "user", "content": [{"type": "text", "text": "rain?"}]}]
    answered = started.http.post("/v1/chat/completions", json={"model": "auto", "messages": chat, "max_tokens": 2})
    assert answered.status_code == 200
    asked, passed = (each.body for each in started.servers[0].asked)
    assert asked["messages"] == [
        {"role": "system", "content": "Say yes if this is easy."},
        {"role": "user", "content": "rain?"},
    ]
    assert asked["seed"] == 1 and passed["model"] == model
    assert started.dispatch.figures.judged[verdict] == 1
    started.wait_until_empty()


@pytest.mark.parametrize(
    ("judge_says", "seconds", "faults"),
    [
        (lambda _request: [PATIENCE], 0.1, 0),
        (lambda _request: answer(b"{}", 500), PATIENCE, 1),
        (lambda _request: answer(b"{}", 503), PATIENCE, 0),
        (lambda _request: answer(b"{}", 401), PATIENCE, 0),
        (lambda _request: answer(b"no JSON"), PATIENCE, 0),
    ],
)
def test_a_judge_that_says_nothing_does_not_say_yes(
    gateway: Start, judge_says: Script, seconds: float, faults: int
) -> None:
    judge = Judge(model="judge", question="Is it easy?", seconds=seconds)
    rules = (Rule(model="auto", to="small", judge=judge), Rule(model="auto", to="large"))

    def script(request: Received) -> Sequence[Step]:
        return judge_says(request) if request.body["model"] == "judge" else whole_answer(request)

    started = gateway(script, told=[telling(line(models=["judge", "small", "large"]))], rule=rules)
    until(lambda: started.replicas.all[0].models)
    assert started.complete(model="auto", max_tokens=1).status_code == 200
    assert started.servers[0].asked[-1].body["model"] == "large"
    assert started.dispatch.figures.judged["failed"] == 1
    assert started.dispatch.figures.failures[0] == faults
    started.wait_until_empty()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "rain"}, "rain"),
        ({"messages": None, "input": "rain"}, "rain"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "rain"}]}]}, "rain"),
        ({"prompt": ["a", "b"]}, "a b"),
        ({"messages": [{"role": "user", "content": 5}]}, ""),
        ({}, ""),
    ],
)
def test_what_a_user_has_said_last(fields: dict[str, Any], said: str) -> None:
    assert last_text(parse_asked(json.dumps(fields).encode())) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": (Rule(model="a", to="a"),)}, "they must be two models' names"),
        ({"rule": (Rule(model="a", to="b", most_prompt=0),)}, "most_prompt of the rule for a is 0"),
        ({"rule": (Rule(model="a", to="b", judge=Judge(model="a", question="?")),)}, "name another model"),
        ({"rule": (Rule(model="a", to="b", judge=Judge(model="j", question="?", answers=())),)}, "has no answers"),
        ({"rule": (Rule(model="a", to="b", judge=Judge(model="j", question="?", seconds=0)),)}, "has 0 s"),
        ({"hedge": HedgeOptions(part=0.6)}, "hedge.part is 0.6; it must be from 0 to 0.5"),
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
