"""Who comes into the batch, by gates that each have one reason to keep a sequence out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.cache.manager import KVCache
from penstock.core.config import SchedulerConfig
from penstock.core.facts import Wait
from penstock.scheduler.budget import Allowances
from penstock.scheduler.holding import Held, Holding
from penstock.scheduler.queue import OrderedQueue, WaitingQueue
from penstock.scheduler.room import Room
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.step_builder import StepBuilder

Start = Callable[[Sequence, Held, int, StepBuilder], int]


class KeptOut(NamedTuple):
    """Why a sequence waits on; `all_others` wait with it, else those behind it have their turn."""

    why: Wait
    all_others: bool = False


@dataclass(slots=True)
class Candidate:
    """A sequence whose turn it is, with what the gates that it has passed found.

    Attributes:
        hit: blocks of its prefix that the cache has.
        source: tokens of its source, if that has to be encoded.
        allowed: positions that it may compute in this step.
        held: what it holds of its context; it holds nothing before the last gate.
    """

    sequence: Sequence
    step: StepBuilder
    background: bool
    allowances: Allowances
    hit: int = 0
    source: int = 0
    allowed: int = 0
    held: Held | None = None


class Entrance:
    """Lets waiting sequences in, in turn.

    Args:
        preempt: takes everything from a running sequence.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        waiting: WaitingQueue,
        running: OrderedQueue,
        room: Room,
        holding: Holding,
        preempt: Callable[[Sequence], None],
    ) -> None:
        self._config = config
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._room = room
        self._holding = holding
        self._preempt = preempt
        self._max_chunk = config.longest_chunk
        # Where nothing is kept, a row has all of its tokens.
        self._whole = cache.spec.keeps_nothing
        self._gates: tuple[Callable[[Candidate], KeptOut | None], ...] = (
            self._class,
            self._row,
            self._budget,
            self._ready,
            self._scores,
            self._prefix,
            self._share,
            self._blocks,
        )

    def yield_to_priority(self) -> None:
        """Preempt running sequences of lower priority than the first waiting one, if that lets it in."""
        if not self._waiting or not self._running:
            return
        head = self._waiting.first()
        # One whose blocks are still on their way to the processor's memory could not come in whatever made way.
        if head.must_wait or not self._room.has_place_for(head):
            return
        outranked = [sequence for sequence in self._running if sequence.order[0] > head.order[0]]
        # A batch that has to become smaller may be too large without them, too.
        if len(self._running) - len(outranked) >= self._room.rows:
            return
        # It would not come in where the running ones leave it nothing to score.
        if head.unscored:
            wanted = sum(sequence.unscored for sequence in self._running)
            if wanted >= self._config.max_scored_positions:
                return
        pool = self._cache.pool
        needed = self._room.blocks_to_admit(head, running=len(self._running) - len(outranked))
        reclaimable = sum(self._cache.exclusive_blocks(sequence.blocks) for sequence in outranked)
        if needed > self._room.blocks(len(self._running) - len(outranked)) + pool.num_retiring + reclaimable:
            # Blocks that several of them share do not count above. Those in the background go all the same.
            outranked = [sequence for sequence in outranked if sequence.background and not head.background]
        for victim in reversed(outranked):
            running = len(self._running)
            blocks = self._room.blocks(running) + pool.num_retiring
            if running < self._room.rows and self._room.blocks_to_admit(head, running) <= blocks:
                return
            self._preempt(victim)

    def let_in(self, step: StepBuilder, background: bool, allowances: Allowances, start: Start) -> Wait | None:
        """Have waiting sequences started while they pass the gates; returns what keeps the first of the rest.

        `start` puts one into the batch with a first chunk, of at most a number of positions, and returns its size.
        """
        if self._room.is_closed:
            return "rows"
        if not self._waiting:
            return None
        # Known before any turn: a sequence that has no place has none.
        kept_out = self._first_gates(Candidate(self._waiting.first(), step, background, allowances))
        if kept_out is not None:
            return kept_out.why
        first: Wait | None = None
        for sequence in self._room.turns():
            candidate = Candidate(sequence, step, background, allowances)
            kept_out = self._pass(candidate)
            if kept_out is None:
                assert candidate.held is not None, "the last gate attaches it"
                allowances.take(sequence, start(sequence, candidate.held, candidate.allowed, step))
                continue
            first = first or kept_out.why
            if kept_out.all_others:
                return first
        return first or "place"

    def _first_gates(self, candidate: Candidate) -> KeptOut | None:
        return self._class(candidate) or self._row(candidate)

    def _pass(self, candidate: Candidate) -> KeptOut | None:
        """Go through the gates up to the first that is shut."""
        for gate in self._gates:
            kept_out = gate(candidate)
            if kept_out is not None:
                return kept_out
        return None

    # Gates, from the cheapest on. Each says why the sequence does not come in, or None.

    def _class(self, candidate: Candidate) -> KeptOut | None:
        if candidate.sequence.background != candidate.background:
            return KeptOut("background", all_others=True)
        return None

    def _row(self, candidate: Candidate) -> KeptOut | None:
        """A request that is waited for can take a row from the background; beams are waited for by others of theirs."""
        sequence = candidate.sequence
        rows = self._config.max_num_seqs if sequence.beam and sequence.admitted else self._room.rows
        if len(self._running) < rows:
            return None
        if candidate.background or not self._running.last().background:
            full = len(self._running) >= self._config.max_num_seqs
            return KeptOut("rows" if full else "pace", all_others=True)
        self._preempt(self._running.last())
        return None

    def _budget(self, candidate: Candidate) -> KeptOut | None:
        """Some of a sequence fits into any budget; what is computed whole fits as a whole, or is the step's first.

        A source comes before all that is not decoded, so that those who decode cannot keep it out.
        """
        step, sequence = candidate.step, candidate.sequence
        wanted = len(sequence.tokens) if self._whole and step.rows else 1
        if not self._cache.sources.has(sequence.blocks):
            candidate.source = len(sequence.request.source)
            wanted += candidate.source if step.has_prompts else 0
        return KeptOut("budget", all_others=True) if step.budget < wanted else None

    def _ready(self, candidate: Candidate) -> KeptOut | None:
        """An outstanding plan or a transfer still has its blocks."""
        return KeptOut("blocks") if candidate.sequence.must_wait else None

    def _scores(self, candidate: Candidate) -> KeptOut | None:
        """Those of the running that score come first, and end."""
        if candidate.step.scores or not candidate.sequence.unscored:
            return None
        self._waiting.pass_over(candidate.sequence)
        return KeptOut("scores")

    def _prefix(self, candidate: Candidate) -> KeptOut | None:
        """Whether to wait for a block that another sequence is computing; bounded, so that it cannot wait for ever."""
        sequence = candidate.sequence
        candidate.hit = self._cache.longest_hit(sequence.blocks, sequence.tokens, sequence.cacheable)
        if not self._room.would_stand_back(sequence, candidate.hit):
            return None
        sequence.waits += 1
        self._waiting.pass_over(sequence)
        return KeptOut("prefix")

    def _share(self, candidate: Candidate) -> KeptOut | None:
        """Where its tenant has had its share of this step, it waits, unless others wait behind it who have not.

        Then it comes in with one position, or whole: turns are never changed for the sake of a step.
        """
        sequence, allowances = candidate.sequence, candidate.allowances
        left = max(1, candidate.step.budget - candidate.source)
        candidate.allowed = allowances.of(sequence, min(left, self._max_chunk))
        has_share, least = candidate.allowed > 0, 1
        if self._whole:
            candidate.allowed = least = len(sequence.tokens)
        if has_share:
            return None
        candidate.allowed = least
        others = self._waiting.firsts(sequence.order[0])
        return None if any(allowances.of(other, 1) > 0 for other in others) else KeptOut("share", all_others=True)

    def _blocks(self, candidate: Candidate) -> KeptOut | None:
        candidate.held = self._holding.attach_if_it_fits(
            candidate.sequence, candidate.hit, self._room.beside(candidate.sequence)
        )
        return KeptOut("blocks", all_others=True) if candidate.held is None else None
