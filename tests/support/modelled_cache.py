"""What a naive model knows of the KV cache: its sequences, and the plans that have not committed."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.cache.chain import PrefixNode
from penstock.cache.held import SequenceBlocks
from penstock.cache.pool import BlockPool
from penstock.cache.swap import SwappedBlocks
from penstock.cache.transfers import Batch
from penstock.core.kv import GroupSpec, KVSpec
from support.made_up_model import History, history_of, seen


def short_hash(parent: bytes, tokens: bytes) -> bytes:
    """Two bits: everything collides with something."""
    return bytes([hashlib.blake2b(parent + tokens, digest_size=1).digest()[0] & 3])


@dataclass(eq=False)
class Modelled:
    """A sequence as the model knows it."""

    blocks: SequenceBlocks
    salt: str
    history: History
    computed: int = 0
    last_plan: int | None = None
    epoch: int = 0
    alive: bool = True
    swapped: SwappedBlocks | None = None
    drafting: bool = False
    loading: Batch | None = None
    dropped: set[tuple[int, int]] = field(default_factory=set)
    tables: list[list[tuple[int, ...]]] = field(default_factory=list)

    def dropped_of(self, group: int) -> set[int]:
        """The slots of a group that were given up, by the indices that they had at first."""
        return {index for each, index in self.dropped if each == group}


@dataclass
class Outstanding:
    """A plan that has not committed: what to publish then, the blocks it touches, and its copies within the pool.

    Of one with drafts, the last `wrong` are.
    """

    number: int
    sequence: Modelled
    epoch: int
    end: int
    touched: set[int]
    copies: list[int]
    fails: bool = False
    wrong: int | None = None


def slots_of(sequence: Modelled) -> list[list[int]]:
    """What it has at each index, by group."""
    return [table.slots for table in sequence.blocks.tables]


def hosts_of(swapped: SwappedBlocks) -> list[int]:
    """Host blocks of a copy."""
    return [host for group in swapped.hosts for _, places in group for host in places]


def held_by(pool: BlockPool, sequence: Modelled) -> set[int]:
    """All blocks that it holds."""
    slots = {slot for table in sequence.blocks.tables for slot in table.held()}
    return {block for slot in slots for block in pool.blocks_of(slot)}


def references_of(sequences: Iterable[Modelled]) -> dict[int, int]:
    """How many of the sequences hold each slot that any of them holds."""
    return dict(Counter(slot for each in sequences for table in each.blocks.tables for slot in table.held()))


def needed(spec: GroupSpec, sequence: Modelled, computed: int) -> list[int]:
    """The positions before `computed` whose state the position there reads, or those of its source."""
    if spec.sees.source:
        there = computed and (sequence.blocks.encoded or sequence.swapped)
        return list(range(len(sequence.history.source))) if there else []
    if spec.record_interval is not None:
        return [computed - 1] if computed else []
    return [position for position in seen(spec, computed) if position < computed]


def history_at(spec: KVSpec, node: PrefixNode, group: int) -> list[int]:
    """What the slots of a group hold of the prefix that ends with a node, from its first on."""
    contents: list[bytes] = []
    walk: PrefixNode | None = node
    while walk is not None and walk.parent is not None:
        contents.append(walk.tokens)
        walk = walk.parent
    tokens = [[] if content == b"source" else memoryview(content).cast("I").tolist() for content in contents]
    source = tokens.pop() if spec.source_group is not None else []
    history = history_of(spec, source)
    own = [token for each in reversed(tokens) for token in each]
    if spec.groups[group].sees.source:
        assert own == source[: len(own)]
        return history.slots[group][: len(own)]
    history.extend(own)
    return history.slots[group]
