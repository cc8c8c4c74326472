"""A step's batch in a GPU's memory: its numbers in one piece, so that one copy brings them there."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.cuda.sampling import carry_kernel

# Arrays begin at multiples of this many int32: 64 bytes. Triton compiles a kernel once more for memory that begins at
# multiples of 16 bytes, and then no array may begin elsewhere.
_ALIGNMENT = 16
# Arrays of a step before those of its tables.
_BEFORE_TABLES = 10
# Tokens that a program of `carry` takes.
_CARRIED = 256


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """What programs of attention are about, all int32 [tiles]: a row, and the first of its queries."""

    rows: Tensor
    firsts: Tensor

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWeighing:
    """What is learnt of attention, in the device's memory.

    Attributes:
        rows, queries: int32 [asked]: a row, and how many of its last tokens are asked.
        most: the largest of these numbers.
        masses: for each KV group float32 [asked, places], to which attention adds what it gives to each place.
    """

    rows: Tensor
    queries: Tensor
    most: int
    masses: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """What kernels read of a step; everything is int32 and in the device's memory.

    Attributes:
        token_ids, positions: [tokens].
        rows, contexts, starts, added: [rows] each: the row itself, its context with this step, its first token in the
            step, and how many it has.
        wanted: [logit rows], tokens.
        entry_tokens, entry_rows: [tokens + shares], a token and a row of the block tables that its keys and values
            belong to; a row of -1 is no row.
        dropped: for each KV group [rows], how many positions before those of its table have no places there.
        tables: for each KV group [rows, blocks].
        decodes: tiles of the rows with one token.
        chunks: tiles of the others, by how many queries a tile takes.
        longest: places of a row, at most.
        far: whether there may be positions behind those that the model was made for.
        weighing: what is asked of attention; None: nothing.
        selected: the same of the wanted tokens, as rows of their own; None where nothing reads it, or all tokens are
            wanted, so that it is this step.
    """

    token_ids: Tensor
    positions: Tensor
    contexts: Tensor
    starts: Tensor
    added: Tensor
    wanted: Tensor
    entry_tokens: Tensor
    entry_rows: Tensor
    dropped: tuple[Tensor, ...]
    tables: tuple[Tensor, ...]
    decodes: Tiles
    chunks: dict[int, Tiles]
    longest: int
    far: bool = False
    weighing: DeviceWeighing | None = None
    selected: "DeviceStep | None" = None


Int32s = NDArray[np.int32]


def _tiles(batch: StepBatch, queries: int) -> tuple[Int32s, Int32s]:
    """Tiles of `queries` queries each of the rows that have several tokens, those with the longest contexts first."""
    found = [
        (batch.context_lengths[row], row, first)
        for row in range(batch.num_decodes, len(batch.query_lengths))
        for first in range(0, batch.query_lengths[row], queries)
    ]
    found.sort(key=lambda tile: -tile[0] - tile[2])
    return np.array([row for _, row, _ in found], np.int32), np.array([first for *_, first in found], np.int32)


def before_tables(groups: int) -> int:
    """How many arrays a step has before its tables."""
    return _BEFORE_TABLES + groups


def arrays_of(batch: StepBatch, queries: Sequence[int], rows: int = 0) -> list[Int32s]:
    """The arrays of a `DeviceStep`, in order, with tiles of each number of `queries`.

    Where the batch has fewer than `rows` rows, it is padded to that number with rows of one token.
    """
    lengths = np.array(batch.query_lengths, np.int32)
    count, tokens = len(lengths), len(batch.token_ids)
    more = max(0, rows - count)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])) if count else lengths
    shared = batch.shared.numpy().reshape(-1, 2)
    row_of = np.repeat(np.arange(count), lengths)
    tables = []
    for table in batch.block_tables:
        found = table.numpy()
        tables.append(np.pad(found, ((0, more), (0, 0))) if more else found)
    dropped = [np.pad(each, (0, more)) for each in batch.dropped] or [np.zeros(count + more, np.int32)] * len(tables)
    decodes = np.arange(batch.num_decodes + more)
    chunks = [tile for each in queries for tile in _tiles(batch, each)]
    return [
        np.ascontiguousarray(array, np.int32)
        for array in (
            np.pad(batch.token_ids.numpy(), (0, more)),
            np.pad(batch.positions.numpy(), (0, more)),
            np.pad(np.array(batch.context_lengths), (0, more)),
            np.concatenate((starts, np.arange(tokens, tokens + more))),
            np.pad(lengths, (0, more)),
            np.concatenate((batch.logit_rows.numpy(), np.arange(tokens, tokens + more))),
            np.concatenate((np.arange(tokens + more), shared[:, 0])),
            np.concatenate((row_of, np.full(more, -1), shared[:, 1])),
            decodes,
            np.zeros_like(decodes),
            *dropped,
            *tables,
            *chunks,
        )
    ]


def step_of(
    views: Sequence[Tensor], groups: int, queries: Sequence[int], longest: int, far: bool = False
) -> DeviceStep:
    """What `arrays_of` made, once it is in the device's memory."""
    ids, positions, contexts, starts, added, wanted, tokens, owners, rows, firsts = views[:_BEFORE_TABLES]
    rest = views[_BEFORE_TABLES:]
    dropped, tables, chunks = tuple(rest[:groups]), tuple(rest[groups : 2 * groups]), rest[2 * groups :]
    found = {each: Tiles(chunks[2 * i], chunks[2 * i + 1]) for i, each in enumerate(queries)}
    decodes = Tiles(rows, firsts)
    return DeviceStep(
        token_ids=ids,
        positions=positions,
        contexts=contexts,
        starts=starts,
        added=added,
        wanted=wanted,
        entry_tokens=tokens,
        entry_rows=owners,
        dropped=dropped,
        tables=tables,
        decodes=decodes,
        chunks=found,
        longest=longest,
        far=far,
    )


