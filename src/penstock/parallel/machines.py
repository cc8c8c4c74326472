"""How ranks on several machines find each other: a listener on each machine, and who calls it.

Each machine has one process that listens. The first machine's is the engine; the others' call it, say what they have,
and are told the engine's configuration once all have come. Then each rank elsewhere gets two kinds of connections: one
to the engine, over which it is told what to do, and one to the next stage. A caller shows that it knows the secret by
an HMAC of what it is called with (RFC 2104), so that the secret itself is never sent.
"""

import contextlib
import hmac
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError, EngineError

_HANDSHAKE_SECONDS = 30.0
_NONCE_BYTES = 32
_LENGTH = struct.Struct("<I")
_MOST_BYTES = 1 << 24
Purpose = Literal["control", "values"]


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """What a listener says first: its release, and what a caller has to make a proof of."""

    release: str
    nonce: bytes


class Joining(msgspec.Struct, frozen=True, tag=True):
    """A machine has come.

    Attributes:
        machine: its number; the first is the engine's, 0.
        port: on which it listens.
        weights: digest of the model's files there.
    """

    proof: bytes
    release: str
    machine: int
    port: int
    weights: bytes


class Connecting(msgspec.Struct, frozen=True, tag=True):
    """A connection for a rank: by which the engine tells it what to do, or the stage before gives it values."""

    proof: bytes
    rank: int
    purpose: Purpose


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """All machines have come: the engine's configuration, and where the next machine listens."""

    config: bytes
    next_host: str
    next_port: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A machine cannot join, and why."""

    message: str


class Beats(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How often each rank of a machine has shown that it is not stopped."""

    of: dict[int, int]


Caller = Joining | Connecting
Answer = Welcome | Refused
_encode = msgspec.msgpack.Encoder().encode
_caller: "msgspec.msgpack.Decoder[Caller]" = msgspec.msgpack.Decoder(Caller)
_answer: "msgspec.msgpack.Decoder[Answer]" = msgspec.msgpack.Decoder(Answer)
_beats: "msgspec.msgpack.Decoder[Beats]" = msgspec.msgpack.Decoder(Beats)
_challenge: "msgspec.msgpack.Decoder[Challenge]" = msgspec.msgpack.Decoder(Challenge)


def send(end: socket.socket, message: Challenge | Caller | Answer | Beats) -> None:
    """Send it behind its length."""
    body = _encode(message)
    end.sendall(_LENGTH.pack(len(body)) + body)


def read_answer(end: socket.socket) -> Answer:
    """The next message of a listener. Raises EOFError where there is none."""
    return _answer.decode(_read(end))


def read_beats(end: socket.socket) -> dict[int, int]:
    """The next beats of a machine's ranks. Raises EOFError where there are none any more."""
    return _beats.decode(_read(end)).of


def _read(end: socket.socket) -> bytes:
    """The bytes of the next message; no byte behind it is taken, since others read on."""
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size))
    if length > _MOST_BYTES:
        raise ValueError(f"A message claims {length} bytes; at most {_MOST_BYTES} are accepted.")
    return _exactly(end, length)


def _exactly(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = end.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


class Listener:
    """Accepts those who know the secret, on threads of its own, until it is closed.

    Attributes:
        port: on which it listens.
    """

    def __init__(self, host: str, port: int, secret: bytes, release: str) -> None:
        """Raises ConfigurationError where it cannot listen there."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigurationError(
                f"No machine can be listened for at {host}:{port} ({error.strerror}); give another --machines-at."
            ) from error
        self.port = int(self._socket.getsockname()[1])
        self._secret, self._release = secret, release
        self._closed = threading.Event()
        self._come: queue.SimpleQueue[tuple[Caller, socket.socket]] = queue.SimpleQueue()
        threading.Thread(target=self._accept, daemon=True).start()

    def next(self, seconds: float) -> tuple[Caller, socket.socket] | None:
        """The next who has come; None where there is none within some seconds."""
        with contextlib.suppress(queue.Empty):
            return self._come.get(timeout=seconds)
        return None

    def close(self) -> None:
        """Accept no more, and hang up on those who have come and were not asked for."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._come.get_nowait()[1].close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._socket.accept()
                threading.Thread(target=self._greet, args=(end,), daemon=True).start()

    def _greet(self, end: socket.socket) -> None:
        """Hear what a caller wants; one that does not know the secret, or says nothing, is hung up on."""
        try:
            end.settimeout(_HANDSHAKE_SECONDS)
            nonce = os.urandom(_NONCE_BYTES)
            send(end, Challenge(self._release, nonce))
            caller = _caller.decode(_read(end))
            if not hmac.compare_digest(caller.proof, _proof(self._secret, nonce)):
                if isinstance(caller, Joining):
                    send(end, Refused("The secret is another one than the first machine's (--machines-secret-file)."))
                raise EOFError
            end.settimeout(None)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError):
            end.close()
            return
        self._come.put((caller, end))
        if self._closed.is_set():
            self._hang_up()


def call(
    host: str, port: int, secret: bytes, release: str, asked: Callable[[bytes], Caller], patience: float
) -> socket.socket:
    """Call a listener; `asked` makes what is said of the proof.

    Raises OSError where none answers within `patience` seconds, EngineError where it is of another release.
    """
    end = socket.create_connection((host, port), timeout=patience)
    try:
        challenge = _challenge.decode(_read(end))
        if challenge.release != release:
            raise EngineError(
                f"The first machine has Penstock {challenge.release}, and this one {release}; install the same."
            )
        send(end, asked(_proof(secret, challenge.nonce)))
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return end
    except EOFError as error:
        end.close()
        raise ConnectionResetError(f"{host}:{port} has hung up.") from error
    except BaseException:
        end.close()
        raise


def _proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, nonce, "sha256")
