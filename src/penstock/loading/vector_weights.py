"""Weights of the modules that a checkpoint has behind its transformer."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ModelFileError
from penstock.core.vectors import Dense
from penstock.loading.gguf import is_gguf
from penstock.loading.gguf_parts import read_model
from penstock.loading.safetensors import read_header
from penstock.loading.tensors import read_tensor


def dense_weights(folder: Path, dense: Dense) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """The matrix [outputs, inputs] of a dense layer, and its bias. Raises ModelFileError.

    In a GGUF file, it is one of the tensors, and has no bias.
    """
    if is_gguf(folder):
        entry = read_model(folder).tensors[f"{dense.folder}.weight"]
        return read_tensor(entry).float().numpy(), None
    header = read_header(folder / dense.folder / "model.safetensors")

    def floats(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        entry = header.get(name)
        if entry is None or entry.shape != shape:
            found = "nothing" if entry is None else f"one of the shape {list(entry.shape)}"
            raise ModelFileError(
                f"{dense.folder}/model.safetensors must have a tensor {name} of the shape {list(shape)}, not {found}."
            )
        values: NDArray[np.float32] = read_tensor(entry).float().numpy()
        return values

    weight = floats("linear.weight", (dense.outputs, dense.inputs))
    return weight, floats("linear.bias", (dense.outputs,)) if dense.biased else None
