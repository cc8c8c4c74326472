"""Holds every answer that a test's client gets to the API's own description."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from penstock.server.endpoints import ENDPOINTS
from penstock.server.openapi import document
from support.waiting import PATIENCE

_DOCUMENT = document(ENDPOINTS, "test")
_PATHS = [(re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path) for path in _DOCUMENT["paths"]]


def described_client(url: str, timeout: float = PATIENCE) -> httpx.Client:
    """A client that holds every answer to the description."""
    return httpx.Client(base_url=url, timeout=timeout, event_hooks={"response": [check]})


def check(response: httpx.Response) -> None:
    """An event hook for httpx: raises AssertionError where an answer is not as the description says."""
    request = response.request
    for pattern, path in _PATHS:
        if pattern.fullmatch(request.url.path) and request.method.lower() in _DOCUMENT["paths"][path]:
            _check(response, _DOCUMENT["paths"][path][request.method.lower()], path)
            return


def _check(response: httpx.Response, operation: dict[str, Any], path: str) -> None:
    status = str(response.status_code)
    assert status in operation["responses"], f"{path} answers {status}, which its description does not have"
    media = response.headers.get("content-type", "").partition(";")[0]
    content = operation["responses"][status]["content"]
    assert media in content, f"{path} answers {status} with {media}, which its description does not have"
    if media == "application/json":
        response.read()
        _fits(response.json(), content[media]["schema"], f"{path} answers {status} with")
    elif media == "text/event-stream":
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _CheckedEvents(response.stream, content[media]["schema"]["properties"]["data"], path)


def _fits(value: Any, schema: dict[str, Any], what: str) -> None:
    whole = {**schema, "components": _DOCUMENT["components"]}
    errors = [error.message for error in Draft202012Validator(whole).iter_errors(value)]
    assert not errors, f"{what} what its description does not have: {errors[:3]}"


class _CheckedEvents(httpx.SyncByteStream):
    """A stream of events as it comes, each held to the description once it is there."""

    def __init__(self, stream: httpx.SyncByteStream, data: dict[str, Any], path: str) -> None:
        self._stream = stream
        self._path = path
        kinds = data.get("anyOf", [data])
        self._last = [kind["const"] for kind in kinds if "const" in kind]
        (self._schema,) = (kind["contentSchema"] for kind in kinds if "contentSchema" in kind)

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._stream:
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                self._check(event.decode())
            yield piece
        assert rest == b"", f"{self._path} ends in the middle of an event"

    def close(self) -> None:
        """As httpx asks for."""
        self._stream.close()

    def _check(self, event: str) -> None:
        fields = dict(line.split(": ", 1) for line in event.splitlines())
        assert fields.keys() <= {"event", "data"}
        if fields["data"] in self._last:
            return
        value = json.loads(fields["data"])
        assert fields.get("event", value.get("type")) == value.get("type")
        _fits(value, self._schema, f"{self._path} streams")
