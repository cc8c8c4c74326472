"""Memory for what is offered, in cells of one size, which other processes of the machine may map and read.

It is a file without a name (memfd_create(2)): it goes with the last process that has it. Who reads while a cell gets
another content has neither of both, which authentication of slots finds out.
"""

import mmap
import os
import secrets

from penstock.core.errors import InsufficientMemory

NONCE_BYTES = 32
# Cells begin behind the nonce, at the next page.
_FIRST = mmap.PAGESIZE


class Cells:
    """What a process writes.

    Attributes:
        size: bytes of a cell.
        count: how many there are.
        nonce: what the memory begins with, by which it is told from any other.
    """

    def __init__(self, size: int, most: int) -> None:
        """As many cells of `size` bytes as `most` bytes have. Raises InsufficientMemory where there is no memory."""
        self.size, self.count = size, most // size
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            self._file = os.memfd_create("penstock-offers")
            os.ftruncate(self._file, _FIRST + self.size * self.count)
            self._memory = mmap.mmap(self._file, _FIRST + self.size * self.count)
        except OSError as error:
            raise InsufficientMemory(f"There is no memory for --kv-offer-memory: {error.strerror}.") from error
        self._memory[:NONCE_BYTES] = self.nonce
        self._free = list(range(self.count - 1, -1, -1))

    @property
    def total(self) -> int:
        """Bytes of the whole memory."""
        return len(self._memory)

    @property
    def place(self) -> tuple[int, int]:
        """The process and its descriptor, by which others of this user open the memory."""
        return os.getpid(), self._file

    def put(self, content: bytes | bytearray) -> int | None:
        """The cell that has a content from now on; None where all are taken."""
        if not self._free:
            return None
        cell = self._free.pop()
        start = self.start(cell)
        self._memory[start : start + len(content)] = content
        return cell

    def start(self, cell: int) -> int:
        """Where a cell begins, in bytes from the memory's beginning."""
        return _FIRST + cell * self.size

    def get(self, cell: int, size: int) -> bytes:
        """The first bytes of a cell."""
        start = self.start(cell)
        return self._memory[start : start + size]

    def leave(self, cell: int) -> None:
        """A cell may have another content."""
        self._free.append(cell)


class MappedCells:
    """What another process of this machine has written; it is mapped as long as anything refers to this.

    Attributes:
        nonce: what the memory begins with.
    """

    def __init__(self, place: tuple[int, int], nonce: bytes) -> None:
        """Raises OSError where the memory is not there, or is another one: the other process is on another machine."""
        process, descriptor = place
        file = os.open(f"/proc/{process:d}/fd/{descriptor:d}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise OSError(str(error)) from error
        finally:
            os.close(file)
        self.nonce = nonce
        if self._memory[:NONCE_BYTES] != nonce:
            self._memory.close()
            raise OSError("it is another memory")

    def get(self, start: int, size: int) -> bytes:
        """Some bytes; fewer where they are beyond the end."""
        return self._memory[start : start + size]
