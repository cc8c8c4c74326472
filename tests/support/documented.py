"""Holds every answer that a test's client gets to the API's own description."""

import re
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from penstock.server.endpoints import ENDPOINTS
from penstock.server.openapi import document

_DOCUMENT = document(ENDPOINTS, "test")
_PATHS = [(re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path) for path in _DOCUMENT["paths"]]


def described_client(url: str, timeout: float = 20.0) -> httpx.Client:
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
        schema = {**content[media]["schema"], "components": _DOCUMENT["components"]}
        errors = [error.message for error in Draft202012Validator(schema).iter_errors(response.json())]
        assert not errors, f"{path} answers {status} with what its description does not have: {errors[:3]}"
