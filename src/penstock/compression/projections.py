"""Which matrices of a block are rounded, and in what pieces: as the files have them, expert by expert."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.layers.decoder import DecoderBlock
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.weights import WeightSpec
from penstock.loading.quantized import Entry
from penstock.loading.tensors import read_tensor


@dataclass(frozen=True, slots=True)
class Unit:
    """What is rounded at a time: a projection, or one expert's part of it.

    Attributes:
        projection: name of the whole weight.
        weight: what of it is rounded here.
        expert: whose that is; None: it is all of the projection.
    """

    projection: str
    weight: WeightSpec
    expert: int | None = None

    @property
    def inputs(self) -> int:
        """How many columns each of its tensors has, as kernels want it."""
        return self.weight.shape[1]

    @property
    def tensors(self) -> dict[str, int]:
        """Its tensors by their names in the checkpoint, with their rows there."""
        return {part.tensor: part.stored[0] for part in self.weight.parts}

    def ordered(self, numbers: Tensor) -> Tensor:
        """Rows of its tensors, one below the other, in the order in which kernels want them."""
        first, begins = 0, dict[str, int]()
        for name, rows in self.tensors.items():
            begins[name] = first
            first += rows
        return numbers[torch.tensor([begins[part.tensor] + row for part in self.weight.parts for row in part.places])]


def matrices(block: DecoderBlock) -> list[WeightSpec]:
    """The projections that are rounded.

    What chooses experts or weighs a shared one stays, and so does the way from latent vectors to keys and values, which
    kernels take apart by head.
    """
    attention, mixture = block.attention, block.mixture
    stays = set[str]()
    if isinstance(attention, LatentAttention):
        stays |= {attention.to_latents.name, attention.to_values.name}
    if mixture is not None and mixture.shared_gating is not None:
        stays.add(mixture.shared_gating.weight.name)
    return [spec for spec in block.weights if spec.role == "linear" and spec.name not in stays]


def kept_modules(block: DecoderBlock) -> list[str]:
    """Names of the block's projections that are not rounded."""
    found = [spec for spec in block.weights if spec.role in ("linear", "router") and len(spec.shape) == 2]
    rounded = {spec.name for spec in matrices(block)}
    parts = (part for spec in found if spec.name not in rounded for part in spec.parts)
    return list(dict.fromkeys(part.tensor.removesuffix(".weight") for part in parts))


def units(spec: WeightSpec) -> list[Unit]:
    """The pieces that a projection is rounded in."""
    if spec.experts == 1:
        return [Unit(spec.name, spec)]
    return [Unit(spec.name, spec.of_expert(expert), expert) for expert in range(spec.experts)]


class Tensors:
    """Weights as the files have them, with what is multiplied and divided in them.

    A matrix is read when it is asked for, so that few are in memory in float32.
    """

    def __init__(self, weights: Iterable[WeightSpec], entries: Mapping[str, Entry]) -> None:
        parts = [part for spec in weights for part in spec.parts]
        self._entries = {part.tensor: replace(entries[part.name], rows=None, cut=None) for part in parts}
        self._changed: dict[str, Tensor] = {}
        self._columns: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}

    def stored(self, name: str) -> Tensor:
        """A tensor as the file has it; the file's own pages where it can be."""
        return read_tensor(self._entries[name])

    def kept(self, name: str) -> Tensor:
        """One that is not rounded, in the type that the file has it in; the file's own pages where it can be.

        Embeddings and tables of tokens can be larger than all blocks together.
        """
        stored = self._changed.get(name)
        if stored is None:
            stored = self.stored(name)
        factors = self._columns.get(name)
        return stored.contiguous() if factors is None else (stored.float() * factors).to(stored.dtype)

    def matrix(self, name: str) -> Tensor:
        """One that is rounded, in float32 [outputs, inputs]."""
        found = self.stored(name).float()
        if name in self._rows:
            found = found / self._rows[name][:, None]
        return found * self._columns[name] if name in self._columns else found

    def of(self, unit: Unit) -> Tensor:
        """All rows of a unit, in float32 [outputs, inputs]."""
        return torch.cat([self.matrix(name) for name in unit.tensors])

    def put(self, name: str, tensor: Tensor) -> None:
        """Have another tensor in the place of a vector."""
        self._changed[name] = tensor

    def multiply(self, name: str, factors: Tensor) -> None:
        """Multiply a matrix's columns by `factors` [inputs]."""
        self._columns[name] = factors * self._columns.get(name, 1.0)

    def divide(self, name: str, rows: Tensor, divisors: Tensor) -> None:
        """Divide some rows of a matrix, by their numbers, each by its own divisor."""
        spread = self._rows.setdefault(name, torch.ones(self._entries[name].shape[0]))
        spread[rows] = spread[rows] * divisors
