"""Beams of the made-up model: what the scripted executor keeps of searches, and what they find by themselves.

Which sequence a branch goes to is drawn, since a scheduler may not rely on it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.core.kv import KVSpec
from penstock.core.plan import BeamStep, BeginRow, Branch, Ending, Gained
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.sampling.beams import Likely, Search
from support.made_up_model import VOCABULARY, History, ends_output, history_of


def likely_tokens(visible: Sequence[Sequence[int]], sampling: SamplingParams, position: int) -> list[Likely]:
    """What may come after `position`, the likeliest first: a hash of the slots that each group sees from there."""
    assert sampling.beam is not None
    content = hash(tuple(hash(tuple(slots)) for slots in visible))
    found: dict[int, float] = {}
    for turn in range(3 * sampling.beam.width):
        drawn = hash((content, sampling.seed or 0, position, turn))
        found.setdefault(drawn % VOCABULARY, -1.0 - drawn // VOCABULARY % 1000 / 500)
    return sorted(found.items(), key=lambda each: (-each[1], each[0]))


def advanced(
    search: Search, likely: Sequence[Sequence[Likely]], sampling: SamplingParams, eos: Sequence[int]
) -> Search:
    """The search a step further."""
    assert sampling.beam is not None
    candidates = [
        each._replace(ending=Ending("stop")) if ends_output(each.token, sampling, eos, search.length + 1) else each
        for each in search.candidates(likely, 3 * sampling.beam.width)
    ]
    return search.advance(candidates)


def found_by(search: Search, n: int) -> list[Gained]:
    """What a request gets where it asks for `n` outputs."""
    outputs = [Gained([node.token for node in each.path()], each.ending) for each in search.finished[:n]]
    return [*outputs, *[Gained([], Ending("error"))] * (n - len(outputs))]


def expected_beams(spec: KVSpec, request: Request) -> list[Gained]:
    """The outputs of a request with beams: a function of the request alone."""
    sampling = request.sampling
    assert sampling.beam is not None and sampling.max_tokens is not None
    prompt = history_of(spec, request.source)
    prompt.extend(request.prompt_token_ids)
    search, histories = Search(sampling.beam, sampling.max_tokens), [prompt]
    while not search.over:
        position = len(histories[0].tokens) - 1
        likely = [likely_tokens(each.seen_from(spec, position), sampling, position) for each in histories]
        search = advanced(search, likely, sampling, request.eos_token_ids)
        before, histories = histories, []
        for node, origin in zip(search.beams or (), search.beams_from, strict=True):
            histories.append(before[origin].copy())
            histories[-1].extend([node.token])
    return found_by(search, sampling.n)


@dataclass
class Group:
    """The beams of one request: its sequences, and those of its search's beams, in order."""

    begin: BeginRow
    search: Search
    members: list[int]
    rows: list[int]
    likely: dict[int, list[Likely]] = field(default_factory=dict)


class ScriptedBeams:
    """The searches of all requests.

    Attributes:
        moved: in which plan each sequence got another branch last.
    """

    def __init__(self, luck: random.Random) -> None:
        self._groups: dict[int, Group] = {}
        self._luck = luck
        self.moved: dict[int, int] = {}

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._groups

    def begin(self, begin: BeginRow) -> None:
        sampling = begin.sampling
        if sampling.beam is None or begin.pooling is not None:
            return
        if begin.forked_from is not None:
            self._groups[begin.sequence] = self._groups[begin.forked_from]
            self._groups[begin.sequence].members.append(begin.sequence)
            return
        assert sampling.max_tokens is not None
        search = Search(sampling.beam, sampling.max_tokens)
        self._groups[begin.sequence] = Group(begin, search, [begin.sequence], [begin.sequence])

    def end(self, sequence: int) -> None:
        self._groups.pop(sequence, None)

    def take(self, sequence: int, likely: list[Likely]) -> None:
        """What may come next in a row that is computed."""
        group = self._groups[sequence]
        if sequence in group.likely:
            assert group.likely[sequence] == likely, "what was computed again is something else"
        assert sequence in group.rows, "a sequence that rests is computed"
        group.likely[sequence] = likely

    def steps(self, histories: dict[int, History], number: int) -> list[BeamStep]:
        """Those of the requests for all of whose beams it is known, which go on in `histories`."""
        groups = {id(group): group for group in self._groups.values()}.values()
        return [
            self._step(group, histories, number)
            for group in groups
            if group.likely and all(row in group.likely for row in group.rows)
        ]

    def _step(self, group: Group, histories: dict[int, History], number: int) -> BeamStep:
        sampling, leader = group.begin.sampling, group.members[0]
        likely = [group.likely[row] for row in group.rows]
        group.likely = {}
        group.search = search = advanced(group.search, likely, sampling, group.begin.eos_token_ids)
        if search.over:
            return BeamStep(leader, outputs=tuple(found_by(search, sampling.n)))
        parents = [group.rows[place] for place in search.beams_from]
        free = [member for member in group.members if member not in parents]
        self._luck.shuffle(free)
        # A sequence that goes on takes a branch of its own.
        branches, stayed = [], set[int]()
        for parent, node in zip(parents, search.beams or (), strict=True):
            child = free.pop() if parent in stayed else parent
            stayed.add(parent)
            branches.append(Branch(child, parent, node.token))
        before = {parent: histories[parent] for parent in parents}
        for child, parent, token in [(each.sequence, each.parent, each.token) for each in branches]:
            if child != parent:
                histories[child] = before[parent].copy()
                histories[child].extend([token])
                self.moved[child] = number
        for each in branches:
            if each.sequence == each.parent:
                histories[each.sequence].extend([each.token])
                self.moved[each.sequence] = number
        group.rows = [each.sequence for each in branches]
        return BeamStep(leader, tuple(branches))
