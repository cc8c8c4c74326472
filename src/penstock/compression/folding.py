"""Where inputs of a block's projections come from, so that they can be made smaller there, and weights larger here."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.compression.projections import Tensors, Unit, units
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Attention, DecoderBlock
from penstock.layers.experts import DenseBesideExperts, MixtureOfExperts
from penstock.layers.mlp import GatedMlp, PlainMlp
from penstock.layers.norm import Norm, RmsNorm
from penstock.layers.weights import WeightSpec

# Gates whose results are in proportion to their ups.
_IN_PROPORTION = ("silu", "gelu_tanh", "gelu")


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of another projection that inputs are in proportion to.

    Attributes:
        weight, bias: of that projection; None: it has no bias.
        rows: which of its rows, in the order in which kernels have them.
    """

    weight: WeightSpec
    bias: WeightSpec | None
    rows: range

    def places(self, spec: WeightSpec) -> dict[str, tuple[Tensor, Tensor]]:
        """Of the weight or the bias: by tensor, the rows in the file, and to which of `rows` these belong."""
        found: dict[str, tuple[list[int], list[int]]] = {}
        first = 0
        for part in spec.parts:
            for row, place in enumerate(part.places, start=first):
                if row in self.rows:
                    rows, which = found.setdefault(part.tensor, ([], []))
                    rows.append(place)
                    which.append(self.rows.index(row))
            first += part.shape[0]
        return {name: (torch.tensor(rows), torch.tensor(which)) for name, (rows, which) in found.items()}


@dataclass(frozen=True, slots=True)
class Fold:
    """Inputs that a norm or another projection makes, and all that reads them.

    Attributes:
        units: what reads them and is rounded; they have the same inputs.
        norm: what they are made by, or
        source: whose rows make them.
        kept: what reads them and is not rounded. It is multiplied by powers of two, which changes none of its digits.
        heads: (heads of the source, heads that read each of them): all that read one must have one factor.
    """

    units: tuple[Unit, ...]
    norm: Norm | None = None
    source: Source | None = None
    kept: tuple[WeightSpec, ...] = ()
    heads: tuple[int, int] = (1, 1)

    @property
    def inputs(self) -> int:
        """How many columns the units have."""
        return self.units[0].inputs

    @property
    def expert(self) -> int | None:
        """Whose it is alone; None: it is not one expert's."""
        return self.units[0].expert if len(self.units) == 1 else None

    def shared(self, of_inputs: Tensor) -> Tensor:
        """[inputs], with the root mean square of those that must have one factor at each of them."""
        kept, times = self.heads
        apart = of_inputs.float().view(kept, times, -1)
        return apart.square().mean(1, keepdim=True).sqrt().expand_as(apart).flatten()


def folds(block: DecoderBlock) -> list[Fold]:
    """Of all projections of a block whose inputs some weight is in proportion to."""
    attention, mlp = block.attention, block.mlp
    first = tuple(units(attention.qkv.weight))
    found = []
    if isinstance(mlp, DenseBesideExperts):
        # What chooses experts reads the residual stream by a norm of its own.
        found += _behind(block.before_attention, first, ())
        found += _behind(mlp.before_dense, tuple(units(mlp.dense.gate_up.weight)), ())
        found += _behind(mlp.before_experts, tuple(units(mlp.experts.gate_up)), ())
    else:
        reads, kept = _first(mlp)
        if block.parallel and block.before_mlp is None:
            first, reads = (*first, *reads), ()
            found += _behind(block.before_attention, first, kept)
        else:
            found += _behind(block.before_attention, first, ())
            found += _behind(block.before_mlp, reads, kept)
    return [*found, *_behind_values(attention), *_behind_ups(block)]


