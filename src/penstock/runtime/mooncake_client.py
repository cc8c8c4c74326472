"""Calls to Mooncake Store, by a process beside this one (`mooncake_process.py`), each within some seconds."""

import logging
import socket
import subprocess
import threading

import msgspec

from penstock.runtime.beside import start_beside
from penstock.runtime.mooncake_process import (
    ANSWER,
    NOT_SET_UP,
    NOTHING,
    REFUSED,
    REQUEST,
    VALUE,
    Setup,
)

logger = logging.getLogger("penstock.kv_tiers")

# For the first answer of a process, which starts and connects before, and for each piece of others. Mooncake itself may
# wait a minute for a machine that is away.
_START_SECONDS, _ANSWER_SECONDS = 20.0, 5.0


class MooncakeFailed(OSError):
    """A call was not answered, or by a failure."""


class MooncakeRefused(MooncakeFailed):
    """Nothing will be answered before somebody installs what is missing."""


class MooncakeClient:
    """A client whose process is started when it is asked the first time, and again where it has ended.

    May be used on several threads. The process ends with this one.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # Over which the process is sent an end of each connection, and connections that no thread uses.
        self._control: socket.socket | None = None
        self._idle: list[socket.socket] = []
        self._has_answered = False

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one, at once."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._forget()

    def call(self, operation: bytes, key: str = "", number: int = 0, value: bytes | bytearray = b"") -> bytes | None:
        """What the process answers: a value, or None. `number` goes with the operation.

        Raises MooncakeFailed.
        """
        process, connection = None, None
        try:
            process, connection = self._connection()
            name = key.encode()
            connection.sendall(b"".join((REQUEST.pack(operation, len(name), number), name, value)))
            answer, size = ANSWER.unpack(_received(connection, ANSWER.size))
            content = bytes(_received(connection, size))
        except OSError as error:
            if connection is not None:
                # What is answered later is of no use.
                connection.close()
            if process is not None and not self._has_answered:
                # It may never be set up; another one may.
                self._end(process)
            if isinstance(error, MooncakeFailed):
                raise
            raise MooncakeFailed(f"Mooncake's client has not answered ({error})") from error
        if answer in (NOT_SET_UP, REFUSED):
            connection.close()
            self._end(process)
        else:
            self._leave(process, connection)
        if answer in (VALUE, NOTHING):
            return content if answer == VALUE else None
        raise (MooncakeRefused if answer == REFUSED else MooncakeFailed)(content.decode())

    @property
    def process_id(self) -> int | None:
        """Of the process, where there is one."""
        return None if self._process is None else self._process.pid

    def _connection(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._start()
            if self._idle:
                return process, self._idle.pop()
            assert self._control is not None
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                except OSError:
                    ours.close()
                    raise
            ours.settimeout(_ANSWER_SECONDS if self._has_answered else _START_SECONDS)
            return process, ours

    def _leave(self, process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_SECONDS)
        with self._lock:
            if self._process is process:
                self._has_answered = True
                self._idle.append(connection)
                return
        connection.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        """A new process; the lock is held."""
        self._forget()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = start_beside(
                    "penstock.runtime.mooncake_process",
                    [str(theirs.fileno()), msgspec.json.encode(self._setup)],
                    [theirs.fileno()],
                    logger,
                )
        except OSError:
            ours.close()
            raise
        ours.settimeout(_ANSWER_SECONDS)
        self._control = ours
        return self._process

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        if self._process is process:
            self.close()

    def _forget(self) -> None:
        for each in (*self._idle, *([] if self._control is None else [self._control])):
            each.close()
        self._idle.clear()
        self._process = self._control = None
        self._has_answered = False


def _received(connection: socket.socket, size: int) -> bytearray:
    """That number of bytes. Raises OSError."""
    found = bytearray(size)
    left = memoryview(found)
    while left:
        count = connection.recv_into(left)
        if not count:
            raise MooncakeFailed("Mooncake's client has ended")
        left = left[count:]
    return found
