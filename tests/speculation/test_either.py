"""The text drafts where it has been right as often as the model."""

from collections.abc import Sequence

from penstock.core.plan import RowPlan
from penstock.speculation.either import Either
from penstock.speculation.ngram import NgramProposer
from penstock.speculation.proposer import Proposal, Wanted
from penstock.stepping.storage import Blocks
from support.sampling_rows import make_row


class Saying:
    """A model that says the same tokens always, and counts how often it was asked."""

    def __init__(self, tokens: list[int]) -> None:
        self.storages: tuple[Blocks, ...] = ()
        self.tokens = tokens
        self.asked = 0
        self.heard: list[object] = []

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        self.heard.append(("begin", sequence, tokens))

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        self.heard.append(("follow", list(placed)))

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        self.asked += len(wanted)
        return [Proposal(self.tokens[: row.depth]) for row in wanted]

    def observe(self, sequence: int, gained: int) -> None:
        self.heard.append(("observe", sequence, gained))

    def forget(self, sequence: int) -> None:
        self.heard.append(("forget", sequence))


def gain(either: Either, sequence: int, known: list[int], gained: list[int]) -> None:
    known += gained
    either.observe(sequence, len(gained))


def wanted(sequence: int, depth: int = 2) -> Wanted:
    return Wanted(sequence, depth, make_row(sequence), 0)


def test_whoever_has_been_right_drafts() -> None:
    model = Saying([8, 9])
    either = Either(NgramProposer(), model)
    known = [1, 2, 3, 4, 1, 2]
    either.begin(0, known)
    # Both are taken to be right as often, and the text costs nothing.
    assert either.propose([wanted(0)]) == [Proposal([3, 4])] and model.asked == 0
    # What follows 1 and 2 is another token each time, and the model knows it.
    for number in range(6):
        model.tokens = [40 + number, 5]
        found = either.propose([wanted(0)])
        gain(either, 0, known, [40 + number, 5, 1, 2])
    assert found == [Proposal([45, 5])] and model.asked == 5
    # Now it is the same, which the model does not know. The text is compared with what comes while the model drafts.
    model.tokens = [60, 5]
    for _ in range(6):
        asked, found = model.asked, either.propose([wanted(0)])
        gain(either, 0, known, [50, 51, 1, 2])
    assert found == [Proposal([50, 51])] and model.asked == asked


def test_where_the_text_says_nothing_the_model_is_asked() -> None:
    model = Saying([8, 9])
    either = Either(NgramProposer(), model)
    known = [1, 2, 3, 1, 2]
    either.begin(0, [1, 2, 3])
    either.begin(1, known)
    assert either.propose([wanted(0), wanted(1, 1)]) == [Proposal([8, 9]), Proposal([3])]
    model.tokens = []
    gain(either, 1, known, [4, 1, 2])
    # Nor is the model always ready.
    assert either.propose([wanted(0), wanted(1)]) == [Proposal([]), Proposal([4, 1])]


def test_the_model_is_not_asked_where_only_the_text_is_wanted() -> None:
    model = Saying([8, 9])
    either = Either(NgramProposer(), model)
    either.begin(0, [1, 2, 3])
    either.begin(1, [1, 2, 3, 1, 2])
    alone = [wanted(0)._replace(text_only=True), wanted(1)._replace(text_only=True)]
    assert either.propose(alone) == [Proposal([]), Proposal([3, 1])] and model.asked == 0


def test_the_model_is_told_everything() -> None:
    model = Saying([8])
    either = Either(NgramProposer(), model)
    known = [1]
    either.begin(3, known)
    row = RowPlan(3, 0, 1, [1], None, (3,), ())
    either.follow([(row, 5)])
    gain(either, 3, known, [4])
    either.forget(3)
    either.forget(3)
    assert model.heard[:4] == [("begin", 3, [1, 4]), ("follow", [(row, 5)]), ("observe", 3, 1), ("forget", 3)]
