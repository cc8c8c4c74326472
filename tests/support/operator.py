"""The operator of a server: has its engine wait, and go on by a few steps at a time."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from support.waiting import until


class Operator:
    """Whoever has the operator's socket."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        until(socket.exists)

    def client(self) -> httpx.Client:
        """Speaks with the server as the operator."""
        return httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://admin")

    def pause(self, paused: bool) -> None:
        """Have the engine begin no more steps, before it takes any request that comes later; or go on."""
        with self.client() as client:
            _pause(client, paused)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The engine begins with what comes once the block ends, in order."""
        self.pause(True)
        try:
            yield
        finally:
            self.pause(False)

    def step_until(self, reached: Callable[[], object]) -> None:
        """Let a paused engine compute a few steps at a time until `reached()` is true; it is paused then."""

        # One client for all: to make one between the two would give the engine time for many steps.
        with self.client() as client:

            def is_reached() -> bool:
                if reached():
                    return True
                _pause(client, False)
                _pause(client, True)
                return False

            until(is_reached)


def _pause(client: httpx.Client, paused: bool) -> None:
    assert client.post("/pause", json={"paused": paused}).json() == {"paused": paused}
