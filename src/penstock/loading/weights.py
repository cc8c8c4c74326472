"""Weights in memory: mapped from the files, fused, converted and packed one at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from penstock.kernels.packing import Weight
from penstock.layers.weights import WeightPart, WeightSpec
from penstock.loading.checkpoint import Checkpoint, Declared
from penstock.loading.packing import IN_OWN_PRECISION, Packing, stored_in
from penstock.loading.quantized import Entry
from penstock.loading.tensors import Kept, read_stacked, read_tensor
from penstock.models.declaration import ModelDeclaration

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all), called after each weight."""

_DUMMY_DEVIATION = 0.02
_CPU = torch.device("cpu")


def load_weights(
    checkpoint: Checkpoint,
    declaration: Declared,
    dtype: torch.dtype,
    progress: Progress | None = None,
    *,
    packing: Packing = IN_OWN_PRECISION,
) -> dict[str, Weight]:
    """Every weight of `declaration` by name, in `dtype` and in the form that `packing` gives it.

    A tensor's pages of the file stay mapped as long as a weight reads from them. A packed, fused or converted weight
    has memory of its own and is made before the next is read, so that the model is never in memory twice.
    """
    return {spec.name: weight for spec, weight in stream_weights(checkpoint, declaration, dtype, progress, packing)}


def stream_weights(
    checkpoint: Checkpoint,
    declaration: Declared,
    dtype: torch.dtype,
    progress: Progress | None,
    packing: Packing,
) -> Iterator[tuple[WeightSpec, Weight]]:
    """What `load_weights` returns, one after another, for those who need not have them all in memory."""
    entries = checkpoint.locate(declaration)
    total = sum(entries[part.name].nbytes for weight in declaration.weights for part in weight.parts)
    finish = _Finisher(packing)
    done = 0
    for spec in declaration.weights:
        parts = [entries[part.name] for part in spec.parts]
        if packing.keeps(spec, parts):
            yield spec, finish(spec, partial(read_stacked, parts))
        else:
            # A rank's columns of what is rounded are rounded with all others, so that they are the same integers.
            read, shape = parts, spec.shape
            if packing.rounds_whole(spec):
                read = [replace(part, over=None) for part in parts]
                shape = spec.shape[0], *spec.parts[0].whole[1:]
            yield spec, finish(spec, partial(_assemble, spec, read, stored_in(spec, dtype), shape))
        done += sum(entry.nbytes for entry in parts)
        if progress is not None:
            progress(done, total)


def dummy_weights(
    declaration: ModelDeclaration,
    dtype: torch.dtype,
    seed: int = 0,
    *,
    packing: Packing = IN_OWN_PRECISION,
    device: torch.device = _CPU,
) -> dict[str, Weight]:
    """Random weights for `declaration`: normal with deviation 0.02, norms and biases neutral.

    They are drawn on `device`. A matrix of a tied head is the embedding's. Equal seeds give equal weights there.
    """
    generator = torch.Generator(device).manual_seed(seed)
    embedding = declaration.decoder.embedding_weight
    finish = _Finisher(packing)
    weights: dict[str, Weight] = {}
    tensors: dict[str, Tensor] = {}
    for spec in declaration.weights:
        own = stored_in(spec, dtype)
        if spec.neutral is not None:
            tensor = torch.full(spec.shape, spec.neutral, dtype=own, device=device)
        elif spec.parts == embedding.parts and embedding.name in tensors:
            tensor = tensors[embedding.name]
        else:
            tensor = torch.empty(spec.shape, dtype=own, device=device)
            tensor.normal_(0.0, _DUMMY_DEVIATION, generator=generator)
        if spec.name == embedding.name:
            tensors[spec.name] = tensor
        weights[spec.name] = finish(spec, partial(Tensor.contiguous, tensor))
    return weights


def _assemble(spec: WeightSpec, parts: list[Entry], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The weight with its parts stacked, in `dtype`; the mapped file itself where nothing needs to be changed."""
    if len(parts) == 1:
        # Matrices that files have across are not row by row yet.
        tensor = read_tensor(parts[0]).to(dtype).contiguous().view(shape)
        return tensor.clone() if spec.neutral is not None else tensor
    fused = torch.empty(shape, dtype=dtype)
    first = 0
    for entry in parts:
        tensor = read_tensor(entry)
        last = first + tensor.shape[0]
        fused[first:last] = tensor
        first = last
    return fused


class _Finisher:
    """Packs weights; one that kernels read both as embedding and as head is packed once."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._matrices: dict[tuple[WeightPart, ...], Weight] = {}

    def __call__(self, spec: WeightSpec, assemble: Callable[[], Tensor | Kept]) -> Weight:
        if spec.role == "head" and spec.parts in self._matrices:
            return self._matrices[spec.parts]
        weight = self._packing(spec, assemble())
        if spec.role == "embedding" and self._packing.shares(weight):
            self._matrices[spec.parts] = weight
        return weight
