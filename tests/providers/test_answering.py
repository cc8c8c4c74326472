"""What is counted of an answer."""

import json

import pytest

from penstock.core.usage import Used
from penstock.providers.answering import Answering
from penstock.providers.outgoing import outgoing
from penstock.providers.told import Step
from penstock.text.pieces import Content

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize("streams", [False, True])
def test_a_text_without_usage_is_counted_once(streams: bool) -> None:
    counts: list[str] = []

    def count(text: str) -> int:
        counts.append(text)
        return 5

    asked = outgoing("/v1/chat/completions", json.dumps({**BODY, "stream": streams}).encode(), "m")
    answering = Answering(asked, 1000, count)
    answering.take([Step(0, [Content("one ")]), Step(0, [Content("two")])])
    answering.take([Step(0, finish="stop")])
    assert answering.end()
    assert [answering.used for _ in range(3)] == [Used(1000, 0, 5)] * 3
    assert counts == ["one two"] and answering.is_estimated


def test_the_prompt_is_at_least_what_is_sent() -> None:
    asked = outgoing("/v1/chat/completions", json.dumps({**BODY, "max_tokens": 3}).encode(), "m")
    assert Answering(asked, 1, len).used.prompt == asked.prompt_tokens > 1
