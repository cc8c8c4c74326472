"""The process in which a transfer engine reads and is read, beside one that computes (`transfers.py` starts it).

In the other one, an engine that crashes or hangs would take requests along, and would let other machines write to all
of its memory. Here it has the memory of what is offered, or of what arrives, which is mapped in both; it is encrypted
and authenticated there (`sealing.py`).

It answers questions from sockets, each on its own thread, and ends when the first socket does that it was started with.
"""

import ctypes
import mmap
import os
import select
import socket
import sys
import threading

import msgspec

from penstock.parallel.framing import receive, with_length
from penstock.runtime.partner_wire import MOST_PLACE, Reach
from penstock.runtime.transfer_engines import Mooncake, Nixl, TransferEngine

# Of a question, which has a place.
MOST_QUESTION = 2 * MOST_PLACE


class Setup(msgspec.Struct, frozen=True):
    """What a process is started with.

    Attributes:
        name: of the engine, unlike those of all others.
        host: this machine's address, as others reach it.
        memory: descriptor of the memory, and `size`, its bytes.
        control: descriptor of the socket with which the process ends; it says there once whether it works.
        lanes: descriptors of sockets for questions.
        seconds: after which a read has failed.
        serves: others read from the memory; else it is read into.
    """

    transport: str
    name: str
    host: str
    memory: int
    size: int
    control: int
    lanes: list[int]
    seconds: float
    serves: bool


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """The engine has started, and how others reach it."""

    reach: Reach


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The engine cannot start, and why."""

    why: str


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Read `size` bytes that begin at `start` of other memory to `here` in the own one.

    The answer is why that failed; nothing where they are there.
    """

    reach: Reach
    start: int
    here: int
    size: int


encode = msgspec.msgpack.Encoder().encode
_decode: "msgspec.msgpack.Decoder[Read]" = msgspec.msgpack.Decoder(Read)


def main(setup: Setup) -> None:
    """Answer until the other end of `control` is closed."""
    control = socket.socket(fileno=setup.control)
    memory = mmap.mmap(setup.memory, setup.size)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        engine = _engine(setup, start)
    except Exception as error:
        # The engines' own exceptions have no class in common.
        control.sendall(with_length(encode(Refused(_said(error)))))
        return
    for lane in setup.lanes:
        end = socket.socket(fileno=lane)
        threading.Thread(target=_serve, args=(end, engine, start, setup.size), daemon=True).start()
    control.sendall(with_length(encode(Begun(Reach(setup.transport, engine.at, start)))))
    hung_up = select.poll()
    hung_up.register(control, select.POLLRDHUP)
    while not hung_up.poll(engine.pause):
        engine.progress()
    # What engines do at a process's end may wait for others.
    os._exit(0)


def _engine(setup: Setup, start: int) -> TransferEngine:
    if setup.transport == "nixl":
        return Nixl(setup.name, start, setup.size, setup.seconds, serves=setup.serves)
    return Mooncake(setup.host, start, setup.size, setup.seconds)


def _serve(end: socket.socket, engine: TransferEngine, start: int, size: int) -> None:
    with end:
        while (content := receive(end, MOST_QUESTION)) is not None:
            end.sendall(with_length(_answer(_decode.decode(content), engine, start, size).encode()))


def _answer(question: Read, engine: TransferEngine, start: int, size: int) -> str:
    here, count = question.here, question.size
    if not 0 <= here <= here + count <= size:
        return f"{count} bytes do not fit at {here}"
    try:
        engine.read(question.reach.at, question.reach.start + question.start, start + here, count)
    except Exception as error:
        # What it knows of the other one may be what was wrong.
        engine.forget(question.reach.at)
        return _said(error)
    return ""


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Setup))
