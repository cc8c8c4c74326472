"""What goes over a connection between replicas that hand prompts over: a length, and that number of bytes.

A question is msgpack. The answer to `Pull` is a slot's value as it is; all others are msgpack. Slots are named by keys
with a secret, and encrypted with it, so that one who has it not can ask for nothing and read nothing.
"""

import socket
import struct
import time
from math import inf

import msgspec

from penstock.cache.shelf_room import Name
from penstock.runtime.partner import PartnerFailed

VERSION = 2
_LENGTH = struct.Struct("<Q")
# In the place of a length: there is no such slot.
MISSING = 2**64 - 1
# Of a question, or an answer in msgpack: names of a million tokens.
MOST_MESSAGE = 8 << 20
# Of an answer that says where memory is, or what is in it.
MOST_PLACE = 1 << 16
# Of the first message of a connection.
MOST_HELLO = 256


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of a connection; it has no answer. One of another version is left.

    Attributes:
        holder: who asks on it; leases that it gives back may still be others'.
    """

    version: int = VERSION
    holder: str = ""


class Find(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    """Which slots are there: the answer is a list of booleans."""

    names: list[Name]
    awaited: int
    seconds: float


class Pull(msgspec.Struct, frozen=True, array_like=True, tag="pull"):
    """A slot of at most this number of bytes."""

    name: Name
    most: int


class Memory(msgspec.Struct, frozen=True, array_like=True, tag="memory"):
    """Where slots are, for a partner that reads memory: the answer is a `Mapped`."""


class Reach(msgspec.Struct, frozen=True, array_like=True):
    """How a transfer engine of another replica reads memory.

    Attributes:
        transport: whose engine.
        at: where the engine of this replica is, in its own form.
        start: address of the memory's beginning, as that one has it.
    """

    transport: str
    at: bytes
    start: int


class Mapped(msgspec.Struct, frozen=True, array_like=True):
    """Memory by its process and descriptor, and what it begins with.

    Attributes:
        reach: for a transfer engine; None where it has none.
    """

    place: tuple[int, int]
    nonce: bytes
    reach: Reach | None = None


class Point(msgspec.Struct, frozen=True, array_like=True, tag="point"):
    """A slot of at most this number of bytes in that memory: the answer is a `Placed`."""

    name: Name
    most: int


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """Where a slot begins in the memory that begins with `nonce`, and its bytes."""

    start: int
    size: int
    nonce: bytes


class Renew(msgspec.Struct, frozen=True, array_like=True, tag="renew"):
    """Leases begin anew: the answer is empty."""

    names: list[Name]
    seconds: float


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """Leases are given back: the answer is empty."""

    names: list[Name]


Question = Hello | Find | Pull | Memory | Point | Renew | Release
encode = msgspec.msgpack.Encoder().encode
questions: "msgspec.msgpack.Decoder[Question]" = msgspec.msgpack.Decoder(Question)


def send(end: socket.socket, content: bytes | memoryview | None) -> None:
    """Send one message; None: what was asked for is not there. Raises OSError."""
    if content is None:
        end.sendall(_LENGTH.pack(MISSING))
    elif len(content) < 1 << 16:
        end.sendall(_LENGTH.pack(len(content)) + content)
    else:
        end.sendall(_LENGTH.pack(len(content)))
        end.sendall(content)


def receive(end: socket.socket, most: int, until: float = inf) -> bytearray | None:
    """The next message; None: what was asked for is not there.

    Raises OSError, also where it is longer than `most`, or is not whole `until` then (`time.monotonic`): a
    ConnectionError where the connection ends.
    """
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size, until))
    if length == MISSING:
        return None
    if length > most:
        raise PartnerFailed(f"a message of {length} bytes came, and at most {most} were expected")
    return _exactly(end, length, until)


def _exactly(end: socket.socket, size: int, until: float) -> bytearray:
    content = bytearray(size)
    left = memoryview(content)
    while left:
        if until < inf:
            seconds = until - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("timed out")
            end.settimeout(seconds)
        count = end.recv_into(left)
        if not count:
            raise ConnectionResetError("the connection was closed")
        left = left[count:]
    return content
