"""What the engine yields: outputs of requests, and facts about what it did."""

import msgspec

from penstock.core.plan import Gained, ShelfName


class KeptTokens(msgspec.Struct, frozen=True, array_like=True):
    """What became of the prefixes of its prompt that a request wants kept, in tokens of whole blocks.

    Attributes:
        before: tokens of the longest that were in the cache, kept for an earlier request whose time has not run out.
        now: for each, tokens that are kept from now on: fewer than it has where the share of the pool is used up. The
            last are missing where the sequence lost its blocks at that moment; they are kept once computed again.
    """

    before: int
    now: list[int]


class SampleOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one sample of one request gained. The only kind of output event.

    Attributes:
        request_id, sample_index: whose.
        gained: what it gained. It ends exactly once, on the sample's last event. Scores of the prompt, from its second
            token on, are on events of the first sample up to the one with its first token; a vector is on the last.
        cached_tokens: on a sample's first event, how many prompt tokens came from the prefix cache.
        kept: with the first token of a request that wants prefixes of its prompt kept.
        dropped: of a request with a policy for its context, how many of its tokens have been dropped so far, where they
            are more than were told before.
    """

    request_id: int
    sample_index: int
    gained: Gained
    cached_tokens: int | None = None
    kept: KeptTokens | None = None
    dropped: int = 0


class RequestTimings(msgspec.Struct, frozen=True):
    """Seconds on the monotonic clock of the process that reports them; None where it did not happen."""

    arrived: float
    first_token: float | None
    finished: float | None


class ShelfTotals(msgspec.Struct, frozen=True, array_like=True):
    """What a shelf has, and what became of slots that were to be written to it and read from it.

    Attributes:
        slots: how many it has, as far as is known.
        written, dropped: how many were written, and how many were not since it was too slow, or failed.
        read, lost: how many were read, and how many of those that should have been there could not be.
        kept: how many are kept on request.
    """

    shelf: ShelfName
    slots: int = 0
    written: int = 0
    dropped: int = 0
    read: int = 0
    lost: int = 0
    kept: int = 0

    def after(self, earlier: "ShelfTotals") -> "ShelfTotals":
        """The same with what was counted in earlier runs added."""
        counted = ("written", "dropped", "read", "lost")
        totals = {name: getattr(self, name) + getattr(earlier, name) for name in counted}
        return msgspec.structs.replace(self, **totals)


class LoadSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """State and running totals of the engine after a step.

    Totals begin at 0 in every run of the engine. The client that starts it again adds those of earlier runs, and counts
    the runs.
    """

    step: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    blocks_kept: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    restarts: int = 0
    swap_blocks_total: int = 0
    swap_blocks_used: int = 0
    expert_rows: int = 0
    expert_rows_busiest: int = 0
    shelves: tuple[ShelfTotals, ...] = ()

    def shelf(self, name: ShelfName) -> ShelfTotals:
        """Of one of the shelves; nothing where there is none of this name."""
        return next((each for each in self.shelves if each.shelf == name), ShelfTotals(name))

    def after(self, earlier: "LoadSnapshot") -> "LoadSnapshot":
        """The same with the totals of earlier runs added."""
        totals = {name: getattr(self, name) + getattr(earlier, name) for name in _TOTALS}
        named = dict.fromkeys(each.shelf for each in (*earlier.shelves, *self.shelves))
        shelves = tuple(self.shelf(name).after(earlier.shelf(name)) for name in named)
        return msgspec.structs.replace(self, **totals, shelves=shelves)


_TOTALS = (
    "step",
    "prefill_tokens",
    "decode_tokens",
    "prefix_queried_tokens",
    "prefix_hit_tokens",
    "preemptions",
    "recomputed_tokens",
    "restarts",
    "expert_rows",
    "expert_rows_busiest",
)
