"""One tensor of a file as numbers: mapped where the file has them as they are, else made of its blocks."""

import math
import mmap

import torch
from torch import Tensor

from penstock.loading.safetensors import TensorEntry
from penstock.quantization.gguf_blocks import dequantize

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Bytes of numbers that are made at a time, beside the tensor itself.
_AT_ONCE = 64 << 20


def read_tensor(entry: TensorEntry) -> Tensor:
    """The tensor in the type that it is stored in; float32 where that is one of blocks.

    It may be the file's own pages, which stay mapped, privately, as long as it lives.
    """
    raw = _pages(entry)
    tensor = _numbers(entry, raw)
    if entry.paired_heads:
        # Halves of a head turn with each other; in the file the two rows stand side by side.
        heads = tensor.unflatten(0, (entry.paired_heads, -1, 2))
        tensor = heads.transpose(1, 2).flatten(0, 2)
    return tensor + entry.shift if entry.shift else tensor


def _numbers(entry: TensorEntry, raw: Tensor) -> Tensor:
    if entry.dtype in DTYPES:
        return raw.view(DTYPES[entry.dtype]).view(entry.shape)
    columns = entry.shape[-1]
    rows = math.prod(entry.shape[:-1])
    packed = raw.view(rows, -1)
    found = torch.empty(rows, columns)
    step = max(1, _AT_ONCE // (4 * columns))
    for first in range(0, rows, step):
        found[first : first + step] = dequantize(packed[first : first + step], entry.dtype)
    return found.view(entry.shape)


def _pages(entry: TensorEntry) -> Tensor:
    """The tensor's bytes in the file."""
    if entry.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    first_page = entry.offset - entry.offset % mmap.ALLOCATIONGRANULARITY
    inset = entry.offset - first_page
    with entry.file.open("rb") as stream:
        pages = mmap.mmap(stream.fileno(), inset + entry.nbytes, access=mmap.ACCESS_COPY, offset=first_page)
    return torch.frombuffer(pages, dtype=torch.uint8, count=entry.nbytes, offset=inset)
