"""Rounds a block's projections by a recipe, to the tensors that are stored for them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.compression.folding import fold, folds
from penstock.core.errors import ConfigurationError, ModelFileError
from penstock.layers.decoder import DecoderBlock
from penstock.layers.weights import WeightSpec
from penstock.loading.quantized import Entry
from penstock.loading.tensors import Integers, read_tensor
from penstock.quantization.awq import migrated, search_factors
from penstock.quantization.gguf_encoding import of_integers, of_numbers
from penstock.quantization.gptq import Hessian, output_error, quantize_gptq
from penstock.quantization.grouped import Grouped
from penstock.quantization.layouts import LAYOUTS, byte_tensors
from penstock.quantization.recipe import BYTES, FOLDING, GGUF_TYPES, K_TYPES, Recipe
from penstock.quantization.rtn import Grid, quantize_rtn
from penstock.quantization.scaled import RowBytes, row_bytes


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What one projection is given.

    Attributes:
        hessian: [inputs, inputs] as `Hessian.mean` gives it.
        largest: [inputs], the largest magnitudes.
    """

    hessian: Tensor
    largest: Tensor

    def divided(self, factors: Tensor) -> "Calibrated":
        """The same of inputs that are divided by `factors` [inputs]."""
        return Calibrated(self.hessian / factors / factors[:, None], self.largest / factors)


class Watch:
    """Collects what a block's projections are given, by name; give `add` to a `BlockRunner`."""

    def __init__(self) -> None:
        self._found: dict[str, Hessian] = {}

    def add(self, name: str, x: Tensor) -> None:
        """What a projection is given, [rows, inputs]."""
        if name not in self._found:
            self._found[name] = Hessian(x.shape[1])
        self._found[name].add(x)

    def calibrated(self) -> dict[str, Calibrated]:
        """By projection what its inputs are like. Raises ConfigurationError where these are not all finite."""
        calibrated: dict[str, Calibrated] = {}
        for name, seen in self._found.items():
            try:
                calibrated[name] = Calibrated(seen.mean(), seen.largest)
            except ValueError as error:
                raise ConfigurationError(f"{name} cannot be calibrated: {error}") from None
        return calibrated


def matrices(block: DecoderBlock) -> list[WeightSpec]:
    """The projections that are rounded."""
    return [spec for spec in block.weights if spec.role == "linear"]


def grid_of(spec: WeightSpec, recipe: Recipe, widths: Mapping[str, int]) -> Grid:
    """What a projection is rounded to."""
    if recipe.in_gguf and (kind := recipe.blocks_of(spec.shape[1])) != recipe.layout:
        return GGUF_TYPES[kind]
    return replace(recipe.grid, bits=widths[spec.name]) if spec.name in widths else recipe.grid


def quantized_block(
    block: DecoderBlock,
    entries: Mapping[str, Entry],
    recipe: Recipe,
    widths: Mapping[str, int],
    seen: Mapping[str, Calibrated],
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors that are stored for a block, and by projection what it has changed, of its own mean square.

    Args:
        block: its declaration.
        entries: where its weights are.
        recipe: what is done.
        widths: bits of projections whose width is not the recipe's.
        seen: by projection, what it is given; empty where nothing is calibrated.

    Raises ConfigurationError, ModelFileError naming the projection that cannot be rounded.
    """
    tensors: dict[str, Tensor] = {}
    projections = matrices(block)
    for spec in block.weights:
        for part in spec.parts:
            stored = read_tensor(entries[part.name])
            tensors[part.name] = stored.float() if spec in projections else stored.contiguous().clone()
    for spec in projections:
        if not all(bool(tensors[part.name].isfinite().all()) for part in spec.parts):
            raise ModelFileError(f"{spec.name} has values that are not finite; there is nothing to round them to.")
    if recipe.method in FOLDING:
        seen = _folded(block, tensors, recipe, seen)
    errors: dict[str, float] = {}
    for spec in projections:
        weight = torch.cat([tensors.pop(part.tensor) for part in spec.parts])
        grid, inputs = grid_of(spec, recipe, widths), seen.get(spec.name)
        found = rounded(spec, weight, grid, recipe, inputs)
        errors[spec.name] = _change(weight, found.numbers(), inputs)
        first = 0
        for part in spec.parts:
            matrix, module = found.rows(slice(first, first + part.shape[0])), part.tensor.removesuffix(".weight")
            tensors |= _stored(module, matrix, grid, recipe)
            first += part.shape[0]
    return tensors, errors


def _stored(module: str, matrix: Integers, grid: Grid, recipe: Recipe) -> dict[str, Tensor]:
    """The tensors that a projection is stored as."""
    if isinstance(matrix, RowBytes):
        return byte_tensors(module, matrix)
    if recipe.in_gguf:
        blocks = (
            of_integers(matrix, recipe.blocks_of(matrix.integers.shape[1])) if isinstance(matrix, Grouped) else matrix
        )
        return {f"{module}.weight": blocks.raw.contiguous()}
    assert isinstance(matrix, Grouped), "only GGUF files have other blocks"
    return LAYOUTS[recipe.layout].tensors(module, matrix, grid)


def rounded(spec: WeightSpec, weight: Tensor, grid: Grid, recipe: Recipe, inputs: Calibrated | None) -> Integers:
    """A projection's weight [outputs, inputs] by the recipe's method. Raises ConfigurationError where that fails."""
    if recipe.method in BYTES:
        return row_bytes(weight, BYTES[recipe.method])
    if recipe.blocks_of(weight.shape[1]) in K_TYPES:
        return of_numbers(weight, recipe.layout)
    if inputs is None or recipe.method == "awq":
        return quantize_rtn(weight, grid, None if inputs is None else inputs.hessian)
    try:
        return quantize_gptq(weight, inputs.hessian, grid, damping=recipe.damping, act_order=recipe.act_order)
    except ValueError as error:
        raise ConfigurationError(f"{spec.name} cannot be rounded by GPTQ: {error}") from None


def _change(weight: Tensor, found: Tensor, inputs: Calibrated | None) -> float:
    """Of outputs where something is known of inputs, else of weights."""
    if inputs is None:
        return float((found - weight).square().sum() / weight.square().sum())
    return output_error(weight, found, inputs.hessian)


def _folded(
    block: DecoderBlock, tensors: dict[str, Tensor], recipe: Recipe, seen: Mapping[str, Calibrated]
) -> dict[str, Calibrated]:
    """Multiply and divide in `tensors`; returns what projections are given then."""
    found = dict(seen)
    chosen: list[Tensor] = []
    places = folds(block)
    # All factors are searched with the weights as they were: what one place divides is another's output.
    for place in places:
        spec = place.projection.weight
        weight, inputs = torch.cat([tensors[part.name] for part in spec.parts]), seen[spec.name]
        if recipe.method == "awq":
            sizes = place.shared(inputs.hessian.diagonal().sqrt())
            chosen.append(search_factors(weight, sizes, inputs.hessian, recipe.grid))
        else:
            chosen.append(place.shared(migrated(weight, inputs.largest)))
    for place, factors in zip(places, chosen, strict=True):
        name = place.projection.weight.name
        found[name] = found[name].divided(fold(tensors, place, factors))
    return found
