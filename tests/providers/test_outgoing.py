"""What may go out, and what is refused before it does."""

import json
from typing import Any

import pytest

from penstock.core.errors import InvalidParameter
from penstock.providers.outgoing import Outgoing, outgoing

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def asked(**fields: Any) -> Outgoing:
    """A chat with these fields."""
    return outgoing("/v1/chat/completions", json.dumps({**CHAT, **fields}).encode(), "m")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"n": 0}, "n"),
    ],
)
def test_what_own_machines_refuse_does_not_go_out(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        asked(**fields)
    assert refused.value.param == param


def test_ordinary_bounds_go_out() -> None:
    job = asked(max_tokens=5, stop="x", seed=-1, presence_penalty=2, frequency_penalty=-2).job()
    assert (job.params[0].max_tokens, job.params[0].stop, job.params[0].seed) == (5, ("x",), -1)


def test_bounds_of_other_dialects_have_their_names() -> None:
    body = {"model": "m", "input": "Hello", "store": False, "max_output_tokens": -3}
    with pytest.raises(InvalidParameter) as refused:
        outgoing("/v1/responses", json.dumps(body).encode(), "m")
    assert refused.value.param == "max_output_tokens"


def test_the_prompt_is_all_that_is_read() -> None:
    long = "word " * 400
    tool = {"type": "function", "function": {"name": "f", "description": long}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"description": long}}}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": long}]}]}
    for fields in ({"tools": [tool]}, {"response_format": schema}, parts):
        assert 500 <= asked(**fields).prompt_tokens <= 600
    assert asked().prompt_tokens < 50
    body = {"model": "m", "input": "Hello", "instructions": long, "store": False}
    assert 500 <= outgoing("/v1/responses", json.dumps(body).encode(), "m").prompt_tokens <= 600
