"""What is written is read back to the bit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from penstock.loading.checkpoint import read_bytes
from penstock.loading.quantized import combined
from penstock.loading.safetensors import read_header
from penstock.loading.tensors import read_tensor
from penstock.quantization.grouped import unpacked
from penstock.quantization.layouts import LAYOUTS, words
from penstock.quantization.rtn import Grid, quantize_rtn


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 31, 32, 100])
def test_words_are_a_stream_of_bits(bits: int, count: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    integers = torch.randint(0, 1 << bits, (3, count), generator=generator, dtype=torch.uint8)
    found = words(integers, bits)
    assert found.shape == (3, -(-count * bits // 32)) and found.dtype is torch.int32
    assert torch.equal(unpacked(found, bits, count), integers)
    whole = sum(int(value) << (bits * place) for place, value in enumerate(integers[0]))
    assert int.from_bytes(found[0].numpy().tobytes(), "little") == whole


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("layout", "bits"), [(name, bits) for name, layout in LAYOUTS.items() for bits in layout.bits])
def test_every_layout_is_read_back(tmp_path: Path, layout: str, bits: int, symmetric: bool) -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(bits))
    grid = Grid(bits, 32, symmetric)
    matrix = quantize_rtn(weight, grid)
    file = tmp_path / "model.safetensors"
    save_file(LAYOUTS[layout].tensors("a.b", matrix, grid), file)
    said = LAYOUTS[layout].config({grid: ["a.b"]}, "lm_head", [])
    entries = combined(read_header(file), said["quant_method"], said, read_bytes)
    assert list(entries) == ["a.b.weight"]
    assert torch.equal(read_tensor(entries["a.b.weight"]), matrix.numbers())
