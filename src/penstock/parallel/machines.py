"""How ranks on several machines find each other: a listener on each machine, and who calls it.

Each machine has one process that listens. The first machine's is the engine; the others' call it, say what they have,
and are told the engine's configuration once all have come. Then each rank elsewhere gets two kinds of connections: one
to the engine, over which it is told what to do, and one to the next stage. Both sides show that they know the secret by
an HMAC (RFC 2104) of what they say and of a number that the other side has drawn, so that the secret is never sent, and
nothing that was said before is good again.
"""

import contextlib
import hmac
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from penstock.core.errors import ConfigurationError, EngineError
from penstock.parallel.framing import receive, with_length

_HANDSHAKE_SECONDS = 30.0
_PAUSE_SECONDS = 0.1
NONCE_BYTES = 32
# Of who has not shown anything yet: bytes of a message, and how many are heard at a time.
_FIRST_BYTES = 4096
_MOST_HEARD = 64
# Seconds, but for the number of questions without an answer, and milliseconds for what was sent.
_SIGNS_OF_LIFE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
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
        nonce: what the answer has to make a proof of.
    """

    machine: int
    port: int
    weights: bytes
    nonce: bytes
    proof: bytes = b""


class Connecting(msgspec.Struct, frozen=True, tag=True):
    """A connection for a rank: by which the engine tells it what to do, or the stage before gives it values."""

    rank: int
    purpose: Purpose
    proof: bytes = b""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """All machines have come: the engine's configuration, and where the next machine listens."""

    config: bytes
    next_host: str
    next_port: int
    proof: bytes = b""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A machine cannot join, and why."""

    message: str


class Beats(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How often each rank of a machine has shown that it is not stopped, and what operations it had computed then."""

    of: dict[int, tuple[int, int]]


Caller = Joining | Connecting
Answer = Welcome | Refused
_encode = msgspec.msgpack.Encoder().encode
_caller: "msgspec.msgpack.Decoder[Caller]" = msgspec.msgpack.Decoder(Caller)
_answer: "msgspec.msgpack.Decoder[Answer]" = msgspec.msgpack.Decoder(Answer)
_beats: "msgspec.msgpack.Decoder[Beats]" = msgspec.msgpack.Decoder(Beats)
_challenge: "msgspec.msgpack.Decoder[Challenge]" = msgspec.msgpack.Decoder(Challenge)


def send(end: socket.socket, message: Challenge | Caller | Answer | Beats) -> None:
    """Send it behind its length."""
    end.sendall(with_length(_encode(message)))


def welcome(end: socket.socket, joining: Joining, message: Welcome, secret: bytes) -> None:
    """Tell a machine that has joined how it goes on."""
    send(end, _signed(message, secret, joining.nonce))


def read_answer(end: socket.socket, joining: Joining, secret: bytes) -> Answer:
    """How a machine that has joined goes on. Raises EOFError where the engine has ended, or is another one's."""
    answer = _answer.decode(_read(end))
    if isinstance(answer, Welcome) and not _is_signed(answer, secret, joining.nonce):
        raise EOFError
    return answer


def read_beats(end: socket.socket) -> dict[int, tuple[int, int]]:
    """The next beats of a machine's ranks. Raises EOFError where there are none any more."""
    return _beats.decode(_read(end)).of


def _read(end: socket.socket, most: int = _MOST_BYTES, until: float | None = None) -> bytes:
    """The bytes of the next message; no byte behind it is taken, since others read on. Raises EOFError."""
    found = receive(end, most, until)
    if found is None:
        raise EOFError
    return found


def _watched(end: socket.socket) -> None:
    """Send at once, and notice soon where the other machine has gone without a word."""
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SIGNS_OF_LIFE.items():
        # Where the system has it.
        if (number := getattr(socket, option, None)) is not None:
            end.setsockopt(socket.IPPROTO_TCP, number, value)


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
        self._heard = threading.Semaphore(_MOST_HEARD)
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
        while not self._closed.is_set():
            self._heard.acquire()
            try:
                end, _ = self._socket.accept()
                threading.Thread(target=self._greet, args=(end,), daemon=True).start()
            except (OSError, RuntimeError):
                # It was closed, or the system has no more of what this takes: others may give some back.
                self._heard.release()
                self._closed.wait(_PAUSE_SECONDS)

    def _greet(self, end: socket.socket) -> None:
        """Hear what a caller wants; one that does not know the secret, or says nothing, is hung up on."""
        try:
            nonce = os.urandom(NONCE_BYTES)
            send(end, Challenge(self._release, nonce))
            caller = _caller.decode(_read(end, _FIRST_BYTES, time.monotonic() + _HANDSHAKE_SECONDS))
            if not _is_signed(caller, self._secret, nonce):
                if isinstance(caller, Joining):
                    send(end, Refused("The secret is another one than the first machine's (--machines-secret-file)."))
                raise EOFError
            _watched(end)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError):
            end.close()
            return
        finally:
            self._heard.release()
        self._come.put((caller, end))
        if self._closed.is_set():
            self._hang_up()


def call(
    host: str, port: int, secret: bytes, release: str, asked: Callable[[str], Caller], patience: float
) -> tuple[socket.socket, Caller]:
    """Call a listener; `asked` makes what is said, of this machine's address. Returns the connection, and that.

    Raises OSError where none answers within `patience` seconds, EngineError where it is of another release, or is
    something else.
    """
    end = socket.create_connection((host, port), timeout=patience)
    try:
        challenge = _challenge.decode(_read(end))
        if challenge.release != release:
            raise EngineError(
                f"The first machine has Penstock {challenge.release}, and this one {release}; install the same."
            )
        said = asked(end.getsockname()[0])
        send(end, _signed(said, secret, challenge.nonce))
        _watched(end)
        return end, said
    except (ValueError, msgspec.MsgspecError) as error:
        end.close()
        raise EngineError(f"What answers at {host}:{port} is no engine that waits for machines.") from error
    except EOFError as error:
        end.close()
        raise ConnectionResetError(f"{host}:{port} has hung up") from error
    except BaseException:
        end.close()
        raise


_Said = TypeVar("_Said", Joining, Connecting, Welcome, Caller)


def _signed(message: _Said, secret: bytes, nonce: bytes) -> _Said:
    """The message with a proof that who says it knows the secret."""
    return msgspec.structs.replace(message, proof=_proof(message, secret, nonce))


def _is_signed(message: Caller | Welcome, secret: bytes, nonce: bytes) -> bool:
    return hmac.compare_digest(message.proof, _proof(message, secret, nonce))


def _proof(message: Caller | Welcome, secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, nonce + _encode(msgspec.structs.replace(message, proof=b"")), "sha256")
