"""Of requests that nothing is wrong with the log has one line a second."""

import logging
import time

import pytest

from penstock.core.errors import EngineUnavailable, InvalidParameter, PenstockError, QueueFull
from penstock.observability.accounts import Accounts
from penstock.observability.metrics import outcome_of
from penstock.observability.refusals import RefusalLog
from support.scripted_engine import ScriptedEngine


def test_a_storm_of_refusals_is_no_storm_of_lines() -> None:
    log = RefusalLog()
    told = [log.refused(QueueFull("full."), 50.0 + number / 10) for number in range(30)]
    others = " (and 9 others since the last such line)"
    assert [each for each in told if each is not None] == ["", others, others]
    assert log.refused(EngineUnavailable("dead."), 60.0) == others
    assert log.refused(EngineUnavailable("dead."), 62.0) == ""


def test_what_is_wrong_with_a_request_is_always_told() -> None:
    log = RefusalLog()
    assert [log.refused(InvalidParameter("n", "is wrong."), 1.0) for _ in range(3)] == [""] * 3


def test_lines_say_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.server")
    accounts = Accounts(ScriptedEngine(None, []))

    def refuse(error: PenstockError) -> None:
        accounts.refuse(accounts.begin("chat", "", time.monotonic()), outcome_of(error), error, error.http_status)

    for _ in range(30):
        refuse(QueueFull("full."))
    refuse(InvalidParameter("n", "is wrong."))
    full, wrong = caplog.messages
    assert full.startswith("chat request refused: 503 full. ")
    assert wrong.startswith("chat request rejected: 400 n: is wrong. ")
