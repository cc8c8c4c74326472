"""Beams: sequences of one request that share their prompt, and go on together in new places once all are computed.

A beam whose newest position is computed stands still until that is so for the others of its request. Then each goes on
where the search says: it continues one of them, whose blocks it shares from then on. The first that writes into a
shared block gets a copy, as with all forks.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Some

from penstock.cache.held import SequenceBlocks
from penstock.cache.manager import KVCache
from penstock.core.config import SchedulerConfig
from penstock.core.events import SampleOutput
from penstock.core.plan import BeamStep, Gained
from penstock.scheduler.bounding import Bounding
from penstock.scheduler.ends import Ends
from penstock.scheduler.holding import Holding
from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.totals import Totals


class Beams:
    """Puts beams where searches say."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        waiting: WaitingQueue,
        running: OrderedQueue,
        holding: Holding,
        ends: Ends,
        bounding: Bounding,
        totals: Totals,
    ) -> None:
        self._config = config
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._holding = holding
        self._ends = ends
        self._bounding = bounding
        self._totals = totals

    def block_each_other(self) -> bool:
        """Whether beams that run wait for others of their requests, which wait for what running sequences hold.

        Nothing is being computed. If nothing is on its way either, the last sequence that runs has to make way.
        """
        if not self._waiting or self._cache.transfers.any_work:
            return False
        return any(sequence.stands_still for sequence in self._running)

    def commit(self, steps: Iterable[BeamStep]) -> list[SampleOutput]:
        """Take in how the beams of some requests go on, or what was found for them; returns the events that say so.

        Of a request that has ended since the step was planned, nothing is taken in.
        """
        outputs: list[SampleOutput] = []
        for step in steps:
            leader = self._ends.sequences.get(step.leader)
            if leader is None:
                continue
            members = self._ends.requests[leader.request.request_id]
            if step.outputs:
                outputs += self._ends.finish_beams(members, step.outputs)
            else:
                self._go_on(step, members)
                outputs.append(leader.output(Gained([], searched=len(step.branches))))
        return outputs

    def _go_on(self, step: BeamStep, members: Some[Sequence]) -> None:
        """Give each of a request's sequences the tokens of its branch, and what there is of the branch's blocks."""
        known = {member.id: member for member in members}
        # All are read before any is changed.
        moves = [
            (known[branch.sequence], self._branch(known[branch.parent], branch.token, branch.sequence))
            for branch in step.branches
            if branch.sequence != branch.parent
        ]
        self._totals.decode_tokens += len(step.branches)
        for branch in step.branches:
            sequence = known[branch.sequence]
            if branch.sequence == branch.parent:
                sequence.tokens.append(branch.token)
            self._waiting.charge(sequence, output=1)
        for sequence, (tokens, blocks, computed_once) in moves:
            self._move(sequence, tokens, blocks)
            sequence.computed_once = computed_once
        going = {branch.sequence for branch in step.branches}
        for sequence in members:
            if sequence.id not in going and not sequence.resting:
                self._rest(sequence)

    def _branch(self, parent: Sequence, token: int, child: int) -> tuple[list[int], SequenceBlocks | None, int]:
        """The tokens of a branch, what its sequence shares with the parent, and how much was ever computed.

        Nothing is shared where the parent has lost its blocks.
        """
        blocks = None
        if parent.running and not parent.loading and parent.computed == len(parent.tokens):
            blocks = self._cache.fork(parent.blocks, child, parent.computed)
        return [*parent.tokens, token], blocks, parent.computed_once

    def _move(self, sequence: Sequence, tokens: list[int], blocks: SequenceBlocks | None) -> None:
        """A sequence takes other tokens. Without blocks, or a row, it waits: the prefix cache has most of them."""
        was_running, was_waiting = sequence.running, not sequence.running and not sequence.resting
        self._let_go(sequence)
        sequence.tokens, sequence.resting = tokens, False
        has_row = was_running or (not was_waiting and len(self._running) < self._config.max_num_seqs)
        if blocks is not None and has_row:
            sequence.blocks = blocks
            sequence.computed = sequence.reserved = len(tokens) - 1
            if not was_running:
                sequence.running = True
                self._running.add(sequence)
            return
        if blocks is not None:
            self._cache.free(blocks, until=None)
        if was_running:
            self._running.remove(sequence)
            sequence.running = False
        if not was_waiting:
            self._waiting.add(sequence)

    def _rest(self, sequence: Sequence) -> None:
        """A sequence has no branch: it gives back all that it has, and is in no queue."""
        if sequence.running:
            self._running.remove(sequence)
        else:
            # Taken out of those that wait to come in again.
            self._waiting.admit(sequence)
        self._let_go(sequence)
        sequence.running, sequence.resting = False, True

    def _let_go(self, sequence: Sequence) -> None:
        """What it has, or is to have, is of another branch. Rows that were planned for that are void."""
        self._holding.release(sequence)
        sequence.blocks = self._bounding.open(sequence.id, sequence.request, None)
        sequence.computed = sequence.reserved = 0
        sequence.epoch += 1
        sequence.waits = 0
