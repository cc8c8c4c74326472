"""What is written as a GGUF file is what is read from it."""

import io
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from penstock.loading.gguf import read_gguf
from penstock.loading.gguf_writer import NamedTensor, write_gguf
from penstock.loading.tensors import read_tensor

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.rope.freq_base": 500000.0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "", "日本"],
    "tokenizer.ggml.token_type": [1, 3, 6],
    "tokenizer.ggml.scores": [-1.5, 0.0, 2.0],
    "tokenizer.chat_templates": [],
}


def tensors() -> dict[str, tuple[str, torch.Tensor]]:
    luck = torch.Generator().manual_seed(0)
    return {
        "one": ("F32", torch.randn(5, generator=luck)),
        "two": ("BF16", torch.randn(3, 7, generator=luck).bfloat16()),
        "three": ("F16", torch.randn(2, 3, generator=luck).half()),
    }


def written(path: Path) -> Path:
    named = [
        NamedTensor(name, kind, tuple(tensor.shape), lambda tensor=tensor: tensor)  # type: ignore[misc]
        for name, (kind, tensor) in tensors().items()
    ]
    with path.open("wb") as stream:
        write_gguf(stream, METADATA, named)
    return path


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = read_gguf(written(tmp_path / "a.gguf"))
    assert file.metadata.keys() == METADATA.keys()
    for name, value in METADATA.items():
        found = file.metadata[name]
        assert (list(found) if isinstance(value, list) else found) == value, name
    for name, (_, tensor) in tensors().items():
        assert torch.equal(read_tensor(file.tensors[name]), tensor)


def test_the_package_reads_it_too(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(written(tmp_path / "a.gguf"))
    assert {name for name in reader.fields if not name.startswith("GGUF.")} == METADATA.keys()
    assert reader.fields["llama.block_count"].contents() == 3
    assert reader.fields["tokenizer.ggml.tokens"].contents() == METADATA["tokenizer.ggml.tokens"]
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert np.array_equal(found["one"].data, tensors()["one"][1].numpy())
    assert np.array_equal(found["three"].data, tensors()["three"][1].numpy())


def test_a_tensor_of_another_size_is_no_tensor_of_that_shape() -> None:
    wrong = NamedTensor("a", "Q8_0", (2, 32), lambda: torch.zeros(2, 33, dtype=torch.uint8))
    with pytest.raises(ValueError, match="a has 66 bytes, of 68"):
        write_gguf(io.BytesIO(), {}, [wrong])
