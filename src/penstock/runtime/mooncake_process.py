"""The process that is a client of Mooncake Store on behalf of one that computes (`mooncake_client.py` starts it).

In the other one, Mooncake would hold Python's lock while it connects, which may take a minute, write its log to the
standard error, and have other machines write to its memory. If this process crashes or hangs, that is a store that
fails.

It reads requests from sockets that it is sent, and answers each on its own thread. It ends when the socket does that it
was started with.
"""

import contextlib
import os
import signal
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import msgspec

# What is asked: whether it is set up; a value of at most a number of bytes; to write one of that number, in place of
# what no other client reads, or of whatever is there.
READY, GET, PUT, REPLACE = b"R", b"G", b"P", b"X"
# Operation, bytes of the key, and that number; the key comes next, and the value.
REQUEST = struct.Struct("<cIQ")
# What is answered: a value; nothing, since it is done or there is none; why not: the call, the set-up, or for good.
VALUE, NOTHING, FAILED, NOT_SET_UP, REFUSED = b"V", b"N", b"F", b"S", b"R"
# Answer, and bytes of the value or the text that comes next.
ANSWER = struct.Struct("<cQ")

# What Mooncake takes from the environment, if it is not there.
_ENVIRONMENT = {
    "MC_RPC_CONNECT_TIMEOUT_MS": "2000",
    "MC_RPC_TIMEOUT_MS": "4000",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
}
# Mooncake's error codes (mooncake-store, types.h).
_REASONS = {
    -200: "the store has no room; lend it memory with segment=SIZE in the URL, or start Mooncake's own mooncake_client",
    -800: "a machine that lends the store memory does not answer",
    -900: "Mooncake's master does not answer",
    -901: "Mooncake's master does not answer in time",
}
_AWAY = -900
_NO_ANSWER = (_AWAY, -901)
_CONNECT_SECONDS, _PAUSE_SECONDS = 2.0, 0.5
# To tell the master at the end that the memory is gone; it finds out by itself some seconds later.
_LAST_SECONDS = 10


class Setup(msgspec.Struct, frozen=True):
    """What the client is set up with.

    Attributes:
        host, port: of the master.
        buffer_bytes: through which values pass.
    """

    host: str
    port: int
    metadata: str
    protocol: str
    devices: str
    segment_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why there is no client."""

    answer: bytes
    why: str


def main(descriptor: int, asked: Setup) -> None:
    """Serve until the other end of the socket `descriptor` is closed."""
    control = socket.socket(fileno=descriptor)
    store = _set_up(asked)
    while True:
        said, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not said:
            break
        connection = socket.socket(fileno=descriptors[0])
        threading.Thread(target=_serve, args=(connection, store), daemon=True).start()
    if isinstance(store, _Store):
        store.close()
    # What Mooncake does at a process's end is done.
    os._exit(0)


def _set_up(asked: Setup) -> "_Store | _Trouble":
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        needs = "on Debian, it needs the packages libcurl4, libibverbs1 and libnuma1"
        return _Trouble(REFUSED, f"Mooncake cannot be loaded ({error}); {needs}")
    master = f"{asked.host}:{asked.port}"
    try:
        with socket.create_connection((asked.host, asked.port), _CONNECT_SECONDS) as connection:
            # This machine's address, as others reach it.
            own = connection.getsockname()[0]
    except OSError as error:
        return _Trouble(NOT_SET_UP, f"Mooncake's master at {master} cannot be reached ({error.strerror or error})")
    client = MooncakeDistributedStore()
    code = client.setup(
        own,
        asked.metadata,
        asked.segment_bytes,
        asked.buffer_bytes,
        asked.protocol,
        asked.devices,
        master,
    )
    if code:
        how = f"metadata={asked.metadata}, protocol={asked.protocol} and a segment of {asked.segment_bytes} bytes"
        return _Trouble(NOT_SET_UP, f"Mooncake's client cannot be set up with {how} (code {code})")
    return _Store(client, asked.host, asked.port)


class _Store:
    """What is asked of a client that is set up. Used on several threads.

    A connection to the master tells at once that it has gone: Mooncake would try to connect for some seconds, each
    time.
    """

    def __init__(self, client: Any, host: str, port: int) -> None:
        self._client = client
        self._master = host, port
        self._is_away = False
        threading.Thread(target=self._watch, daemon=True).start()

    def get(self, key: str, most: int) -> tuple[bytes, bytes]:
        if self._master_is_away():
            return _failed(_AWAY)
        if value := self._client.get(key):
            return (VALUE, value) if len(value) <= most else (NOTHING, b"")
        # It says nothing of why: the key is not there, the machine that has the value is away, or the master.
        there = _AWAY if self._master_is_away() else self._client.is_exist(key)
        return _failed(there) if there < 0 else (NOTHING, b"")

    def put(self, key: str, value: bytes, *, by_force: bool) -> tuple[bytes, bytes]:
        if self._master_is_away():
            return _failed(_AWAY)
        # What is there would not be written again. While others may read it, it is not removed either, but by force.
        removed = self._client.remove(key, by_force)
        code = removed if removed in _NO_ANSWER else self._client.put(key, value)
        return _failed(code) if code else (NOTHING, b"")

    def close(self) -> None:
        # Whatever keeps it, the kernel ends the process.
        signal.alarm(_LAST_SECONDS)
        self._client.close()

    def _master_is_away(self) -> bool:
        if not self._is_away:
            return False
        try:
            socket.create_connection(self._master, _CONNECT_SECONDS).close()
        except OSError:
            return True
        return False

    def _watch(self) -> None:
        while True:
            try:
                with socket.create_connection(self._master, _CONNECT_SECONDS) as connection:
                    self._is_away = False
                    connection.settimeout(None)
                    # It has nothing to say until it closes.
                    connection.recv(1)
            except OSError:
                self._is_away = True
                time.sleep(_PAUSE_SECONDS)


def _serve(connection: socket.socket, store: "_Store | _Trouble") -> None:
    """Answer what comes over one connection, until it is closed or what was asked is not waited for."""
    with contextlib.suppress(OSError), connection, connection.makefile("rb") as requests:
        while len(head := requests.read(REQUEST.size)) == REQUEST.size:
            operation, key_bytes, number = REQUEST.unpack(head)
            key = requests.read(key_bytes).decode()
            value = requests.read(number) if operation in (PUT, REPLACE) else b""
            if operation in (PUT, REPLACE) and len(value) < number:
                return
            if isinstance(store, _Trouble):
                answer, content = store.answer, store.why.encode()
            elif operation == READY:
                answer, content = NOTHING, b""
            elif operation == GET:
                answer, content = store.get(key, number)
            else:
                answer, content = store.put(key, value, by_force=operation == REPLACE)
            connection.sendall(ANSWER.pack(answer, len(content)) + content)


def _failed(code: int) -> tuple[bytes, bytes]:
    return FAILED, _REASONS.get(code, f"Mooncake says code {code}").encode()


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Setup))
