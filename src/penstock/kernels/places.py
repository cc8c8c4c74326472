"""What operations know of places: how heads turn with positions, and what scores get by distances, as frozen data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightRef:
    """A handle to a weight; the tensor behind it is looked up when a program is compiled."""

    name: str


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Positions divided by `factor` (Chen et al., Position Interpolation, 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Llama 3.1's scaling: long wavelengths divided by `factor`, short ones kept, a ramp between.

    A wavelength is long above original_context / low_factor and short below original_context / high_factor.
    """

    factor: float
    low_factor: float
    high_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """YaRN (Peng et al., 2023, section 3): slow pairs divided by `factor`, fast ones kept, a ramp over pairs between.

    Pairs that turn `fast` times or more in the original context are fast, those that turn `slow` times or less slow.
    With `truncate`, the ramp begins and ends at whole pairs. Cosines and sines are multiplied by `amplitude`.
    """

    factor: float
    original_context: int
    amplitude: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRope:
    """A divisor for each pair (Ding et al., LongRoPE, 2024); cosines and sines are multiplied by `amplitude`.

    Where no context is longer than `original_context`, the divisors are to be those of `short`: see `up_to`.
    """

    divisors: tuple[float, ...]
    amplitude: float
    short: tuple[float, ...] = ()
    original_context: int = 0

    def up_to(self, context: int) -> "LongRope":
        """The same for contexts of at most `context` tokens; keys that are stored must stay what they are."""
        return self if context > self.original_context else LongRope(self.short, self.amplitude)


@dataclass(frozen=True, slots=True)
class ProportionalRope:
    """The first `turned` / 2 pairs turn, each as fast as if all did, divided by `factor`; the others do not.

    Source: Gemma 4, 2026, whose layers without a window have such heads.
    """

    turned: int
    factor: float = 1.0


RopeScaling = LinearRope | Llama3Rope | YarnRope | LongRope | ProportionalRope


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one kind of layer: pair i of a head turns at theta^(-2i / turned), scaled.

    Pair i is columns i and i + head_dim / 2 of a head. The first `turned` / 2 pairs turn, by default all.
    """

    head_dim: int
    theta: float
    scaling: RopeScaling | None = None
    turned: int | None = None

    @property
    def columns(self) -> int:
        """Columns of a head that turn."""
        return self.head_dim if self.turned is None else self.turned


@dataclass(frozen=True, slots=True)
class Sines:
    """Vectors of positions that are computed: sines in the first half of `width` columns, cosines in the second.

    Column i of a half is of the angle (position + skipped) · 10000^(-i / spread). Source: Vaswani et al., Attention Is
    All You Need, 2017, section 3.5, with columns in another order. Families spread frequencies over half the columns,
    or over one less.

    Attributes:
        count: positions that there are.
        skipped: what the first position counts as.
    """

    width: int
    count: int
    spread: int
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class BucketBias:
    """What scores get by how far a key is from its query: a number for each bucket of distances and query head.

    The weight is [buckets, query heads]. Where keys `behind` the query are seen, half of the buckets are of these. Of
    the buckets of one side, the first half are of one distance each, and others grow up to `farthest`, beyond which all
    distances share the last (Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer, 2020, section 2.1).
    """

    weight: WeightRef
    buckets: int
    farthest: int
    behind: bool = True
