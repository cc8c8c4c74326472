"""The operator of a server: has its engine wait, and go on step by step."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from support.waiting import PATIENCE, until


class Operator:
    """A client of the operator's socket."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        until(socket.exists)

    def client(self) -> httpx.Client:
        """Speaks with the server as the operator."""
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://admin", timeout=PATIENCE
        )

    def pause(self, paused: bool) -> None:
        """Have the engine begin no more steps, before it takes any request that comes later; or go on."""
        with self.client() as client:
            _pause(client, {"paused": paused})

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The engine begins with what comes once the block ends, in order."""
        self.pause(True)
        try:
            yield
        finally:
            self.pause(False)

    def step(self, count: int) -> None:
        """Let a paused engine compute a number of steps; does not wait for them."""
        with self.client() as client:
            _pause(client, {"paused": True, "after_steps": count})

    def step_until(self, reached: Callable[[], object]) -> None:
        """Let a paused engine compute one step after the other until `reached()` is true; it is paused then."""
        with self.client() as client:

            def is_reached() -> bool:
                if reached():
                    _pause(client, {"paused": True})
                    return True
                _pause(client, {"paused": True, "after_steps": 1})
                # The engine answers the first before its step, where both come at once, and the second behind it.
                for _ in range(2):
                    assert client.get("/invariants").json()["sound"]
                return False

            until(is_reached)


def _pause(client: httpx.Client, fields: dict[str, bool | int]) -> None:
    assert client.post("/pause", json=fields).json() == {"after_steps": 0, **fields}
