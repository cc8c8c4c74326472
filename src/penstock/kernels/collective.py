"""Operations in which ranks meet, and what becomes of what they have brought, as frozen data."""

from dataclasses import dataclass
from typing import ClassVar

from penstock.core.shares import Stripe
from penstock.kernels.places import WeightRef


@dataclass(frozen=True, slots=True)
class AllReduce:
    """x → the sum of the x of all ranks, in their order, in float32.

    Source: Shoeybi et al., Megatron-LM, 2019, section 3.
    """

    op: ClassVar[str] = "all_reduce"


@dataclass(frozen=True, slots=True)
class Gather:
    """x → the columns of all ranks beside each other, [rows, sum of `widths`]; `widths` are of each rank.

    Where it is not `everywhere`, the first rank alone has them, and others nothing that may be read. Where there is a
    `stripe`, a rank is only given the rows of its share (`Stripe.rows`).
    """

    op: ClassVar[str] = "gather"
    widths: tuple[int, ...]
    everywhere: bool = False
    stripe: Stripe | None = None


@dataclass(frozen=True, slots=True)
class ShareRows:
    """x → the rows of this rank's share (`Stripe.rows`)."""

    op: ClassVar[str] = "share_rows"
    stripe: Stripe


@dataclass(frozen=True, slots=True)
class GatherRows:
    """x, the rows of this rank's share → those of all ranks, in every rank."""

    op: ClassVar[str] = "gather_rows"
    stripe: Stripe


@dataclass(frozen=True, slots=True)
class MergeStripes:
    """What ranks have made of their stripes, side by side → [rows, query heads · head_dim]: attention to all of it.

    Of each rank there are softmaxes that are not ended: of each query head the sum of weighted values; then of all
    heads their largest scores, and then the sums of their weights. They are merged in the order of ranks, in float32.
    `sinks` are as attention has them.
    Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al., Flash-Decoding, 2023.
    """

    op: ClassVar[str] = "merge_stripes"
    query_heads: int
    head_dim: int
    ranks: int
    sinks: WeightRef | None = None

    @property
    def part_width(self) -> int:
        """Columns of what a rank has made."""
        return self.query_heads * (self.head_dim + 2)
