"""Makes some inputs of a projection larger before its weights are rounded, and smaller where they come from.

AWQ does so for inputs that matter, so that their weights are rounded finely (Lin et al., MLSys 2024); SmoothQuant for
inputs that are small, so that activations can be rounded too (Xiao et al., ICML 2023).
"""

import torch
from torch import Tensor

from penstock.quantization.rtn import Grid, quantize_rtn

# Powers that are tried.
_STEPS = 20
# How far below the mean an input's size counts, so that one that hardly occurs is not made nothing of.
_LEAST = 1e-4


def search_factors(weight: Tensor, sizes: Tensor, hessian: Tensor, grid: Grid, *, powers: bool = False) -> Tensor:
    """What the weights of each input are best multiplied by: float32 [inputs] (AWQ, section 3.2).

    It is the same power, between 0 and 1, of how large each input is: the one with which outputs change least.

    Args:
        weight: [outputs, inputs]; a few hundred outputs tell as much as all.
        sizes: [inputs], how large each is, from 0 on; those that must have one factor have one size.
        hessian: [inputs, inputs] of the inputs.
        grid: what weights are rounded to.
        powers: take the nearest powers of two, which change no digits of a weight.
    """
    some = weight.float()
    floored = sizes.float().clamp(min=_LEAST * float(sizes.mean()) or 1.0)
    least, best = torch.inf, torch.ones_like(floored)
    before = None
    for step in range(_STEPS):
        tried = centred(floored.pow(step / _STEPS))
        if powers:
            tried = powers_of_two(tried)
            # Neighbouring powers are often rounded to the same factors.
            if before is not None and torch.equal(tried, before):
                continue
            before = tried
        change = quantize_rtn(some * tried, grid).numbers().div_(tried).sub_(some)
        error = float(((change @ hessian) * change).sum())
        if error < least:
            least, best = error, tried
    return best


def powers_of_two(factors: Tensor) -> Tensor:
    """The power of two that is nearest to each factor, by its logarithm."""
    return torch.exp2(factors.log2().round())


def migrated(weight: Tensor, largest: Tensor, strength: float = 0.5) -> Tensor:
    """The factors of weights with which inputs and weights are about as hard to round: float32 [inputs].

    SmoothQuant, equation 4: max|x|^α / max|w|^(1 - α), with `strength` as α, `largest` [inputs] as max|x|.
    """
    wide = largest.float().clamp(min=_LEAST * float(largest.mean()) or 1.0)
    heavy = weight.float().abs().amax(0)
    return centred(wide.pow(strength) / heavy.clamp(min=_LEAST * float(heavy.mean()) or 1.0).pow(1 - strength))


def centred(factors: Tensor) -> Tensor:
    """The same, times what makes the largest as far above 1 as the least is below."""
    return factors / (factors.amax() * factors.amin()).sqrt()
