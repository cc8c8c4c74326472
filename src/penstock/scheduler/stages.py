"""What each plan has of the work where several go through the stages of a pipeline, one behind the other.

A sequence whose newest token is not known stands still, since the plan that yields it is under way. So that all stages
have something to do, plans share the sequences that decode, and a prompt is computed in several of them (Huang et al.,
GPipe, NeurIPS 2019, section 2.3: with m pieces and s stages, a stage computes for m / (m + s - 1) of the time).
"""

from math import ceil

from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.sequence import Sequence

# Pieces of a prompt for each stage, as long as a piece has this number of tokens: with fewer, reading weights for it
# would take most of the time.
_PIECES = 2
_LEAST_TOKENS = 128


class Stages:
    """Divides the work between plans; with one stage, each has all of it."""

    def __init__(self, stages: int, running: OrderedQueue, waiting: WaitingQueue) -> None:
        self._stages = stages
        self._running = running
        self._waiting = waiting

    def budget(self, most: int, decodes: int) -> int:
        """Tokens of the next plan, at most `most`; `decodes` of them are newest tokens of sequences."""
        if self._stages == 1:
            return most
        enough = most * self._stages * _PIECES
        tokens = sum(sequence.pending for sequence in self._running)
        for sequence in self._waiting:
            if tokens >= enough:
                break
            tokens += len(sequence.tokens)
        return min(most, decodes + max(_LEAST_TOKENS, ceil(tokens / (self._stages * _PIECES))))

    def share(self, running: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Those of the running sequences, with the positions that are left of each, that the next plan may have."""
        if self._stages == 1:
            return running
        decoding = sum(pending == 1 or bool(sequence.in_flight) for sequence, pending in running)
        left = ceil(decoding / self._stages)
        found = []
        for sequence, pending in running:
            if pending == 1:
                left -= 1
            if pending != 1 or left >= 0:
                found.append((sequence, pending))
        return found