def _behind_values(attention: Attention) -> list[Fold]:
    """Of attention's way back, whose inputs are sums of values; of the way from latent queries, behind their norm."""
    if isinstance(attention, SelfAttention):
        if attention.value_norm:
            # Values are as large as their norm makes them, whatever is divided before it.
            return []
        heads = attention.heads
        rows = range(heads.query_width + heads.kv_width, heads.fused_width)
        source = Source(attention.qkv.weight, attention.qkv.bias_weight, rows)
        shared = (heads.kv_heads, heads.query_heads // heads.kv_heads)
        return [Fold(tuple(units(attention.output.weight)), source=source, heads=shared)]
    if attention.query is None:
        return []
    norm, projection = attention.query
    return _behind(norm, tuple(units(projection.weight)), ())


def _behind_ups(block: DecoderBlock) -> list[Fold]:
    """Of the ways back from hidden layers with gates."""
    mlp, mixture = block.mlp, block.mixture
    found = [] if mixture is None else _of_experts(mixture)
    if isinstance(mlp, DenseBesideExperts):
        gated: GatedMlp | PlainMlp | None = mlp.dense
    else:
        gated = mlp.shared if isinstance(mlp, MixtureOfExperts) else mlp
    if isinstance(gated, GatedMlp) and gated.activation in _IN_PROPORTION:
        source = Source(
            gated.gate_up.weight, gated.gate_up.bias_weight, range(gated.inner_width, gated.gate_up.outputs)
        )
        found.append(Fold(tuple(units(gated.down.weight)), source=source))
    return found


def _first(mlp: GatedMlp | PlainMlp | MixtureOfExperts) -> tuple[tuple[Unit, ...], tuple[WeightSpec, ...]]:
    """What reads the layer's inputs and is rounded, and what is not."""
    if isinstance(mlp, GatedMlp):
        return tuple(units(mlp.gate_up.weight)), ()
    if isinstance(mlp, PlainMlp):
        return tuple(units(mlp.up.weight)), ()
    shared = () if mlp.shared is None else units(mlp.shared.gate_up.weight)
    gating = () if mlp.shared_gating is None else (mlp.shared_gating.weight,)
    return (*shared, *units(mlp.gate_up)), (mlp.router, *gating)


def _behind(norm: Norm | None, reads: tuple[Unit, ...], kept: tuple[WeightSpec, ...]) -> list[Fold]:
    return [] if norm is None else [Fold(reads, norm=norm, kept=kept)]


def _of_experts(mlp: MixtureOfExperts) -> list[Fold]:
    """Each expert's way back, behind its own ups."""
    if mlp.activation not in _IN_PROPORTION:
        return []
    biases = mlp.biases
    found = []
    for unit in units(mlp.down):
        assert unit.expert is not None, "each is an expert's"
        bias = None if biases is None else biases[1].of_expert(unit.expert)
        rows = range(mlp.inner_width, 2 * mlp.inner_width)
        found.append(Fold((unit,), source=Source(mlp.gate_up.of_expert(unit.expert), bias, rows)))
    return found


def fold(tensors: Tensors, which: Fold, factors: Tensor) -> Tensor:
    """Multiply weights by `factors` [inputs], and divide what makes the inputs; returns the factors that were used.

    Biases of projections that make inputs are rounded once more to what they are stored in.

    Args:
        tensors: the block's.
        which: the place.
        factors: above 0, powers of two where something is kept; those of a norm are changed by what its weights are
            rounded by, so that products stay exact.
    """
    if which.norm is not None:
        factors = _divide_norm(tensors, which.norm, factors, exact=bool(which.kept))
    else:
        assert which.source is not None
        kept, times = which.heads
        _divide_source(tensors, which.source, factors.view(kept, times, -1)[:, 0].flatten())
    for name in _names(which):
        tensors.multiply(name, factors)
    return factors


def _names(which: Fold) -> Sequence[str]:
    """Of all tensors that read the inputs."""
    read = (name for unit in which.units for name in unit.tensors)
    return [*read, *(part.tensor for spec in which.kept for part in spec.parts)]


def _divide_norm(tensors: Tensors, norm: Norm, factors: Tensor, *, exact: bool) -> Tensor:
    offset = 1.0 if isinstance(norm, RmsNorm) and norm.unit_offset else 0.0
    weight = tensors.kept(norm.weight.name)
    before = weight.float() + offset
    stored = (before / factors - offset).to(weight.dtype)
    after = stored.float() + offset
    # A norm's 0 makes inputs of 0, whatever their weights are.
    left = (after == 0) | (before == 0) | ~after.isfinite()
    if exact:
        left |= after * factors != before
    tensors.put(norm.weight.name, torch.where(left, weight, stored))
    factors = torch.where(left, 1.0, before / after)
    bias = None if isinstance(norm, RmsNorm) else norm.bias
    if bias is not None:
        added = tensors.kept(bias.name)
        tensors.put(bias.name, (added.float() / factors).to(added.dtype))
    return factors


def _divide_source(tensors: Tensors, source: Source, factors: Tensor) -> None:
    for name, (rows, which) in source.places(source.weight).items():
        tensors.divide(name, rows, factors[which])
    if source.bias is None:
        return
    for name, (rows, which) in source.places(source.bias).items():
        bias = tensors.kept(name).clone()
        bias[rows] = (bias[rows].float() / factors[which]).to(bias.dtype)
        tensors.put(name, bias)
