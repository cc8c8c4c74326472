"""Angles of rotary position embeddings: frequencies and a table of cosines and sines that grows with the context."""

import math

import torch
from torch import Tensor

from penstock.kernels.signature import LinearRope, Llama3Rope, RopeSpec

_FIRST_POSITIONS = 2048


def inverse_frequencies(spec: RopeSpec) -> Tensor:
    """float32 [head_dim / 2] angles per position, in the order of operations that checkpoints were trained with.

    Rounding matters: at position 100,000 one unit in the last place of a frequency is a hundredth of a radian.
    """
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).to(torch.float32) / spec.head_dim
    frequencies = 1.0 / (spec.theta**exponents)
    match spec.scaling:
        case None:
            return frequencies
        case LinearRope(factor):
            return frequencies / factor
        case Llama3Rope() as scaling:
            return _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: Llama3Rope) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    longest = scaling.original_context / scaling.low_factor
    shortest = scaling.original_context / scaling.high_factor
    ramp = (scaling.original_context / wavelengths - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    between = (1 - ramp) * frequencies / scaling.factor + ramp * frequencies
    scaled = torch.where(wavelengths > longest, frequencies / scaling.factor, between)
    return torch.where(wavelengths < shortest, frequencies, scaled)


class RopeTable:
    """Cosine and signed sine of every position so far needed, in the model's type; doubles when it is outgrown.

    `entries` is [positions, 2, head_dim]: row 0 is (cos, cos), row 1 is (-sin, sin), so that a head h becomes
    h · cos + swap(h) · sin with the halves of h swapped.
    """

    def __init__(self, spec: RopeSpec, dtype: torch.dtype) -> None:
        self._frequencies = inverse_frequencies(spec)
        self._dtype = dtype
        self.entries = self._build(_FIRST_POSITIONS)
        self._elsewhere: dict[torch.device, Tensor] = {}

    def rows(self, positions: Tensor, highest: int) -> tuple[Tensor, Tensor]:
        """(cos, signed sin), each [tokens, 1, head_dim], for `positions`, which are at most `highest`."""
        rows = self.reaching(highest).index_select(0, positions)
        return rows[:, :1], rows[:, 1:]

    def reaching(self, highest: int) -> Tensor:
        """`entries`, with those of all positions up to `highest`."""
        if highest >= self.entries.shape[0]:
            self.entries = self._build(1 << highest.bit_length())
        return self.entries

    def on(self, device: torch.device, highest: int) -> Tensor:
        """`reaching(highest)` in a device's memory, where it stays: layers share it."""
        if device not in self._elsewhere:
            self._elsewhere[device] = self.reaching(highest).to(device)
        return self._elsewhere[device]

    def _build(self, positions: int) -> Tensor:
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos, -sin, sin), dim=1).view(positions, 2, -1).to(self._dtype)
