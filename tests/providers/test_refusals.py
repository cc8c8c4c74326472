"""What providers' errors say, and to whom it is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.providers.refusals import Said, is_busy, is_operators, said_in


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no", "type": "t", "code": "c"}}', Said("no", ("c", "t"))),
        (b'{"type": "error", "error": {"type": "t", "message": "no"}}', Said("no", ("t",))),
        (b'[{"error": {"code": 400, "message": "no"}}]', Said("no")),
        (b'{"error": "no"}', Said("no")),
        (b'{"message": "no"}', Said("no")),
        (b'{"error": null}', Said('{"error": null}')),
        (b"[]", Said("[]")),
        (b"<html>", Said("<html>")),
        (b"\xff", Said("�")),
        (b'{"error":' * 100_000, Said('{"error":' * 22 + "{")),
    ],
)
def test_all_forms_are_read(body: bytes, said: Said) -> None:
    found = said_in(body)
    assert (found.message[:199], found.codes) == (said.message[:199], said.codes)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["error", "message", "code", "type", "x"]), inner)))  # fmt: skip
def test_no_body_breaks_it(body: object) -> None:
    assert len(said_in(json.dumps(body).encode()).message) <= 500


@pytest.mark.parametrize(
    ("status", "message", "code", "operators", "busy"),
    [
        (400, "max_tokens is too large", "", False, False),
        (422, "too long", "", False, False),
        (400, "Your credit balance is too low to access the API", "", True, False),
        (400, "API key not valid. Please pass a valid API key.", "", True, False),
        (400, "see plans and Billing", "", True, False),
        (400, "Jo owes us something", "billing_error", True, False),
        (400, "Incorrect", "invalid_api_key", True, False),
        (401, "no", "", True, False),
        (404, "no such model", "", True, False),
        (301, "moved", "", True, False),
        (500, "no", "", True, False),
        (429, "slow down", "rate_limit_exceeded", False, True),
        (429, "You exceeded your current quota", "insufficient_quota", True, False),
        (503, "no", "", False, True),
        (529, "no", "", False, True),
    ],
)
def test_what_is_the_operators(status: int, message: str, code: str, operators: bool, busy: bool) -> None:
    said = Said(message, (code,) if code else ())
    assert (is_operators(status, said), is_busy(status, said)) == (operators, busy)
