"""How sequences end, wherever they are: one by one, or all beams of a request together."""

from collections.abc import Sequence as Some

from penstock.core.events import KeptTokens, SampleOutput
from penstock.core.plan import Gained
from penstock.scheduler.holding import Holding
from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.sequence import Sequence


class Ends:
    """Takes sequences out of their queues, and out of all books.

    Args:
        sequences, requests: those that have not ended, by their ids.
    """

    def __init__(
        self,
        sequences: dict[int, Sequence],
        requests: dict[int, list[Sequence]],
        waiting: WaitingQueue,
        running: OrderedQueue,
        holding: Holding,
    ) -> None:
        self.sequences = sequences
        self.requests = requests
        self._waiting = waiting
        self._running = running
        self._holding = holding
        # Those that the executor does not know of yet.
        self._ended: list[int] = []

    def take(self) -> tuple[int, ...]:
        """The sequences whose rows have ended since this was asked before."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def finish(self, sequence: Sequence, gained: Gained) -> list[SampleOutput]:
        """End a sequence; returns the events that say so.

        Where it ends before its request has forked, the samples that will never be end with it; beams end together.
        """
        request = sequence.request
        members = self.requests[request.request_id]
        if sequence.beam:
            return self.finish_beams(members, [gained] * request.sampling.n)
        self._end(sequence)
        outputs = [sequence.output(gained)]
        if all(member.finished for member in members):
            del self.requests[request.request_id]
            outputs += [
                SampleOutput(request.request_id, index, Gained([], gained.ending))
                for index in range(len(members), request.sampling.n)
            ]
        return outputs

    def finish_beams(self, members: list[Sequence], found: Some[Gained]) -> list[SampleOutput]:
        """End all beams of a request with what was found, the best first."""
        for member in members:
            self._end(member)
        leader = members[0]
        request = leader.request
        del self.requests[request.request_id]
        cached = None if leader.reported else leader.cached_tokens
        kept = KeptTokens(leader.kept_before, leader.kept_now) if request.keep and found[0].tokens else None
        first = SampleOutput(request.request_id, 0, found[0], cached, kept)
        return [first, *(SampleOutput(request.request_id, index, each) for index, each in enumerate(found[1:], 1))]

    def _end(self, sequence: Sequence) -> None:
        """Out of its queue, blocks given back, its row at the executor ended."""
        if sequence.running:
            self._running.remove(sequence)
        if sequence.admitted:
            # Tokens whose computing has not begun were no service.
            left = min(sequence.prompt_left, sequence.prompt_length - sequence.reserved)
            self._waiting.charge(sequence, prompt=-max(0, left))
        self._waiting.end(sequence)
        sequence.running = False
        sequence.finished = True
        self._holding.end(sequence)
        if sequence.begun:
            self._ended.append(sequence.id)
        del self.sequences[sequence.id]
