"""Headers of safetensors files, read and checked without touching the tensors.

The format: eight bytes with the length of a JSON header, the header, then the tensors' bytes
(https://huggingface.co/docs/safetensors).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.core.shares import Share
from penstock.layers.weights import HeadCut, HeadRows
from penstock.loading.json_file import check_kind

_LONGEST_HEADER = 100_000_000
_MOST_DIMENSIONS = 8
_LARGEST_NUMBER = 2**63 - 1
_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
_SIZES |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `offset` and `nbytes` are in bytes from the file's beginning.

    `dtype` is "float32", "float16", "bfloat16", or the format's own name for any other type.

    Attributes:
        rows: where rows of heads stand in the file; None: as kernels want them.
        cut: which of its rows are taken; None: all.
        share, over: of these rows, in the order that kernels want, and of its columns, those of a rank; None: all.
        shift: what is added to each number.
        transposed: whether the file has columns of a matrix one after another, instead of rows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    rows: HeadRows | None = None
    cut: HeadCut | None = None
    shift: float = 0.0
    transposed: bool = False
    share: Share | None = None
    over: Share | None = None


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Every tensor in `file`; raises ModelFileError where the file is truncated or malformed."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(_LONGEST_HEADER, size - 8):
                check_kind(file)
                raise ModelFileError(
                    f"{file.name} is truncated or no safetensors file: it has {size} bytes, its header would need "
                    f"{length + 8}; download it again."
                )
            header = json.loads(stream.read(length))
            # JSON can spell half of a surrogate pair, which is no text.
            json.dumps(header, ensure_ascii=False).encode()
    except OSError as error:
        raise ModelFileError(f"{file.name} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{file.name} has a malformed safetensors header; download it again.") from None
    if not isinstance(header, dict):
        raise ModelFileError(f"{file.name} has a malformed safetensors header; download it again.")
    entries = {
        name: _entry(name, fields, file, 8 + length) for name, fields in header.items() if name != "__metadata__"
    }
    end = 8 + length
    in_order = sorted(entries.values(), key=lambda entry: (entry.offset, entry.nbytes))
    for entry in in_order:
        if entry.offset != end:
            raise ModelFileError(
                f"{file.name} has tensor {entry.name} at byte {entry.offset}, but the one before it ends at {end}: "
                "tensors must follow each other without gap or overlap; download it again."
            )
        end += entry.nbytes
    if end != size:
        cut = next((entry.name for entry in in_order if entry.offset + entry.nbytes > size), None)
        trouble = "has bytes that belong to no tensor" if cut is None else f"is truncated at or before tensor {cut}"
        raise ModelFileError(
            f"{file.name} {trouble}: its header describes {end} bytes, but it has {size}; download it again."
        )
    return entries


def _entry(name: str, fields: Any, file: Path, base: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
        sound = len(shape) <= _MOST_DIMENSIONS and begin <= end
        sound = sound and all(type(number) is int and 0 <= number <= _LARGEST_NUMBER for number in (*shape, begin, end))
        width = _SIZES.get(dtype)
    except (TypeError, KeyError, ValueError):
        sound, width = False, None
    if not sound or (width is not None and math.prod(shape) * width != end - begin):
        raise ModelFileError(f"{file.name} describes tensor {name} in a way that makes no sense; download it again.")
    return TensorEntry(name, _NAMES.get(dtype, str(dtype)), shape, file, base + begin, end - begin)
