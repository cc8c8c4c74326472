"""Of requests that nothing is wrong with the log has one line a second."""

import logging

import pytest

from penstock.core.errors import EngineUnavailable, InvalidParameter, QueueFull
from penstock.server.refusals import RefusalLog


def test_a_storm_of_refusals_is_no_storm_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.server")
    log = RefusalLog()
    for number in range(30):
        log.refused("chat", "refused", QueueFull("full."), 50.0 + number / 10)
    assert caplog.messages == [
        "chat request refused: 503 full.",
        "chat request refused: 503 full. (and 9 others since the last such line)",
        "chat request refused: 503 full. (and 9 others since the last such line)",
    ]
    caplog.clear()
    log.refused("messages", "failed", EngineUnavailable("dead."), 60.0)
    log.refused("messages", "failed", EngineUnavailable("dead."), 62.0)
    assert caplog.messages == [
        "messages request failed: 503 dead. (and 9 others since the last such line)",
        "messages request failed: 503 dead.",
    ]


def test_what_is_wrong_with_a_request_is_always_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.server")
    log = RefusalLog()
    for _ in range(3):
        log.refused("chat", "rejected", InvalidParameter("n", "is wrong."), 1.0)
    assert caplog.messages == ["chat request rejected: 400 n: is wrong."] * 3
