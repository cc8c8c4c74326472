"""Bytes with their length before them, as ranks and machines send them over sockets."""

import socket
import struct
import time

LENGTH = struct.Struct("<I")


def with_length(body: bytes) -> bytes:
    """The bytes with their length before them."""
    return LENGTH.pack(len(body)) + body


def fill(end: socket.socket, memory: memoryview, until: float | None = None) -> bool:
    """Receive as many bytes as there is room for; whether that many came.

    Raises TimeoutError where they have not come `until` then (`time.monotonic`); None: however long it takes.
    """
    while memory:
        if until is not None:
            end.settimeout(max(0.001, until - time.monotonic()))
        count = end.recv_into(memory)
        if not count:
            return False
        memory = memory[count:]
    return True


def receive(end: socket.socket, most: int, until: float | None = None) -> bytes | None:
    """The bytes behind the next length, and none behind these; None where the other end is closed before.

    Raises ValueError where there are more than `most`, TimeoutError as `fill` does.
    """
    length = bytearray(LENGTH.size)
    if not fill(end, memoryview(length), until):
        return None
    (size,) = LENGTH.unpack(length)
    if size > most:
        raise ValueError(f"A message claims {size} bytes; at most {most} are accepted.")
    body = bytearray(size)
    return bytes(body) if fill(end, memoryview(body), until) else None