def int32s_for(arrays: Sequence[Int32s]) -> int:
    """How many int32 the arrays take together."""
    return sum(-(-array.size // _ALIGNMENT) * _ALIGNMENT for array in arrays)


def carry(token_ids: Tensor, carried: Tensor | None, share: Callable[[Tensor], None] | None) -> None:
    """Put the tokens of the step before in their places among `token_ids`, int32 [tokens], as `StepBatch` says.

    They never leave the devices' memory, and no processor waits for them. Where several devices compute together, the
    first alone has chosen tokens, so that `carried` is empty for others, and all get its `token_ids`.
    """
    if carried is None:
        return
    if len(carried):
        count = len(token_ids)
        carry_kernel[(-(-count // _CARRIED),)](token_ids, carried, count, BLOCK=_CARRIED)
    if share is not None:
        share(token_ids)


class Coming:
    """What a device computes, on its way to this process's memory; it is waited for only when it is read."""

    def __init__(self, found: Tensor) -> None:
        self._here, self._copied = found, None
        if found.device.type == "cuda":
            self._here = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._here.copy_(found, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> Tensor:
        """Wait until it is here, and all that was launched before is over."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._here


def asked_rows(batch: StepBatch) -> list[Int32s]:
    """The rows of a batch whose attention is weighed, and how many of their last tokens are asked; [] where none is."""
    if batch.weighing is None:
        return []
    queries = np.array(batch.weighing.queries, np.int32)
    rows = np.flatnonzero(queries)
    return [rows.astype(np.int32), queries[rows]]


def weighing_of(batch: StepBatch, asked: Sequence[Tensor]) -> DeviceWeighing | None:
    """Room for what such rows give, which are on the device."""
    if batch.weighing is None:
        return None
    rows, queries = asked
    longest = int(batch.places[np.flatnonzero(batch.weighing.queries)].max(initial=0))
    places = -(-longest // batch.block_size) * batch.block_size
    masses = torch.zeros((len(batch.block_tables), len(rows), places), dtype=torch.float32, device=rows.device)
    return DeviceWeighing(rows, queries, max(batch.weighing.queries), masses)


def told(batch: StepBatch, weighing: DeviceWeighing) -> None:
    """What was added up of the batch is on its way to where `Weighing` has it."""
    assert batch.weighing is not None
    coming = Coming(weighing.masses.unflatten(2, (-1, batch.block_size)).sum(3))
    targets, rows = batch.weighing.masses, np.flatnonzero(batch.weighing.queries)

    def put() -> None:
        for target, found in zip(targets, coming.read().numpy(), strict=True):
            blocks = min(target.shape[1], found.shape[1])
            target[rows, :blocks] = found[:, :blocks]

    batch.weighing.coming = put


class Staging:
    """Brings arrays to a device in one copy each time, from buffers that do not change while they are copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Buffers, and the events behind their last copies.
        self._buffers: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()

    def send(self, arrays: Sequence[Int32s], into: Tensor | None = None) -> list[Tensor]:
        """The arrays in the device's memory, in one tensor of int32 or in `into`, which is large enough."""
        offsets, end = [], 0
        for array in arrays:
            offsets.append(end)
            end += -(-array.size // _ALIGNMENT) * _ALIGNMENT
        buffer = self._free_buffer(end)
        flat = buffer.numpy()
        for array, offset in zip(arrays, offsets, strict=True):
            flat[offset : offset + array.size] = array.reshape(-1)
        target = torch.empty(end, dtype=torch.int32, device=self._device) if into is None else into
        target[:end].copy_(buffer[:end], non_blocking=True)
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        self._buffers.append((buffer, event))
        return [
            target[offset : offset + array.size].view(array.shape)
            for array, offset in zip(arrays, offsets, strict=True)
        ]

    def _free_buffer(self, size: int) -> Tensor:
        """The oldest buffer whose copy is over, if it is large enough; else one more, half as large again as needed."""
        if self._buffers:
            buffer, event = self._buffers[0]
            if event is None or event.query():
                self._buffers.popleft()
                if len(buffer) >= size:
                    return buffer
        pinned = self._device.type == "cuda"
        return torch.empty(size + size // 2, dtype=torch.int32, pin_memory=pinned)
