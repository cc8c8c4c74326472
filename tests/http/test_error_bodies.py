"""Errors are written in the form of the dialect that is spoken at a path."""

import json
from typing import Any

import pytest

from penstock.core.errors import PenstockError
from penstock.http.error_bodies import PLAIN, Dialect, Dialects, error_body


class Terse:
    """A form of another dialect."""

    def status(self, error: PenstockError) -> int:
        return 529

    def fields(self, error: PenstockError) -> dict[str, Any]:
        return {"code": error.code}


TERSE = Dialect(Terse(), b"request-id")
DIALECTS = Dialects({"/v1/messages": TERSE})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/"])
def test_a_dialect_is_spoken_at_its_path_and_below(path: str) -> None:
    assert DIALECTS.at(path) is TERSE
    response = DIALECTS.response(PenstockError("It failed."), path)
    assert (response.status_code, json.loads(response.body)) == (529, {"code": "internal_error"})


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/messagesx", "/x/v1/messages", ""])
def test_elsewhere_errors_are_plain(path: str) -> None:
    assert DIALECTS.at(path).errors is PLAIN and DIALECTS.at(path).id_header is None
    response = DIALECTS.response(PenstockError("It failed."), path)
    assert response.status_code == 500
    assert json.loads(response.body) == {
        "error": {"message": "It failed.", "type": "server_error", "param": None, "code": "internal_error"}
    }


def test_the_headers_that_have_an_id_are_known() -> None:
    assert Dialects().id_headers == ["x-request-id"] and DIALECTS.id_headers == ["x-request-id", "request-id"]


def test_a_message_with_half_of_a_surrogate_pair_is_json_all_the_same() -> None:
    assert json.loads(error_body(PenstockError("not \ud83d")))["error"]["message"] == r"not \ud83d"
