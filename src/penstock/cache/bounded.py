"""Which slots a sequence gives up whose context is bounded, by its policy and by the attention that slots have got."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.core.kv_policy import WEIGHED, KVPolicy

# `window` computes its sinks again behind what it drops. So it drops this part of what it may at a time; if sinks are
# many, their number, up to the other part.
_WINDOW_PART, _MOST_PART = 8, 2
# A chunk of a prompt takes at most this part of what is not protected: its tokens see the rest.
_CHUNK_PART = 4


@dataclass(slots=True)
class Attention:
    """What attention the slots of a table have got.

    Attributes:
        masses: of each slot, the sum of the weights that queries have given to it.
        queries: how many have seen it and were told of.
        noticed: after how many of the sequence's queries it last had its even share; at first, when it came.
        asked: how many queries were told of.
    """

    masses: list[float] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    noticed: list[int] = field(default_factory=list)
    asked: int = 0

    def reach(self, slots: int) -> None:
        """There are this number of slots now."""
        new = slots - len(self.masses)
        self.masses += [0.0] * new
        self.queries += [0] * new
        self.noticed += [self.asked] * new

    def add(self, masses: Sequence[float], queries: int) -> None:
        """So much was given to each slot by this number of queries."""
        self.reach(len(masses))
        self.asked += queries
        share = sum(masses) / max(1, len(masses))
        for index, mass in enumerate(masses):
            self.masses[index] += mass
            self.queries[index] += queries
            if mass >= share:
                self.noticed[index] = self.asked

    def mean(self, index: int) -> float:
        """What a query gave to a slot; a slot that none has seen comes first."""
        return self.masses[index] / self.queries[index] if self.queries[index] else float("inf")

    def drop(self, indices: Iterable[int]) -> None:
        """These slots, in ascending order, were given up."""
        for index in reversed(list(indices)):
            del self.masses[index], self.queries[index], self.noticed[index]


class Bounded:
    """One sequence's bounded context.

    Args:
        policy: the request's.
        groups: the KV groups that it bounds.
        size: tokens of a slot.
        prompt: tokens of the prompt.

    Attributes:
        dropped: how many slots were given up so far in the group that has given up most.
        sinks_left: how many of the sinks' tokens have to be computed anew, right before the window's first position.
    """

    def __init__(self, policy: KVPolicy, groups: Sequence[int], size: int, prompt: int) -> None:
        self.policy = policy
        self.dropped = 0
        self.sinks_left = 0
        self._attention = {group: Attention() for group in groups}
        self._size = size
        self._prompt = prompt
        self._compressed = False
        self._most = policy.tokens // size
        self._sinks = -(-policy.sinks // size)
        # What is recent begins within a slot.
        self._recent = 0 if policy.kind == "window" else -(-policy.recent // size) + 1

    @property
    def sinks(self) -> int:
        """The first tokens that are never dropped, in whole slots."""
        return self._sinks * self._size

    @property
    def dropped_tokens(self) -> int:
        """How many tokens were given up so far, in the group that has given up most."""
        return self.dropped * self._size

    @property
    def cacheable(self) -> int:
        """Leading tokens that it may have from the prefix cache."""
        match self.policy.kind:
            case "window":
                # Its sinks move, and no other sequence's may.
                return 0
            case "snapkv":
                return max(0, self._prompt - self.policy.recent)
            case _:
                return max(0, self._most - 1) * self._size

    @property
    def most(self) -> int | None:
        """How many tokens it holds at most; None where that is all of its prompt."""
        return None if self.policy.kind == "snapkv" else self._most * self._size

    @property
    def follows_attention(self) -> bool:
        """Whether attention says when it drops something, and not only what."""
        return self.policy.kind == "scissorhands"

    def chunk(self, start: int, count: int) -> int:
        """How many of the next `count` positions, from `start` on, are computed together."""
        if self.policy.kind == "snapkv":
            return min(count, self._prompt - start) if start < self._prompt else count
        free = self._most - self._sinks - self._recent
        return min(count, max(1, free // _CHUNK_PART) * self._size)

    def weighed(self, start: int, count: int) -> int:
        """Of how many of the last of `count` positions from `start` on it has to know the attention."""
        if self.policy.kind not in WEIGHED:
            return 0
        if self.policy.kind != "snapkv":
            return count
        observed = min(start + count, self._prompt) - max(start, self._prompt - self.policy.recent)
        return max(0, observed) if start + count <= self._prompt else 0

    def add(self, group: int, masses: Sequence[float], queries: int) -> None:
        """The last `queries` positions have given so much attention to each slot of a group."""
        self._attention[group].add(masses, queries)

    def to_drop(self, group: int, slots: int, computed: int, wanted: int) -> list[int]:
        """Indices of slots to give up of a group's `slots`, so that it can have `wanted`; ascending.

        `computed` positions have been computed.
        """
        attention = self._attention[group]
        attention.reach(slots)
        needed = wanted - self._most
        if self.policy.kind == "snapkv":
            needed = slots - self._most if computed >= self._prompt and not self._compressed else 0
        free = range(self._sinks, slots - self._recent)
        found: set[int] = set()
        match self.policy.kind:
            case "window" if needed > 0:
                # The last slot may be written in part.
                old = free[:-1]
                part = max(len(old) // _WINDOW_PART, min(self._sinks, len(old) // _MOST_PART))
                found = set(old[: max(needed, part)])
            case "h2o" | "snapkv":
                found = set(sorted(free, key=attention.mean)[: max(0, needed)])
            case "scissorhands":
                found = {each for each in free if attention.asked - attention.noticed[each] >= self.policy.patience}
                found |= set(sorted(free, key=lambda each: attention.noticed[each])[: max(0, needed)])
        return sorted(found)

    def gave_up(self, group: int, indices: Sequence[int], dropped: int) -> None:
        """These slots of a group were given up, so that it has `dropped` fewer in all."""
        self._attention[group].drop(indices)
        self.dropped = max(self.dropped, dropped)
        if indices and self.policy.kind == "window":
            self.sinks_left = self.sinks

    def computed(self, positions: int) -> None:
        """This number of positions has been computed, and what was to be given up of them is."""
        self._compressed |= positions >= self._prompt
