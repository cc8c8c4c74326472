"""Weights of what a checkpoint has behind its transformer: modules in folders of their own, or heads beside it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ModelFileError
from penstock.core.vectors import Centre, Contrast, Dense, VectorStep
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.gguf import is_gguf
from penstock.loading.gguf_parts import read_model
from penstock.loading.safetensors import TensorEntry, read_header
from penstock.loading.tensors import read_tensor
from penstock.loading.vector_modules import modules_of
from penstock.models.declaration import ModelDeclaration
from penstock.text.tokenizer import Tokenizer

Floats = NDArray[np.float32]


def step_weights(
    steps: tuple[VectorStep, ...],
    checkpoint: Checkpoint,
    declaration: ModelDeclaration,
    tokenizer: Tokenizer | None = None,
) -> dict[VectorStep, tuple[Floats, Floats | None]]:
    """The weight of each step that has one, and its bias where it has that: of dense layers [outputs, inputs].

    Of a checkpoint that was opened without weights, those of its heads are drawn. Raises ModelFileError.
    """
    found: dict[VectorStep, tuple[Floats, Floats | None]] = {}
    for step in steps:
        if isinstance(step, Dense) and step.folder:
            found[step] = dense_weights(checkpoint.path, step)
        elif isinstance(step, (Dense, Centre)):
            found[step] = _of_head(step, checkpoint, declaration) if checkpoint.tensors else _drawn(step)
        elif isinstance(step, Contrast):
            found[step] = _difference(step, checkpoint, declaration, tokenizer), None
    return found


def head_tensors(checkpoint: Checkpoint, declaration: ModelDeclaration) -> dict[str, TensorEntry]:
    """Tensors of heads that stand among the transformer's, by the names that steps have for them."""
    found = {}
    for step in modules_of(checkpoint, declaration).steps:
        if isinstance(step, Centre) or (isinstance(step, Dense) and not step.folder):
            for name in (f"{step.tensor}.weight", f"{step.tensor}.bias"):
                if isinstance(entry := checkpoint.find(name, declaration), TensorEntry):
                    found[name] = entry
    return found


def dense_weights(folder: Path, dense: Dense) -> tuple[Floats, Floats | None]:
    """The matrix [outputs, inputs] of a dense layer in a folder of its own, and its bias. Raises ModelFileError.

    In a GGUF file, it is one of the tensors, and has no bias.
    """
    if is_gguf(folder):
        entry = read_model(folder).tensors[f"{dense.folder}.weight"]
        return read_tensor(entry).float().numpy(), None
    return _read(dense, read_header(folder / dense.folder / "model.safetensors"), f"{dense.folder}/model.safetensors")


def _of_head(
    step: Dense | Centre, checkpoint: Checkpoint, declaration: ModelDeclaration
) -> tuple[Floats, Floats | None]:
    entries = {}
    for name in (f"{step.tensor}.weight", f"{step.tensor}.bias"):
        entry = checkpoint.find(name, declaration)
        if isinstance(entry, TensorEntry):
            entries[name] = entry
        elif entry is not None:
            raise ModelFileError(f"The checkpoint has {name} as rounded numbers, which heads are not read from.")
    return _read(step, entries, "The checkpoint")


def _difference(
    step: Contrast, checkpoint: Checkpoint, declaration: ModelDeclaration, tokenizer: Tokenizer | None
) -> Floats:
    """What of the output head makes the difference of two logits, [1, width]."""
    decoder = declaration.decoder
    if tokenizer is None:
        raise ModelFileError(f"There is no tokenizer, which says what the tokens {step.token} and {step.other} are.")
    ids = [tokenizer.token_id(token) for token in (step.token, step.other)]
    if None in ids:
        raise ModelFileError(f"The tokenizer lacks the token {step.token} or {step.other}, whose logits make scores.")
    if decoder.logit_cap is not None:
        raise ModelFileError("This model bounds its logits; differences of such are not implemented.")
    scale = decoder.logit_scale or 1.0
    if not checkpoint.tensors:
        return np.random.default_rng(0).standard_normal((1, decoder.width), np.float32)
    name = f"{decoder.head or decoder.embedding}.weight"
    entry = checkpoint.find(name, declaration)
    if entry is None:
        raise ModelFileError(f"The checkpoint lacks tensor {name}, whose rows make scores.")
    # Only two rows of a matrix are read that is mapped.
    rows: Floats = read_tensor(entry)[ids].float().numpy()
    return (rows[:1] - rows[1:]) * np.float32(scale)


def _read(step: Dense | Centre, entries: Mapping[str, TensorEntry], file: str) -> tuple[Floats, Floats | None]:
    def floats(name: str, shape: tuple[int, ...]) -> Floats:
        entry = entries.get(name)
        if entry is None or entry.shape != shape:
            shown = "nothing" if entry is None else f"one of the shape {list(entry.shape)}"
            raise ModelFileError(f"{file} must have a tensor {name} of the shape {list(shape)}, not {shown}.")
        values: Floats = read_tensor(entry).float().numpy()
        return values

    weight, bias = _shapes(step)
    return floats(f"{step.tensor}.weight", weight), floats(f"{step.tensor}.bias", bias) if step.biased else None


def _drawn(step: Dense | Centre) -> tuple[Floats, Floats | None]:
    generator = np.random.default_rng(0)
    weight, bias = (generator.standard_normal(shape, np.float32) for shape in _shapes(step))
    return weight, bias if step.biased else None


def _shapes(step: Dense | Centre) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the weight and the bias."""
    if isinstance(step, Dense):
        return (step.outputs, step.inputs), (step.outputs,)
    return (step.size,), (step.size,)
