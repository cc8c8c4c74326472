"""The orderly end of a server: nothing new begins, what runs may finish for a time, what is left is told."""

import asyncio
import contextlib
import math
from collections.abc import Collection, Iterator
from typing import Protocol, Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.core.errors import PenstockError
from penstock.http.error_bodies import Dialects
from penstock.http.errors import ServerStopping
from penstock.http.request_ids import Identified

# Where responses find the drain in an ASGI scope.
_KEY = "penstock.drain"
# For those that are left to be told so; how often it is looked at how much time there is, which may become less.
LAST_WORDS_SECONDS = 5.0
_LOOK_SECONDS = 0.1


class Deadline:
    """A time of the event loop that may come nearer, also in a signal's handler, and not go further away again."""

    def __init__(self) -> None:
        self._at = math.inf

    @classmethod
    def after(cls, seconds: float) -> Self:
        """One that is in so long from now."""
        made = cls()
        made.within(seconds)
        return made

    @property
    def left(self) -> float:
        """Seconds, infinite where nothing has been said."""
        return max(0.0, self._at - asyncio.get_running_loop().time())

    def within(self, seconds: float) -> bool:
        """It is after this time at the latest; whether it has come nearer."""
        at = asyncio.get_running_loop().time() + seconds
        # No call stands between these two, at which a signal could be handled.
        if at < self._at:
            self._at = at
            return True
        return False


class Ending(Protocol):
    """A response that takes long."""

    def end_with(self, error: PenstockError) -> None:
        """End it with an error, in its stream where that has begun."""


class Drain:
    """An ASGI application around another, which it can bring to its end."""

    def __init__(self, app: ASGIApp, dialects: Dialects, last_paths: Collection[str] = ()) -> None:
        """`last_paths` still answer when the end has begun."""
        self._app = app
        self._dialects = dialects
        self._last = frozenset(last_paths)
        self._begun = self._handed_over = False
        self._requests = 0
        self._running: set[Ending] = set()
        # What those are told that are left when there is no more time, and those whose bodies arrive later still.
        self._verdict: PenstockError | None = None
        self._quiet = asyncio.Event()

    def hand_over(self) -> None:
        """Another process takes the new connections: each of these is closed behind the answer to its next request."""
        self._handed_over = True

    @property
    def begun(self) -> bool:
        """Whether the end has begun, so that nothing else does."""
        return self._begun

    @property
    def requests(self) -> int:
        """Requests that are being answered."""
        return self._requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._begun and scope["path"] not in self._last:
            error = ServerStopping("The server is stopping; send the request again, to another one or later.")
            refusal = self._dialects.response(error, scope["path"])
            await Identified(refusal, self._dialects)(scope, receive, send)
            return
        self._requests += 1
        self._quiet.clear()
        if self._handed_over:
            send = _closing(send)
        try:
            await self._app({**scope, _KEY: self}, receive, send)
        finally:
            self._requests -= 1
            if not self._requests:
                self._quiet.set()

    async def finish(self, deadline: Deadline) -> None:
        """Refuse what comes from now on, wait for what runs, and end what is left at the deadline."""
        self._begun = True
        if not await self._is_quiet(deadline):
            self._verdict = ServerStopping("The server stopped before this answer was complete; send it again.")
            for response in list(self._running):
                response.end_with(self._verdict)
            await self._is_quiet(Deadline.after(LAST_WORDS_SECONDS))

    async def _is_quiet(self, deadline: Deadline) -> bool:
        while self._requests and (left := deadline.left):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await self._quiet.wait()
        return not self._requests

    @contextlib.contextmanager
    def runs(self, response: Ending) -> Iterator[None]:
        """The response runs while the block does."""
        self._running.add(response)
        if self._verdict is not None:
            response.end_with(self._verdict)
        try:
            yield
        finally:
            self._running.discard(response)


def _closing(send: Send) -> Send:
    """Sends an answer behind which its connection is closed."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [each for each in message.get("headers", ()) if each[0] != b"connection"]
            message = {**message, "headers": [*kept, (b"connection", b"close")]}
        await send(message)

    return closing


def running(scope: Scope, response: Ending) -> contextlib.AbstractContextManager[None]:
    """Let the server that handles `scope` know of a response that takes long, while the block runs."""
    drain = scope.get(_KEY)
    return contextlib.nullcontext() if drain is None else drain.runs(response)


def is_ending(scope: Scope) -> bool:
    """Whether the server that handles `scope` takes on nothing more."""
    drain = scope.get(_KEY)
    return drain is not None and drain.begun
