"""What an engine is at work on, written where its end does not take it along."""

import mmap
import os
import struct
from collections.abc import Collection

# Requests that fit; of more, any can be the one.
_MOST = 8191
RECORD_BYTES = 8 * (_MOST + 1)
_NUMBER = struct.Struct("<q")


class Record:
    """The requests that can be the reason if the engine ends now, in memory that two processes have.

    The engine's own writes, at every turn of its loop; the one that started it reads when it has ended. Where it does
    not say which, it can be any: so it begins, and so it is while it is written.
    """

    def __init__(self, memory: "mmap.mmap | bytearray") -> None:
        """`memory` has RECORD_BYTES, all of them 0 at first."""
        self._memory = memory
        self._written: tuple[int, ...] = ()

    @classmethod
    def attach(cls, descriptor: int) -> "Record":
        """The record in memory with this descriptor, which stays the caller's."""
        return cls(mmap.mmap(descriptor, RECORD_BYTES))

    def any(self) -> None:
        """The engine does something that can go wrong with whatever it was given."""
        _NUMBER.pack_into(self._memory, 0, 0)

    def only(self, request_ids: Collection[int]) -> None:
        """It computes these and nothing else."""
        ids = tuple(request_ids)
        if len(ids) > _MOST:
            self.any()
            return
        if ids != self._written:
            self.any()
            struct.pack_into(f"<{len(ids)}q", self._memory, _NUMBER.size, *ids)
            self._written = ids
        _NUMBER.pack_into(self._memory, 0, len(ids) + 1)

    def suspects(self) -> frozenset[int] | None:
        """The requests; None where it can be any."""
        (count,) = _NUMBER.unpack_from(self._memory, 0)
        if not 1 <= count <= _MOST + 1:
            return None
        return frozenset(struct.unpack_from(f"<{count - 1}q", self._memory, _NUMBER.size))


def create_record() -> int:
    """Memory for a record; returns its descriptor."""
    descriptor = os.memfd_create("penstock-record")
    os.ftruncate(descriptor, RECORD_BYTES)
    return descriptor
