"""What a model loses by the rounding of each projection alone, measured on texts."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from penstock.compression.block import rounded
from penstock.compression.calibration import BlockRunner
from penstock.compression.inputs import Inputs, Watch
from penstock.compression.projections import Tensors, matrices, units
from penstock.kernels.packing import Weight
from penstock.layers.weights import WeightSpec
from penstock.loading.packing import IN_OWN_PRECISION
from penstock.loading.quantized import Entry
from penstock.quantization.recipe import Recipe
from penstock.quantization.widths import Sensitivity

# Texts that are measured on: which projection loses most is seen on few.
TEXTS = 4


def sensitivities(
    runner: BlockRunner,
    weights: dict[str, Weight],
    entries: Mapping[str, Entry],
    recipe: Recipe,
    texts: Sequence[list[int]],
    known: Collection[str] = (),
) -> Iterator[tuple[str, Sensitivity]]:
    """By projection, the mean KL divergence from the model as it is when it alone is rounded to each width.

    The whole model is in memory, and computes the first few texts once for each projection and width.

    Args:
        runner: for the texts' lengths.
        weights: the model's, in its own precision.
        entries: where they are in the files.
        recipe: what is made.
        texts: token ids, which all show what projections are given; the first few are compared.
        known: projections that are left out, since they have been measured.
    """
    states = runner.embed(weights, texts)
    some = list(texts[:TEXTS])
    expected = [each.log_softmax(1) for each in runner.logits(weights, some)]
    for block in runner.declaration.decoder.blocks:
        left = [spec for spec in matrices(block) if spec.name not in known]
        if not left:
            states = list(runner.run(block, weights, texts, states))
            continue
        watch = Watch([spec.name for spec in left], runner.dtype)
        states = list(runner.run(block, weights, texts, states, watch))
        inputs = Inputs(block, entries, watch, recipe.rows_for)
        for spec in left:
            losses: dict[int, float] = {}
            for bits, numbers in _rounded(spec, Tensors([spec], entries), recipe, inputs, runner.dtype).items():
                changed = {**weights, spec.name: IN_OWN_PRECISION(spec, numbers)}
                losses[bits] = _divergence(expected, runner.logits(changed, some))
            yield spec.name, Sensitivity(spec.size, losses)


def _rounded(
    spec: WeightSpec, tensors: Tensors, recipe: Recipe, inputs: Inputs, dtype: torch.dtype
) -> dict[int, Tensor]:
    """A projection's numbers [outputs, inputs] by width; what is given to an expert is made once for all of these."""
    found: dict[int, list[Tensor]] = {bits: [] for bits in recipe.widths}
    for unit in units(spec):
        weight, given = tensors.of(unit), inputs.enough(unit)
        for bits, numbers in found.items():
            matrix = rounded(unit, weight, replace(recipe.grid, bits=bits), recipe, given)
            numbers.append(unit.ordered(matrix.numbers().to(dtype)))
    return {bits: torch.cat(numbers) for bits, numbers in found.items()}


def _divergence(expected: Sequence[Tensor], found: Iterable[Tensor]) -> float:
    """Mean KL divergence of texts' logits from log probabilities, in nats; infinite where logits are not numbers."""
    total, rows = 0.0, 0
    for base, logits in zip(expected, found, strict=True):
        total += float((base.exp() * (base - logits.log_softmax(1))).sum())
        rows += base.shape[0]
    return total / rows if math.isfinite(total) else math.inf
