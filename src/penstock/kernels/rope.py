"""Angles of rotary position embeddings: frequencies and a table of cosines and sines that grows with the context."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.kernels.far_angles import FarAngles
from penstock.kernels.places import LinearRope, Llama3Rope, LongRope, ProportionalRope, RopeSpec, YarnRope

_FIRST_POSITIONS = 2048
# No table of the processor's becomes longer: 64 MiB in float32 for a head of 128 columns. A stream through a window
# goes far beyond its model's context.
LONGEST_TABLE = 1 << 16
# Room for positions beyond that is for at least as many.
_FAR_POSITIONS = 1 << 20


def inverse_frequencies(spec: RopeSpec) -> Tensor:
    """float32 [head_dim / 2] angles per position, in the order of operations that checkpoints were trained with.

    Those of pairs that do not turn are 0. Rounding matters: at position 100,000 one unit in the last place of a
    frequency is a hundredth of a radian.
    """
    exponents = torch.arange(0, spec.columns, 2, dtype=torch.int64).to(torch.float32) / spec.columns
    still = torch.zeros((spec.head_dim - spec.columns) // 2)
    return torch.cat((_scaled(spec.theta**exponents, spec), still))


def cosines_and_sines(spec: RopeSpec, positions: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [positions, head_dim / 2] each."""
    angles = positions[:, None].float() * inverse_frequencies(spec)
    amplitudes = _amplitudes(spec)
    return angles.cos() * amplitudes, angles.sin() * amplitudes


def waves(spec: RopeSpec) -> Tensor:
    """float32 [3, head_dim]: each column's frequency, and what a table's cosine and signed sine are multiplied by."""
    amplitudes = _amplitudes(spec)
    return torch.stack(
        (inverse_frequencies(spec).repeat(2), amplitudes.repeat(2), torch.cat((-amplitudes, amplitudes)))
    )


def _amplitudes(spec: RopeSpec) -> Tensor:
    """float32 [head_dim / 2]: of pairs that do not turn 1."""
    found = torch.ones(spec.head_dim // 2)
    if isinstance(spec.scaling, (YarnRope, LongRope)):
        found[: spec.columns // 2] = spec.scaling.amplitude
    return found


def _scaled(wavelengths: Tensor, spec: RopeSpec) -> Tensor:
    """Frequencies of the pairs that turn, whose wavelengths are those, over 2 π, before they are scaled."""
    match spec.scaling:
        case None:
            return 1.0 / wavelengths
        case LinearRope(factor):
            return (1.0 / wavelengths) / factor
        case Llama3Rope() as scaling:
            return _llama3(1.0 / wavelengths, scaling)
        case YarnRope() as scaling:
            return _yarn(wavelengths, scaling, spec)
        case LongRope(divisors):
            return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * wavelengths)
        case ProportionalRope(turned, factor):
            turning = torch.arange(len(wavelengths)) < turned // 2
            return torch.where(turning, 1.0 / wavelengths / factor, 0.0)


def _yarn(wavelengths: Tensor, scaling: YarnRope, spec: RopeSpec) -> Tensor:
    def pair_that_turns(times: float) -> float:
        rate = scaling.original_context / (times * 2 * math.pi)
        return spec.columns * math.log(rate) / (2 * math.log(spec.theta))

    first, last = pair_that_turns(scaling.fast), pair_that_turns(scaling.slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, spec.columns - 1)
    # A ramp of no length would divide by zero.
    last = last + 0.001 if last == first else last
    ramp = ((torch.arange(len(wavelengths), dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


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
        self._spec = spec
        self._dtype = dtype
        self.entries = self._of(torch.arange(_FIRST_POSITIONS))
        self._elsewhere: dict[torch.device, Tensor] = {}
        self._far: FarAngles | None = None

    def rows(self, positions: Tensor, highest: int) -> tuple[Tensor, Tensor]:
        """(cos, signed sin), each [tokens, 1, head_dim], for `positions`, which are at most `highest`."""
        is_near = highest < LONGEST_TABLE
        rows = self.reaching(highest).index_select(0, positions) if is_near else self._of(positions)
        return rows[:, :1], rows[:, 1:]

    def reaching(self, highest: int) -> Tensor:
        """`entries`, with those of all positions up to `highest`."""
        if highest >= self.entries.shape[0]:
            self.entries = self._of(torch.arange(1 << highest.bit_length()))
        return self.entries

    def spanning(self, spans: Sequence[tuple[int, int]]) -> Tensor:
        """`entries` in float32 for some positions, each span from the first up to the second.

        Where these are beyond a table, that is until the next call only.
        """
        highest = max(end for _, end in spans) - 1
        if highest < LONGEST_TABLE:
            return self.reaching(highest).float()
        if self._far is None or highest >= len(self._far.entries):
            places = max(_FAR_POSITIONS, 1 << highest.bit_length())
            self._far = FarAngles(places, self._spec.head_dim, lambda first, end: self._of(torch.arange(first, end)))
        self._far.reach(spans)
        return self._far.entries

    def on(self, device: torch.device, highest: int) -> Tensor:
        """`reaching(highest)` in a device's memory, where it stays: layers share it."""
        if device not in self._elsewhere:
            self._elsewhere[device] = self.reaching(highest).to(device)
        return self._elsewhere[device]

    def _of(self, positions: Tensor) -> Tensor:
        cos, sin = cosines_and_sines(self._spec, positions)
        return torch.cat((cos, cos, -sin, sin), dim=1).view(len(positions), 2, -1).to(self._dtype)
