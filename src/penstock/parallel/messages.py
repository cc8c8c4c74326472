"""What the first rank tells the others, over a socket: frames of msgpack, each with its length before it.

All ranks have the same blocks, and each has keys and values of its own heads in them. So what the first one does to its
pool, and computes, the others are told to do in the same order.
"""

import socket
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from penstock.core.faults import Fault
from penstock.kernels.batch import NOTHING_SHARED, StepBatch
from penstock.parallel.framing import LENGTH, with_length

PROTOCOL_VERSION = 4
ProgramName = Literal["logits", "states"]
_MOST_BYTES = 1 << 30


class Begin(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What a rank is to be part of; the first that it is told.

    Attributes:
        release: of Penstock, which all ranks must have.
        config: of the engine, as `core.config.EngineConfig` in msgpack.
    """

    version: int
    release: str
    config: bytes
    rank: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """A rank has its weights, or another pool that it was told to have, and waits to be told what to compute."""


class Met(msgspec.Struct, frozen=True, tag=True):
    """Its device has met those of all other ranks.

    Attributes:
        free: bytes that are left on it then.
    """

    free: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A rank cannot go on, and why: the class of the error, and a sentence."""

    code: str
    message: str


class Pool(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Have a KV pool of this number of blocks, instead of any other; `Loaded` is the answer."""

    blocks: int


class Prepare(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Make a program faster while no request waits, as the first rank does now."""

    program: ProgramName


class Clear(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Zero these blocks, which a sequence is about to use."""

    blocks: list[int]


class Copy(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Copy blocks, each to its target."""

    pairs: list[tuple[int, int]]


class Give(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Meet the others with what these blocks of a slot have here."""

    blocks: list[int]


class Put(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Put the own part of a slot into these blocks; the content is of all ranks."""

    blocks: list[int]
    content: bytes


class Compute(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compute a batch with one of the model's programs; the fields behind `number` are those of `StepBatch`.

    `number` is the step's, by which stages know what belongs together.
    Arrays are their bytes; a block table is one row of blocks behind the other. With `carried`, the first rank's device
    alone knows some of the tokens.
    """

    program: ProgramName
    number: int
    token_ids: bytes
    positions: bytes
    query_lengths: list[int]
    context_lengths: list[int]
    num_decodes: int
    logit_rows: bytes
    block_tables: list[bytes]
    block_size: int
    shared: bytes = b""
    dropped: list[bytes] = []
    types: bytes | None = None
    sources: list[int] = []
    seen: bytes | None = None
    carried: bool = False


class Arm(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Something is to go wrong in one of the ranks, which all are told."""

    fault: Fault


ToRank = Begin | Pool | Prepare | Clear | Copy | Give | Put | Compute | Arm
FromRank = Loaded | Met | Failed
_encoder = msgspec.msgpack.Encoder()
_to_rank: "msgspec.msgpack.Decoder[ToRank]" = msgspec.msgpack.Decoder(ToRank)
_from_rank: "msgspec.msgpack.Decoder[FromRank]" = msgspec.msgpack.Decoder(FromRank)


def frame(message: ToRank | FromRank) -> bytes:
    """The message with its length before it."""
    body = _encoder.encode(message)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"A message of {len(body)} bytes is longer than the {_MOST_BYTES} that ranks take.")
    return with_length(body)


class Inbox:
    """Reads messages from a socket, one after another."""

    def __init__(self, end: socket.socket) -> None:
        self._stream = end.makefile("rb")

    def close(self) -> None:
        """Read no more; the socket stays its owner's."""
        self._stream.close()

    def to_rank(self) -> ToRank:
        """The next that a rank is told. Raises EOFError where the other end is closed."""
        return _to_rank.decode(self._body())

    def from_rank(self) -> FromRank:
        """The next that a rank tells. Raises EOFError where the other end is closed."""
        return _from_rank.decode(self._body())

    def _body(self) -> bytes:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > _MOST_BYTES:
            raise ValueError(f"A message claims {length} bytes; at most {_MOST_BYTES} are accepted.")
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        try:
            found = self._stream.read(size)
        except ConnectionResetError as error:
            # It has ended and had not read all that it was told.
            raise EOFError from error
        if len(found) < size:
            raise EOFError
        return found


def compute(program: ProgramName, number: int, batch: StepBatch) -> Compute:
    """The message for a batch of step `number`. Raises ValueError where it asks for what ranks cannot tell."""
    if batch.weighing is not None:
        raise ValueError("Ranks weigh no attention.")
    return Compute(
        program,
        number,
        _bytes(batch.token_ids),
        _bytes(batch.positions),
        batch.query_lengths,
        batch.context_lengths,
        batch.num_decodes,
        _bytes(batch.logit_rows),
        [_bytes(table) for table in batch.block_tables],
        batch.block_size,
        b"" if batch.shared is NOTHING_SHARED else _bytes(batch.shared),
        [each.tobytes() for each in batch.dropped],
        None if batch.types is None else _bytes(batch.types),
        batch.sources,
        None if batch.seen is None else _bytes(batch.seen),
        batch.carried is not None,
    )


def batch_of(told: Compute) -> StepBatch:
    """The batch that a message has."""
    rows = len(told.query_lengths)
    tables = (np.frombuffer(table, np.int32).reshape(rows, -1) for table in told.block_tables)
    return StepBatch(
        token_ids=_numbers(told.token_ids),
        positions=_numbers(told.positions),
        query_lengths=told.query_lengths,
        context_lengths=told.context_lengths,
        num_decodes=told.num_decodes,
        logit_rows=_numbers(told.logit_rows),
        block_tables=tuple(torch.from_numpy(table.copy()) for table in tables),
        block_size=told.block_size,
        shared=_numbers(told.shared) if told.shared else NOTHING_SHARED,
        dropped=tuple(np.frombuffer(each, np.int64).copy() for each in told.dropped),
        types=None if told.types is None else _numbers(told.types),
        sources=told.sources,
        seen=None if told.seen is None else _numbers(told.seen),
        carried=torch.empty(0, dtype=torch.float64) if told.carried else None,
    )


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def _numbers(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.int64).copy())
