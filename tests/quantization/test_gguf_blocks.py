"""Numbers of GGUF blocks are the `gguf` package's, to the last bit."""

import gguf
import numpy as np
import pytest
import torch

from penstock.quantization.gguf_blocks import dequantize
from penstock.quantization.gguf_types import BLOCK_TYPES


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_numbers_are_those_of_the_package(name: str) -> None:
    block, kind = BLOCK_TYPES[name], gguf.GGMLQuantizationType[name]
    assert (block.code, block.elements, block.nbytes) == (kind.value, *gguf.GGML_QUANT_SIZES[kind])
    for seed in range(20):
        raw = np.random.default_rng(seed).integers(0, 256, (7, 5 * block.nbytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            expected = gguf.quants.dequantize(raw, kind)
        found = dequantize(torch.from_numpy(raw), name).numpy()
        assert found.shape == expected.shape == (7, 5 * block.elements)
        # Which of all NaNs one is, processors decide.
        bits = np.where(np.isnan(expected), np.isnan(found), expected.view(np.int32) == found.view(np.int32))
        assert bits.all()
