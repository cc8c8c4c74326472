"""What the scheduler notes of a plan while it makes it; the facts of its step, but for how long it takes."""

from msgspec.structs import replace

from penstock.cache.manager import KVCache
from penstock.core.facts import Admission, Chunk, StepFacts, Wait
from penstock.core.plan import Place, Transfer
from penstock.scheduler.holding import Held
from penstock.scheduler.sequence import Sequence


class Notes:
    """Of one plan.

    Attributes:
        held: what keeps the first waiting sequence, as far as it has been found out.
    """

    def __init__(self) -> None:
        self.held: Wait | None = None
        self._admissions: list[Admission] = []
        self._chunks: list[Chunk] = []
        self._preempted: list[int] = []
        self._not_swapped = 0
        self._rows = 0
        self._decodes = 0
        self._chunk_tokens = 0
        self._sampled = 0
        self._context = 0

    def admission(self, sequence: Sequence, cache: KVCache, held: Held) -> None:
        """It comes into the batch with what it holds."""
        source = len(sequence.request.source)
        if source:
            found = cache.sources.found(sequence.blocks, source)
        else:
            found = cache.explain_hit(sequence.blocks, sequence.tokens, sequence.cacheable, held.cached)
            if held.tiers:
                found = replace(found, tiers=held.tiers)
        request_id, again = sequence.request.request_id, sequence.cached_tokens is not None
        self._admissions.append(Admission(request_id, sequence.sample_index, again, found, held.swapped))

    def preemption(self, sequence: Sequence, *, refused: bool) -> None:
        """It loses its blocks; `refused`: they could not be swapped out, since there was no room."""
        self._preempted.append(sequence.request.request_id)
        self._not_swapped += refused

    def row(self, sequence: Sequence, count: int, sampled: int, encodes: int = 0) -> None:
        """Its next `count` positions are computed, and `sampled` sequences get a token from the last.

        `encodes` tokens of its source are computed before.
        """
        self._rows += 1
        self._sampled += sampled
        count += encodes
        if count == 1 and sequence.reserved >= sequence.prompt_length:
            self._decodes += 1
            self._context += sequence.reserved - sequence.dropped_now + 1
        else:
            self._chunk_tokens += count
            self._chunks.append(Chunk(sequence.request.request_id, sequence.sample_index, sequence.reserved, count))

    def again(self, sequence: Sequence, start: int, count: int) -> None:
        """Positions that had been computed are computed once more, for the sake of later ones."""
        self._rows += 1
        self._chunk_tokens += count
        self._chunks.append(Chunk(sequence.request.request_id, sequence.sample_index, start, count))

    def facts(self, budget: int, transfers: tuple[Transfer, ...], *, waiting: bool) -> StepFacts:
        """The facts of a step that had `budget` tokens and began these transfers.

        `waiting`: whether a sequence still waits.
        """
        return StepFacts(
            budget=budget,
            rows=self._rows,
            decodes=self._decodes,
            chunk_tokens=self._chunk_tokens,
            sampled=self._sampled,
            context=self._context,
            held=self.held if waiting else None,
            admissions=self._admissions,
            chunks=self._chunks,
            preempted=self._preempted,
            swapped_out=sum(len(each.target.blocks) for each in transfers if _swaps(each.target)),
            swapped_in=sum(len(each.source.blocks) for each in transfers if _swaps(each.source)),
            not_swapped=self._not_swapped,
        )


def _swaps(place: Place) -> bool:
    """Whether something of a preempted sequence is there, and not a published slot."""
    return place.store == "host" and not place.key
