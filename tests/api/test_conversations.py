"""What has a request kept as a part of a conversation, and what is told where nothing is kept."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from penstock.api.conversations import CONVERSATION_SECONDS
from penstock.server.app import create_app
from support.http_server import running
from support.scripted_engine import ScriptedEngine

HOUR, DAY = CONVERSATION_SECONDS, 86400.0
PROMPT = {"prompt": [1, 2, 3], "max_tokens": 2}


class Asked:
    """Asks a server that keeps conversations, or one that does not."""

    def __init__(self, keeps: bool, stack: ExitStack) -> None:
        self.engine = ScriptedEngine(None, [5, 6], keeps_conversations=keeps)
        self.http = stack.enter_context(
            httpx.Client(base_url=stack.enter_context(running(create_app(self.engine, None))))
        )

    def complete(self, headers: dict[str, str] | None = None, **fields: Any) -> tuple[float, str]:
        """For how many seconds it was kept, and which of its fields had no effect."""
        answer = self.http.post("/v1/completions", json={**PROMPT, **fields}, headers=headers)
        assert answer.status_code == 200, answer.text
        return self.engine.calls[-1].keep_whole, answer.headers.get("x-penstock-ignored", "")


@pytest.fixture
def asked() -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda keeps: Asked(keeps, stack)


@pytest.mark.parametrize(
    ("fields", "headers", "seconds"),
    [
        ({}, {}, 0.0),
        ({"prompt_cache_key": "a"}, {}, HOUR),
        ({}, {"x-session-id": "a"}, HOUR),
        ({"prompt_cache_retention": "in_memory"}, {}, 0.0),
        ({"prompt_cache_retention": "24h"}, {}, DAY),
        ({"prompt_cache_retention": "in_memory", "prompt_cache_key": "a"}, {}, HOUR),
        ({"prompt_cache_retention": "24h", "prompt_cache_key": "a"}, {"x-session-id": "a"}, DAY),
    ],
)
def test_a_conversation_is_kept(asked: Any, fields: dict[str, str], headers: dict[str, str], seconds: float) -> None:
    assert asked(True).complete(headers, **fields) == (seconds, "")
    names = [name for name, value in fields.items() if value != "in_memory"]
    assert asked(False).complete(headers, **fields) == (0.0, ", ".join(sorted(names)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_cache_retention": "1h"}, "'1h' is not one of in_memory, 24h."),
        ({"prompt_cache_key": "x" * 513}, "must have at most 512 characters."),
    ],
)
def test_what_cannot_be_is_refused(asked: Any, fields: dict[str, str], message: str) -> None:
    answer = asked(True).http.post("/v1/completions", json={**PROMPT, **fields})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]
