"""The beams of requests: what may come next in each row, and how all go on once that is known for the last of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from penstock.core.errors import NothingFits
from penstock.core.plan import (
    BeamStep,
    BeginRow,
    Branch,
    Ending,
    Gained,
    RowPlan,
    SampleResult,
    TokenLogprobs,
    failed,
)
from penstock.runtime.rows import RowTable
from penstock.sampling.beams import Candidate, Hypothesis, Likely, Search
from penstock.sampling.row import RowState
from penstock.sampling.sampler import Failure, Place, Sampler


class _Taken(NamedTuple):
    """A candidate that was looked at, and the state of its row behind it."""

    candidate: Candidate
    state: RowState


@dataclass(slots=True)
class _Beams:
    """Those of one request.

    Attributes:
        leader: the sequence whose prompt all share.
        search: how far it has come.
        members: its sequences; before the first token, the leader alone has a beam.
        rows: the sequences of the search's beams, in their order.
        likely: what may come next, by sequence.
    """

    leader: int
    search: Search
    members: list[int]
    rows: list[int]
    likely: dict[int, list[Likely]] = field(default_factory=dict)


class BeamSearcher:
    """Keeps the searches of all requests with beams, which depend on tokens only and survive preemptions."""

    def __init__(self, table: RowTable, sampler: Sampler) -> None:
        self._table = table
        self._sampler = sampler
        self._searches: dict[int, _Beams] = {}

    def __contains__(self, sequence: int) -> bool:
        """Whether the sequence is a beam."""
        return sequence in self._searches

    def __bool__(self) -> bool:
        return bool(self._searches)

    def begin(self, begin: BeginRow) -> None:
        """A sequence of a request with beams begins, the leader before the others."""
        sampling = begin.sampling
        if sampling.beam is None or begin.pooling is not None:
            return
        if begin.forked_from is not None:
            beams = self._searches[begin.sequence] = self._searches[begin.forked_from]
            beams.members.append(begin.sequence)
            return
        assert sampling.max_tokens is not None, "it is resolved before a request is computed"
        # An encoder–decoder's output begins behind the token that its decoder starts with.
        begun = len(begin.prompt_token_ids) - 1 if begin.source else 0
        search = Search(sampling.beam, sampling.max_tokens, begun=begun)
        self._searches[begin.sequence] = _Beams(begin.sequence, search, [begin.sequence], [begin.sequence])

    def end(self, sequence: int) -> None:
        """Forget a sequence that has ended."""
        self._searches.pop(sequence, None)

    def take(
        self, rows: Sequence[tuple[RowPlan, int]], logits: Tensor
    ) -> tuple[list[SampleResult], tuple[BeamStep, ...]]:
        """Take what may come next in some rows, each with the place of its logits; the failed, and beams that go on."""
        known = self._table.rows
        # What was planned before its sequence got another branch is of no use.
        current = [(row, place) for row, place in rows if row.start + row.count == len(known[row.sequence].tokens)]
        if not current:
            return [], ()
        places = [Place(known[row.sequence].state, place) for row, place in current]
        results, touched = [], {}
        for (row, _), chosen in zip(current, self._sampler.choose(logits, places), strict=True):
            beams = self._searches[row.sequence]
            if isinstance(chosen, Failure):
                results.append(SampleResult(row.sequence, failed(chosen.message)))
                continue
            _, _, _, tokens, logprobs = chosen
            beams.likely[row.sequence] = list(zip(tokens, logprobs, strict=True))
            touched[beams.leader] = beams
        ready = [beams for beams in touched.values() if all(each in beams.likely for each in beams.rows)]
        return results, tuple(self._step(beams) for beams in ready)

    def _step(self, beams: _Beams) -> BeamStep:
        """Go on with the beams of a request; what may come next is known for all of them."""
        known, likely = self._table.rows, [beams.likely[each] for each in beams.rows]
        count = known[beams.leader].state.continuations
        beams.likely = {}
        taken = self._look_at(beams, beams.search.candidates([each[:count] for each in likely], count), likely)
        beams.search = search = beams.search.advance([each.candidate for each in taken])
        if search.over:
            return BeamStep(beams.leader, outputs=self._outputs(beams))
        # Those that go on, in the order of the beams.
        states = [each.state for each in taken if each.candidate.ending is None][: len(search.beams or ())]
        parents = [beams.rows[place] for place in search.beams_from]
        children = _placed(parents, beams.members)
        tokens = {parent: known[parent].tokens for parent in parents}
        branches = []
        for sequence, parent, node, state in zip(children, parents, search.beams or (), states, strict=True):
            row = known[sequence]
            row.tokens = [*tokens[parent], node.token]
            row.state = state
            state.sequence = sequence
            branches.append(Branch(sequence, parent, node.token))
        beams.rows = children
        return BeamStep(beams.leader, tuple(branches))

    def _look_at(
        self, beams: _Beams, candidates: Sequence[Candidate], likely: Sequence[Sequence[Likely]]
    ) -> list[_Taken]:
        """Say of the candidates whether they end the output, as far down as the search has to know."""
        width, going, taken = beams.search.asked.width, 0, list[_Taken]()
        for place, candidate in enumerate(candidates):
            if place >= width and going == width:
                break
            sequence = beams.rows[candidate.beam]
            state = self._table.rows[sequence].state.fork(sequence)
            try:
                finish, reason = state.advance(candidate.token)
            except NothingFits:
                # The others go on, and this one is not among them.
                continue
            ending = None if finish is None else Ending(finish, reason)
            going += ending is None
            logprobs = None
            if (top := state.params.logprobs) is not None:
                best = likely[candidate.beam][:top]
                logprobs = TokenLogprobs(
                    candidate.token, candidate.logprob, [token for token, _ in best], [value for _, value in best]
                )
            taken.append(_Taken(candidate._replace(ending=ending, logprobs=logprobs), state))
        return taken

    def _outputs(self, beams: _Beams) -> tuple[Gained, ...]:
        """What the search has found: the number of outputs that was asked for."""
        search, asked = beams.search, self._table.rows[beams.leader].state.params.n
        found = [_gained(search, hypothesis) for hypothesis in search.finished[:asked]]
        possible = "1 output is" if len(found) == 1 else f"{len(found)} outputs are"
        missing = failed(
            f"Only {possible} possible for this request, and n is {asked}; ask for fewer, or allow more tokens.",
            NothingFits.code,
        )
        return (*found, *[missing] * (asked - len(found)))


def _gained(search: Search, hypothesis: Hypothesis) -> Gained:
    path = hypothesis.path()
    logprobs = [node.logprobs for node in path if node.logprobs is not None]
    return Gained([node.token for node in path], hypothesis.ending, logprobs or None, beam=search.score(hypothesis))


def _placed(parents: Sequence[int], members: Sequence[int]) -> list[int]:
    """The sequence that each beam goes to: a parent's likeliest child stays with the parent's own."""
    stays = {parent: place for place, parent in reversed(list(enumerate(parents)))}
    free = iter(sequence for sequence in members if sequence not in stays)
    return [parent if stays[parent] == place else next(free) for place, parent in enumerate(parents)]
