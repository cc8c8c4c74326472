"""Answers that are read as they come, several at a time."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.waiting import PATIENCE


@dataclass
class Stream:
    """What a client has got of an answer."""

    lines: list[str] = field(default_factory=list)
    replica: str = ""
    ended: bool = False

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of its events."""
        return [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]

    def text(self) -> str:
        """All that was said, in whichever dialect."""
        return "".join(part for event in self.events for part in said(event))

    def ids(self) -> set[str]:
        """Of the response."""
        return {event["id"] for event in self.events if "id" in event}


def said(event: object, name: str = "") -> Iterator[str]:
    """Pieces of text in an event that has some."""
    if isinstance(event, dict):
        if event.get("type", "").startswith("response.") and not event["type"].endswith(".delta"):
            return
        for key, value in event.items():
            yield from said(value, key)
    elif isinstance(event, list):
        for each in event:
            yield from said(each, name)
    elif isinstance(event, str) and name in ("content", "text", "arguments", "partial_json", "delta"):
        yield event


def read(base: str, asked: tuple[str, dict[str, Any]], into: Stream) -> None:
    path, body = asked
    with httpx.stream("POST", base + path, json={"model": "haiku", **body}, timeout=PATIENCE) as response:
        into.replica = response.headers.get("x-penstock-replica", "")
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            into.lines.append(line)
    into.ended = True


@contextlib.contextmanager
def reading(base: str, asked: list[tuple[str, dict[str, Any]]]) -> Iterator[list[Stream]]:
    """Streams that are read beside the block, to their ends."""
    streams = [Stream() for _ in asked]
    threads = [
        threading.Thread(target=read, args=(base, each, stream), daemon=True)
        for each, stream in zip(asked, streams, strict=True)
    ]
    for thread in threads:
        thread.start()
    yield streams
    # Where the block fails, what it stands in ends the servers, and with them these.
    for thread in threads:
        thread.join(PATIENCE)
