"""Where inputs of a block's projections come from, so that they can be made smaller there, and weights larger here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.layers.decoder import DecoderBlock
from penstock.layers.linear import Linear
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm


@dataclass(frozen=True, slots=True)
class Fold:
    """A projection whose inputs are a norm's or another projection's.

    Attributes:
        projection: the weights that are multiplied.
        norm: what its inputs are made by, or
        source, part: which part of another projection makes them.
        heads: (heads of the source, heads that read each of them): all that read one must have one factor.
    """

    projection: Linear
    norm: RmsNorm | None = None
    source: Linear | None = None
    part: int = 0
    heads: tuple[int, int] = (1, 1)

    def shared(self, of_inputs: Tensor) -> Tensor:
        """[inputs], with the root mean square of those that must have one factor at each of them."""
        kept, times = self.heads
        apart = of_inputs.float().view(kept, times, -1)
        return apart.square().mean(1, keepdim=True).sqrt().expand_as(apart).flatten()


def folds(block: DecoderBlock) -> list[Fold]:
    """Of all projections of a block whose inputs some weight is in proportion to."""
    attention, mlp = block.attention, block.mlp
    assert isinstance(mlp, GatedMlp), "experts are not rounded here"
    before_attention, before_mlp = block.before_attention, block.before_mlp
    assert isinstance(before_attention, RmsNorm | None), "layer norms are not folded into"
    assert isinstance(before_mlp, RmsNorm | None), "nor here"
    kept = attention.heads.kv_heads
    found = [
        Fold(attention.output, source=attention.qkv, part=2, heads=(kept, attention.heads.query_heads // kept)),
        Fold(mlp.gate_up, norm=before_mlp),
        Fold(mlp.down, source=mlp.gate_up, part=1),
    ]
    if before_attention is not None:
        found.append(Fold(attention.qkv, norm=before_attention))
    return found


def fold(tensors: dict[str, Tensor], which: Fold, factors: Tensor) -> Tensor:
    """Multiply weights by `factors` [inputs], and divide what makes the inputs; returns the factors that were used.

    Biases of projections that make inputs are rounded once more to what they are stored in.

    Args:
        tensors: the block's, by the names of the checkpoint; matrices are float32, others what they are stored as.
        which: the place.
        factors: above 0; those of a norm are changed by what its weights are rounded by, so that products stay exact.
    """
    if which.norm is not None:
        name, offset = which.norm.weight.name, 1.0 if which.norm.unit_offset else 0.0
        before = tensors[name].float() + offset
        stored = (before / factors - offset).to(tensors[name].dtype)
        after = stored.float() + offset
        # A norm's 0 makes inputs of 0, whatever their weights are.
        left = (after == 0) | (before == 0) | ~after.isfinite()
        tensors[name] = torch.where(left, tensors[name], stored)
        factors = torch.where(left, 1.0, before / after)
    else:
        assert which.source is not None
        kept, times = which.heads
        of_source = factors.view(kept, times, -1)[:, 0].flatten()
        name = which.source.parts[which.part][0]
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"] / of_source[:, None]
        if which.source.bias:
            bias = tensors[f"{name}.bias"]
            tensors[f"{name}.bias"] = (bias.float() / of_source).to(bias.dtype)
    for part, _ in which.projection.parts:
        tensors[f"{part}.weight"] = tensors[f"{part}.weight"] * factors
    return factors
