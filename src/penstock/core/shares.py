"""Which part of a model a rank of several has."""

from dataclasses import dataclass, replace
from math import ceil

from penstock.core.errors import ConfigurationError

USUAL_UNIT = 32
# Rows of an embedding that ranks share out: whole panels of the native kernels.
_TOKENS_UNIT = 64


@dataclass(frozen=True, slots=True)
class Share:
    """The items [first, first + count) of `of`, such as rows of a matrix."""

    first: int
    count: int
    of: int

    @property
    def span(self) -> slice:
        """Where they are among all."""
        return slice(self.first, self.first + self.count)

    def times(self, size: int) -> "Share":
        """The same of items that are each `size` smaller ones."""
        return Share(self.first * size, self.count * size, self.of * size)

    def behind(self, items: int, of: int) -> "Share":
        """The same where other items are before them, and there are `of` in all."""
        return replace(self, first=self.first + items, of=of)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which groups of ranks have which experts of a layer.

    Attributes:
        group: the one that this rank is in, of `groups`.
        holders: of each expert the groups that have it, ascending.
    """

    group: int
    groups: int
    holders: tuple[tuple[int, ...], ...]

    @property
    def held(self) -> tuple[int, ...]:
        """The experts that this rank's group has, ascending."""
        return tuple(expert for expert, groups in enumerate(self.holders) if self.group in groups)


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The query heads of a rank, and the heads of keys and values that these read."""

    query: Share
    kv: Share


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """The experts of a layer that each group of ranks has, some of them several groups.

    Attributes:
        layer: the mixture's name.
        of_groups: of each group, ascending.
    """

    layer: str
    of_groups: tuple[tuple[int, ...], ...]

    def copies(self, count: int) -> int:
        """How many there are beside one of each of its `count` experts."""
        return sum(map(len, self.of_groups)) - count


@dataclass(frozen=True, slots=True)
class TensorRank:
    """One of the ranks that each compute a part of every layer.

    Attributes:
        unit: what inner columns are shared out in: those that share a scale stay together.
        experts: how many groups of ranks have whole experts of their own; 1: all have a part of each expert.
        places: where the experts of layers are; of other layers, each group has its share in order.
    """

    rank: int
    size: int
    unit: int = USUAL_UNIT
    experts: int = 1
    places: tuple[ExpertPlaces, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"There is no rank {self.rank} of {self.size}.")
        if self.experts < 1 or self.size % self.experts:
            raise ValueError(f"{self.size} ranks are no {self.experts} groups of one size.")

    @property
    def group(self) -> int:
        """Which group of ranks it is in, whose experts others do not have."""
        return self.rank // (self.size // self.experts)

    @property
    def within(self) -> "TensorRank":
        """Which one it is of that group."""
        size = self.size // self.experts
        return TensorRank(self.rank % size, size, self.unit)

    def placement(self, layer: str, count: int) -> Placement:
        """Where a layer's experts are, `count` in all."""
        named = (places.of_groups for places in self.places if places.layer == layer)
        in_order = [range(count)[share.span] for share in shares(count, self.experts)]
        own = next(named, in_order)
        holders = tuple(tuple(group for group, has in enumerate(own) if expert in has) for expert in range(count))
        return Placement(self.group, self.experts, holders)


@dataclass(frozen=True, slots=True)
class Stripe:
    """One of the ranks that each keep a part of every block of a context: of its equal parts, the `rank`-th.

    The places of a rank's parts follow each other in its own cache, so that a beginning of a context is a beginning
    of what the rank has of it.
    """

    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"There is no rank {self.rank} of {self.size}.")

    def places(self, end: int, block_size: int) -> list[int]:
        """Its places of a context, whose blocks have `block_size`, before `end`."""
        part = block_size // self.size
        return [place for place in range(end) if place % block_size // part == self.rank]

    def rows(self, count: int) -> slice:
        """Its rows of a step that has `count`, which are shared out as well: it computes all but attention of them."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


def shares(of: int, size: int, unit: int = 1) -> tuple[Share, ...]:
    """The items of each of `size` ranks: the first have one unit more.

    Where there are fewer units than ranks, they are shared out in `USUAL_UNIT` items, or one by one.

    Raises ValueError where there are fewer items than ranks.
    """
    if of < size:
        raise ValueError(f"{of} items are too few for {size} ranks.")
    unit = next(step for step in (unit, USUAL_UNIT, 1) if of // step >= size and step <= unit)
    units = ceil(of / unit)
    ends = [min(of, unit * ceil(units * rank / size)) for rank in range(size + 1)]
    return tuple(Share(first, end - first, of) for first, end in zip(ends, ends[1:], strict=False))


def token_shares(vocabulary: int, size: int) -> tuple[Share, ...]:
    """The tokens of each of `size` ranks, whose rows of embedding and head it has."""
    return shares(vocabulary, size, _TOKENS_UNIT)


def head_shares(query_heads: int, kv_heads: int, size: int) -> tuple[HeadShare, ...]:
    """The heads of each rank.

    Where there are as many heads of keys and values as ranks, or more, a rank has some of them and the query heads that
    read them. Where there are fewer, several ranks have the same one, and a part of its query heads each.
    Raises ConfigurationError where there are more ranks than query heads.
    """
    if query_heads < size:
        raise ConfigurationError(
            f"--tensor-parallel-size is {size}, but the model has {query_heads} query heads, and each rank needs one; "
            f"take {query_heads} or fewer."
        )
    readers = query_heads // kv_heads
    if kv_heads >= size:
        return tuple(HeadShare(kv.times(readers), kv) for kv in shares(kv_heads, size))
    found = []
    for head, ranks in enumerate(shares(size, kv_heads)):
        for own in shares(readers, ranks.count):
            query = own.behind(head * readers, query_heads)
            found.append(HeadShare(query, Share(head, 1, kv_heads)))
    return tuple(found)
