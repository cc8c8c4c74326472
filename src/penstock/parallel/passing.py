"""What a stage of a pipeline gives to the next one: matrices, over a socket.

A frame is its head's length, the head in msgpack (the step's number, and rows, columns and type of each matrix), and
the matrices' bytes. Each side has the socket's end in one direction only.
"""

import queue
import socket
import threading
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from penstock.core.errors import EngineError
from penstock.parallel.framing import fill, receive, with_length

_MOST_HEAD_BYTES = 1 << 20
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class _Head(msgspec.Struct, frozen=True, array_like=True):
    number: int
    shapes: list[tuple[int, int, str]]


_encode = msgspec.msgpack.Encoder().encode
_head_of: "msgspec.msgpack.Decoder[_Head]" = msgspec.msgpack.Decoder(_Head)


class Behind:
    """The next stage.

    Attributes:
        sent: bytes of matrices that it was given so far.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.sent = 0

    def give(self, number: int, values: Sequence[Tensor]) -> None:
        """Give it what a step has made. Raises OSError where it has ended."""
        head = _encode(_Head(number, [(*value.shape, _NAMES[value.dtype]) for value in values]))
        self._end.sendall(with_length(head))
        for value in values:
            content = _bytes_of(value.contiguous())
            self._end.sendall(content)
            self.sent += len(content)


class Before:
    """The stage before.

    What it gives is received on a thread of its own, while this one computes: so it never waits until this one has
    time, and steps can be told to all stages whatever they are doing.
    """

    def __init__(self, end: socket.socket) -> None:
        self._come: queue.SimpleQueue[tuple[int, tuple[Tensor, ...]] | None] = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(end, self._come), daemon=True).start()

    def take(self, number: int) -> tuple[Tensor, ...]:
        """Wait for what a step has made there; steps before it that were not asked for are passed over.

        Raises EngineError where that stage has ended.
        """
        while (come := self._come.get()) is not None:
            if come[0] == number:
                return come[1]
        self.part()
        raise EngineError("The stage before this one has ended, without which nothing can be computed.")

    def part(self) -> None:
        """Let who waits for it end with an error."""
        self._come.put(None)


def _receive(end: socket.socket, come: "queue.SimpleQueue[tuple[int, tuple[Tensor, ...]] | None]") -> None:
    """Receive until the other end is closed, and close this one."""
    try:
        while (head := receive(end, _MOST_HEAD_BYTES)) is not None:
            found = _head_of.decode(head)
            values = tuple(torch.empty((rows, width), dtype=_TYPES[name]) for rows, width, name in found.shapes)
            if not all(fill(end, _bytes_of(value)) for value in values):
                break
            come.put((found.number, values))
    except OSError:
        # It was closed, here or there.
        pass
    finally:
        end.close()
        come.put(None)


def _bytes_of(value: Tensor) -> memoryview:
    """The bytes of a matrix in one piece."""
    return value.view(torch.uint8).numpy().reshape(-1).data if value.numel() else memoryview(b"")
