"""Why the prefix cache has no more of a prompt: what else goes on there, what was evicted, what only others have."""

from dataclasses import dataclass, field

from penstock.cache.chain import PrefixChain, PrefixNode, token_at
from penstock.core.facts import Missing

# Evicted blocks that are remembered, and continuations of each block.
MOST_EVICTED = 1 << 16
MOST_BRANCHES = 8


@dataclass(frozen=True, slots=True)
class Miss:
    """The reason; see `PrefixFound` for the rest."""

    missing: Missing
    position: int | None = None
    cached_token: int | None = None
    evicted_seconds: float | None = None


@dataclass(slots=True)
class Misses:
    """What is told of published blocks, so that a miss can be explained. It decides nothing.

    A block's continuations are those of one namespace, since the namespace is in its key. So a client that is told of a
    cached token has sent it, or shares its cache with the client that did.
    """

    _branches: dict[bytes, dict[bytes, PrefixNode]] = field(default_factory=dict)
    _contents: dict[int, int] = field(default_factory=dict)
    _evicted: dict[bytes, float] = field(default_factory=dict)

    def published(self, node: PrefixNode) -> None:
        """A block can be hit from now on."""
        self._evicted.pop(node.key, None)
        self._contents[node.content] = self._contents.get(node.content, 0) + 1
        if node.parent is not None:
            branches = self._branches.setdefault(node.parent.key, {})
            branches[node.key] = node
            if len(branches) > MOST_BRANCHES:
                del branches[next(iter(branches))]

    def withdrawn(self, node: PrefixNode, now: float) -> None:
        """The content of a node was evicted."""
        self._evicted[node.key] = now
        if len(self._evicted) > MOST_EVICTED:
            del self._evicted[next(iter(self._evicted))]
        count = self._contents.get(node.content, 0)
        if count > 1:
            self._contents[node.content] = count - 1
        else:
            self._contents.pop(node.content, None)
        parent = node.parent.key if node.parent is not None else b""
        branches = self._branches.get(parent)
        if branches is not None:
            branches.pop(node.key, None)
            if not branches:
                del self._branches[parent]

    def explain(self, chain: PrefixChain, depth: int, now: float) -> Miss:
        """Why there is no block `depth` of a chain although there are those before it."""
        node, parent = chain.node(depth), chain.nodes[depth]
        if node.key in self._evicted:
            return Miss("evicted", evicted_seconds=max(0.0, now - self._evicted[node.key]))
        branches = self._branches.get(parent.key, {})
        if node.key in branches:
            # It is there for some layers, and gone for those with a window.
            return Miss("evicted")
        nearest = max(branches.values(), key=lambda branch: _common(node, branch), default=None)
        if nearest is not None and (depth or _common(node, nearest)):
            common = _common(node, nearest)
            return Miss("different", depth * chain.block_size + common, token_at(nearest.tokens, common))
        return Miss("other_tenant" if node.content in self._contents else "unseen")


def _common(one: PrefixNode, other: PrefixNode) -> int:
    """How many of the first tokens of two blocks are the same."""
    pairs = enumerate(zip(memoryview(one.tokens).cast("I"), memoryview(other.tokens).cast("I"), strict=False))
    return next(place for place, (mine, theirs) in pairs if mine != theirs)
