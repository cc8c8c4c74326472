"""The room for bodies that are being received."""

import contextlib
import socket
from typing import Any

import httpx
import pytest

from penstock.http.body import BodyRoom
from penstock.http.errors import BodiesFull
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE, until


def test_bodies_share_the_room_beyond_their_first_parts() -> None:
    room = BodyRoom(100_000)
    with room.hold() as first, room.hold() as second:
        first(64 * 1024)
        first(64 * 1024 + 90_000)
        second(64 * 1024 + 10_000)
        with pytest.raises(BodiesFull):
            second(64 * 1024 + 10_001)
        with pytest.raises(BodiesFull), room.hold() as third:
            third(70_000)
        with room.hold() as short:
            short(64 * 1024)
    with room.hold() as other:
        other(64 * 1024 + 100_000)


def test_long_bodies_that_do_not_end_leave_room_for_short_ones(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.body.BodyRoom", lambda: BodyRoom(1_000_000))
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n"
    )
    with running(create_app(ScriptedEngine(tokenizer.table, [5]), tokenizer)) as url, contextlib.ExitStack() as stack:

        def post(size: int) -> httpx.Response:
            return httpx.post(f"{url}/v1/completions", json={"prompt": [5], "metadata": {"a": " " * size}})

        for _ in range(2):
            slow = stack.enter_context(
                socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=PATIENCE)
            )
            slow.sendall(head + b" " * 520_000)
        refused = eventually(lambda: post(200_000))
        assert refused.json()["error"]["code"] == "bodies_full" and refused.headers["retry-after"] == "1"
        assert post(10).status_code == 200
        assert 'penstock_requests_refused_total{reason="bodies_full"} ' in httpx.get(f"{url}/metrics").text
        stack.close()
        # Metadata are never so long.
        eventually(lambda: post(200_000), 400)


def eventually(ask: Any, status: int = 503) -> httpx.Response:
    answers: list[httpx.Response] = []

    def answers_so() -> bool:
        answers.append(ask())
        return answers[-1].status_code == status

    until(answers_so)
    return answers[-1]
