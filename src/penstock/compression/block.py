"""Rounds a block's projections by a recipe, to the tensors that are stored for them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.compression.folding import Fold, fold, folds
from penstock.compression.inputs import Calibrated, Inputs
from penstock.compression.projections import Tensors, Unit, matrices, units
from penstock.core.errors import ConfigurationError, ModelFileError
from penstock.layers.decoder import DecoderBlock
from penstock.loading.quantized import Entry
from penstock.loading.tensors import Integers
from penstock.quantization.awq import migrated, powers_of_two, search_factors
from penstock.quantization.gguf_encoding import of_integers, of_numbers
from penstock.quantization.gptq import energy, quantize_gptq
from penstock.quantization.grouped import Grouped
from penstock.quantization.layouts import LAYOUTS, byte_tensors
from penstock.quantization.recipe import BYTES, FOLDING, GGUF_TYPES, K_TYPES, Recipe
from penstock.quantization.rtn import Grid, quantize_rtn
from penstock.quantization.scaled import RowBytes, row_bytes

# Outputs that a search of factors looks at: its cost is in their number, what it finds hardly is.
_OUTPUTS = 512


@dataclass(slots=True)
class _Change:
    """Sums over a projection's units: of the change by rounding, and of what it is a part of."""

    change: float = 0.0
    whole: float = 0.0


def grid_of(projection: str, inputs: int, recipe: Recipe, widths: Mapping[str, int]) -> Grid:
    """What a projection is rounded to."""
    if recipe.in_gguf and (kind := recipe.blocks_of(inputs)) != recipe.layout:
        return GGUF_TYPES[kind]
    return replace(recipe.grid, bits=widths[projection]) if projection in widths else recipe.grid


def quantized_block(
    block: DecoderBlock, entries: Mapping[str, Entry], recipe: Recipe, widths: Mapping[str, int], inputs: Inputs
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors that are stored for a block, and by projection what it has changed, of its own mean square.

    Args:
        block: its declaration.
        entries: where its weights are.
        recipe: what is done.
        widths: bits of projections whose width is not the recipe's.
        inputs: what its projections are given.

    Raises ConfigurationError, ModelFileError naming the projection that cannot be rounded.
    """
    tensors = Tensors(block.weights, entries)
    places = folds(block) if recipe.method in FOLDING else []
    _fold_all([place for place in places if place.expert is None], tensors, recipe, inputs)
    found: dict[str, Tensor] = {}
    changes = {spec.name: _Change() for spec in matrices(block)}
    for together in _chapters(block):
        own = [place for place in places if place.expert is not None and place.units[0] in together]
        _fold_all(own, tensors, recipe, inputs)
        for unit in together:
            found |= _unit(
                unit, tensors, grid_of(unit.projection, unit.inputs, recipe, widths), recipe, inputs, changes
            )
    rounded_names = {name for spec in matrices(block) for unit in units(spec) for name in unit.tensors}
    # Norms and biases come last, since experts, too, divide some of them.
    names = dict.fromkeys(part.tensor for spec in block.weights for part in spec.parts)
    found |= {name: tensors.kept(name) for name in names if name not in rounded_names}
    return found, {name: each.change / each.whole if each.whole else 0.0 for name, each in changes.items()}


def _chapters(block: DecoderBlock) -> Iterator[list[Unit]]:
    """What is rounded before the next is looked at: each projection of all rows, and all of an expert's."""
    specs = matrices(block)
    yield from (units(spec) for spec in specs if spec.experts == 1)
    yield from (list(each) for each in zip(*(units(spec) for spec in specs if spec.experts > 1), strict=True))


def _unit(
    unit: Unit, tensors: Tensors, grid: Grid, recipe: Recipe, inputs: Inputs, changes: Mapping[str, _Change]
) -> dict[str, Tensor]:
    """What a unit is stored as; adds to `changes` what it has changed."""
    weight = tensors.of(unit)
    if not bool(weight.isfinite().all()):
        raise ModelFileError(f"{unit.weight.name} has values that are not finite; there is nothing to round them to.")
    matrix = rounded(unit, weight, grid, recipe, inputs.enough(unit))
    _add_change(changes[unit.projection], weight, matrix.numbers(), inputs.seen(unit), calibrated=recipe.calibrated)
    stored: dict[str, Tensor] = {}
    first = 0
    for name, rows in unit.tensors.items():
        part = matrix.rows(slice(first, first + rows))
        stored |= _stored(name.removesuffix(".weight"), part, grid, recipe)
        first += rows
    return stored


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


def rounded(unit: Unit, weight: Tensor, grid: Grid, recipe: Recipe, given: Calibrated | None) -> Integers:
    """A unit's weight [outputs, inputs] by the recipe's method, or to the nearest where nothing is known of its inputs.

    Raises ConfigurationError where that fails.
    """
    if recipe.method in BYTES:
        return row_bytes(weight, BYTES[recipe.method])
    if recipe.blocks_of(weight.shape[1]) in K_TYPES:
        return of_numbers(weight, recipe.layout)
    if given is None or recipe.method == "awq":
        return quantize_rtn(weight, grid, None if given is None else given.hessian)
    try:
        return quantize_gptq(weight, given.hessian, grid, damping=recipe.damping, act_order=recipe.act_order)
    except ValueError as error:
        raise ConfigurationError(f"{unit.weight.name} cannot be rounded by GPTQ: {error}") from None


def _add_change(sums: _Change, weight: Tensor, found: Tensor, given: Calibrated | None, *, calibrated: bool) -> None:
    """Of outputs for what was seen of inputs; of weights where nothing is calibrated."""
    if not calibrated:
        sums.change += float((found - weight).square().sum())
        sums.whole += float(weight.square().sum())
    elif given is not None:
        sums.change += given.rows * energy(found - weight, given.hessian)
        sums.whole += given.rows * energy(weight, given.hessian)


def _fold_all(places: list[Fold], tensors: Tensors, recipe: Recipe, inputs: Inputs) -> None:
    """Multiply and divide in `tensors`, and in what projections are given."""
    # All factors are searched with the weights as they were: what one place divides is another's output.
    chosen = [_factors(place, tensors, recipe, inputs) for place in places]
    for place, factors in zip(places, chosen, strict=True):
        if factors is None:
            continue
        used = fold(tensors, place, factors)
        for unit in place.units:
            inputs.divide(unit, used)


def _factors(place: Fold, tensors: Tensors, recipe: Recipe, inputs: Inputs) -> Tensor | None:
    """What is best multiplied by at a place; None where too little is known of its inputs."""
    given = inputs.together(place.units)
    if given is None:
        return None
    if recipe.method == "awq":
        sizes = place.shared(given.hessian.diagonal().sqrt())
        some = _sample(place, tensors)
        return search_factors(some, sizes, given.hessian, recipe.grid, powers=bool(place.kept))
    # The largest weights of each input say all that is needed of the matrices.
    largest = torch.stack([tensors.matrix(name).abs().amax(0) for unit in place.units for name in unit.tensors])
    factors = place.shared(migrated(largest, given.largest))
    return powers_of_two(factors) if place.kept else factors


def _sample(place: Fold, tensors: Tensors) -> Tensor:
    """Some rows of all that reads the inputs, evenly spread, in float32."""
    sizes = [(name, rows) for unit in place.units for name, rows in unit.tensors.items()]
    step = -(-sum(rows for _, rows in sizes) // _OUTPUTS)
    found, first = [], 0
    for name, rows in sizes:
        found.append(tensors.stored(name)[first::step].float())
        first = (first - rows) % step
    return torch.cat(found)
