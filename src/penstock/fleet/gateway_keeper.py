"""Keeps a gateway running on one socket: one that ends is started again, and one that is updated is replaced.

The socket stays open throughout. While no gateway runs, connections wait in the kernel's queue; while two do, the new
one takes them, and the old one answers to the end what it has.
"""

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from penstock.core.errors import ConfigurationError
from penstock.fleet.local import Process
from penstock.fleet.reconcile import pause_after
from penstock.server.notify import READY, VARIABLE

logger = logging.getLogger("penstock.fleet")

# That a gateway has to begin.
START_SECONDS = 600.0
_STEADY_SECONDS = 60.0

# Starts one, whose environment gets one more variable.
Spawn = Callable[[dict[str, str]], Awaitable[Process]]


class GatewayKeeper:
    """Keeps one running.

    Attributes:
        process: the one that takes connections; None while there is none.
        restarts: of gateways that ended without having been asked to.
        why: there is none, or the last update was taken back.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self.process: Process | None = None
        self.restarts, self.why = 0, ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the first one, and keep one from now on. Raises ConfigurationError, OSError."""
        self.process = await _ready(self._spawn)
        self._task = asyncio.create_task(self._keep())

    async def replace(self, spawn: Spawn) -> str:
        """Start one that is different, and have the old one end behind it; why not, where it does not begin."""
        try:
            process = await _ready(spawn)
        except (OSError, ConfigurationError) as error:
            self.why = f"the gateway's update is taken back: {error}"
            return self.why
        old, self.process, self._spawn, self.why = self.process, process, spawn, ""
        if old is not None:
            old.drain()
        return ""

    async def _keep(self) -> None:
        loop, failures, failed = asyncio.get_running_loop(), 0, float("-inf")
        while True:
            watched = self.process
            if watched is not None:
                how = await watched.ended()
                if watched is not self.process:
                    # It was replaced.
                    continue
                self.process, self.why = None, how
                self.restarts += 1
                logger.warning("The gateway is started again: %s", how)
                failures = 1 if loop.time() - failed > _STEADY_SECONDS else failures + 1
                failed = loop.time()
            await asyncio.sleep(max(0.0, failed + pause_after(failures) - loop.time()))
            try:
                self.process, self.why = await _ready(self._spawn), ""
            except (OSError, ConfigurationError) as error:
                failures, failed, self.why = failures + 1, loop.time(), str(error)
                logger.warning("The gateway does not begin: %s", error)

    async def close(self) -> None:
        """Have it finish its requests, and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.process is not None:
            self.process.drain()
            await self.process.ended()


async def _ready(spawn: Spawn) -> Process:
    """Start one, and wait until it says that it serves. Raises OSError, or ConfigurationError, where it does not."""
    async with _told() as (variable, told):
        process = await spawn({VARIABLE: variable})
        ended = asyncio.ensure_future(process.ended())
        heard = asyncio.ensure_future(told.wait())
        try:
            done, _ = await asyncio.wait({ended, heard}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            process.kill()
            raise
        finally:
            heard.cancel()
        if heard in done:
            return process
        if ended not in done:
            process.kill()
            await ended
            raise ConfigurationError(f"The gateway is not there: it did not serve within {START_SECONDS:g} s")
    raise ConfigurationError(f"The gateway is not there: {ended.result()}")


@contextlib.asynccontextmanager
async def _told() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A socket on which a process says that it serves: its path, and an event that is set then."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder, contextlib.ExitStack() as open_:
        path = Path(folder) / "notify"
        receiver = open_.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        receiver.bind(os.fspath(path))
        receiver.setblocking(False)

        def take() -> None:
            if READY in receiver.recv(4096).split(b"\n"):
                told.set()

        loop.add_reader(receiver.fileno(), take)
        open_.callback(loop.remove_reader, receiver.fileno())
        yield str(path), told
