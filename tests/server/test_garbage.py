"""What requests leave behind goes by itself: a server that had to look for it in cycles would be held up by that."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from penstock.access.admission import QueueBounds
from support.loaded_server import REQUESTS, in_background, loaded

ROUNDS = 10
# What tests before these left in memory takes longer to look through than all that is asked here.
pytestmark = pytest.mark.usefixtures("looked_through")


@contextmanager
def garbage() -> Iterator[list[object]]:
    """Of what was in cycles at the end, that which belongs to the package."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [
            (each.f_code.co_qualname if isinstance(each, FrameType) else type(each).__qualname__)
            for each in gc.garbage
            if "penstock" in (each.f_code.co_filename if isinstance(each, FrameType) else type(each).__module__)
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("path", REQUESTS)
def test_what_is_refused_is_in_no_cycle(tokenizer: Any, path: str) -> None:
    with loaded(tokenizer, bounds=QueueBounds(requests=1, tokens=10**6)) as server, in_background(server, 1):
        assert server.http.post(path, json=REQUESTS[path]).status_code in (503, 529)
        with garbage() as found:
            for _ in range(ROUNDS):
                assert server.http.post(path, json=REQUESTS[path]).status_code in (503, 529)
        assert found == []


@pytest.mark.parametrize("path", REQUESTS)
def test_what_cannot_be_understood_is_in_no_cycle(tokenizer: Any, path: str) -> None:
    with loaded(tokenizer) as server:
        assert server.http.post(path, json={"model": []}).status_code == 400
        with garbage() as found:
            for _ in range(ROUNDS):
                assert server.http.post(path, json={"model": []}).status_code == 400
        assert found == []


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_served_is_in_no_cycle(tokenizer: Any, stream: bool) -> None:
    with loaded(tokenizer) as server:
        body = {"prompt": "hi", "stream": stream}
        assert server.http.post("/v1/completions", json=body).status_code == 200
        with garbage() as found:
            for _ in range(ROUNDS):
                assert server.http.post("/v1/completions", json=body).status_code == 200
        assert found == []
