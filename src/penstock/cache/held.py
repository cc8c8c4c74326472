"""What one sequence holds in the cache, and what is on its way to it."""

from dataclasses import dataclass, field

from penstock.cache.chain import PrefixChain
from penstock.cache.groups import Table
from penstock.cache.shelves import Reading
from penstock.core.plan import ShelfName


@dataclass(slots=True)
class SequenceBlocks:
    """What one sequence holds.

    Attributes:
        sequence: the one that the tables are for.
        chain: keys of its full slots.
        tables: by group.
        room: positions for which there are slots in every group, so that nothing has to be reserved for them.
        published: number of leading slots that were offered to the prefix index.
        shares: whether the last slot may be shared or published, so that writing needs a look.
        most: how many tokens it holds at most in groups that see everything; None: all that it has.
        private: it takes no part in the prefix cache.
        apart: it publishes nothing more, since its state is not what its tokens alone would give.
        source: keys of its source's slots; None where it has no source.
        encoded: whether these slots hold the source's keys and values, or will once all outstanding plans have been
            carried out.
        unoffered: whether they do and were not offered to the prefix index yet.
    """

    sequence: int
    chain: PrefixChain
    tables: list[Table]
    room: int = 0
    published: int = 0
    shares: bool = False
    most: int | None = None
    private: bool = False
    apart: bool = False
    source: PrefixChain | None = None
    encoded: bool = False
    unoffered: bool = False


@dataclass(slots=True, eq=False)
class Brought:
    """Slots that are on their way from the shelves for a sequence.

    Attributes:
        blocks: the sequence's, which has them in its tables.
        reading: the transfers.
        depths: by the id of each, the depth of its slot.
        hit, reach: how many leading slots the sequence had without them, and has with them.
        origins: for each depth from `hit` on, the shelf that it comes from.
        until: when the sequence has waited for them long enough.
    """

    blocks: SequenceBlocks
    hit: int
    reach: int
    until: float
    origins: list[ShelfName]
    reading: Reading = field(default_factory=Reading)
    depths: dict[int, int] = field(default_factory=dict)
