"""Whether two tensors of a checkpoint are the same bytes, found out once for each state of the files.

Two matrices that differ do so almost everywhere, so a few samples tell. Only those that are equal are read whole, and
what was found is remembered, since a later start maps packed weights and reads nothing else of the checkpoint.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.loading.quantized import Entry, QuantizedEntry
from penstock.loading.safetensors import TensorEntry

_SAMPLES, _SAMPLE_BYTES = 16, 4096
_AT_ONCE = 4 << 20
_SAME, _OTHER = "same", "other"


def are_same(first: Entry, second: Entry, memory: Path) -> bool:
    """Whether both are stored in the same way, as the same bytes. `memory` is the folder that answers are kept in.

    Raises OSError where a file cannot be read. A folder that cannot be written is no obstacle.
    """
    pairs = _pairs(first, second)
    if pairs is None or not all(_equal(pair, _sampled(pair[0])) for pair in pairs):
        return False
    note = memory / f"{_identity(pairs)}.compared"
    with contextlib.suppress(OSError):
        if (found := note.read_text()) in (_SAME, _OTHER):
            return found == _SAME
    same = all(_equal(pair, _whole(pair[0])) for pair in pairs)
    with contextlib.suppress(OSError):
        memory.mkdir(parents=True, exist_ok=True)
        # One write of a few bytes: another process reads all of it, or compares itself.
        note.write_text(_SAME if same else _OTHER)
    return same


_Pair = tuple[TensorEntry, TensorEntry]


def _pairs(first: Entry, second: Entry) -> list[_Pair] | None:
    """The tensors that have to be the same bytes; None where the two are stored differently."""
    if isinstance(first, TensorEntry) and isinstance(second, TensorEntry):
        alike = _kind(first) == _kind(second)
        return [(first, second)] if alike else None
    if isinstance(first, QuantizedEntry) and isinstance(second, QuantizedEntry):
        form = [(each.layout, each.shape, each.bits, each.block, each.group, each.rows) for each in (first, second)]
        if form[0] != form[1] or first.parts.keys() != second.parts.keys():
            return None
        pairs = [(part, second.parts[name]) for name, part in first.parts.items()]
        return pairs if all(_kind(one) == _kind(other) for one, other in pairs) else None
    return None


def _kind(entry: TensorEntry) -> tuple[object, ...]:
    return entry.dtype, entry.shape, entry.nbytes, entry.rows, entry.cut, entry.shift, entry.transposed


def _sampled(entry: TensorEntry) -> Iterator[tuple[int, int]]:
    """Places, and how many bytes to read there: evenly spread, the last ones with them."""
    last = max(0, entry.nbytes - _SAMPLE_BYTES)
    places = {last * number // (_SAMPLES - 1) for number in range(_SAMPLES)}
    return ((place, _SAMPLE_BYTES) for place in sorted(places))


def _whole(entry: TensorEntry) -> Iterator[tuple[int, int]]:
    return ((place, _AT_ONCE) for place in range(0, entry.nbytes, _AT_ONCE))


def _equal(pair: _Pair, places: Iterator[tuple[int, int]]) -> bool:
    one, other = pair
    with one.file.open("rb", buffering=0) as first, other.file.open("rb", buffering=0) as second:
        for place, count in places:
            size = min(count, one.nbytes - place)
            if os.pread(first.fileno(), size, one.offset + place) != os.pread(
                second.fileno(), size, other.offset + place
            ):
                return False
    return True


def _identity(pairs: list[_Pair]) -> str:
    """The state of the files, and the places in them."""
    described = []
    for entry in (entry for pair in pairs for entry in pair):
        state = entry.file.stat()
        file = [str(entry.file.resolve()), state.st_size, state.st_mtime_ns, state.st_ino]
        described.append([*file, entry.offset, entry.nbytes])
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]
