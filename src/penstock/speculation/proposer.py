"""What proposers of drafts have in common."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from penstock.core.plan import RowPlan
from penstock.sampling.choice import Choice
from penstock.sampling.distribution import Distribution
from penstock.sampling.noise import Purpose
from penstock.sampling.row import RowState
from penstock.stepping.storage import Blocks


class Wanted(NamedTuple):
    """Drafts that are wanted for one row.

    Attributes:
        sequence: the row's sequence.
        depth: the most tokens, one behind the other.
        state: how its next tokens will be chosen.
        table: its row of the block tables.
        ahead: what is drafted already, which they are to follow.
        width: how many tokens more there may be beside these, in other branches of a tree.
        text_only: only what the sequence's own text says is wanted.
    """

    sequence: int
    depth: int
    state: RowState
    table: int
    ahead: Sequence[int] = ()
    width: int = 0
    text_only: bool = False


def draft_choice(row: Wanted, place: int, *, rejects: bool, ahead: int = 0) -> Choice:
    """How a draft for a row is chosen from row `place` of the logits, `ahead` positions behind what is drafted.

    Drafts that are accepted by chance must know nothing of what the target would choose.
    """
    choice = row.state.choice(place, ahead=len(row.ahead) + ahead)
    purpose = int(Purpose.DRAFT if rejects else Purpose.TOKEN)
    if choice.logprobs < 0 and choice.purpose == purpose:
        return choice
    return choice._replace(logprobs=-1, purpose=purpose)


def agreeing(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses are right, up to the first that is not."""
    for count, (guess, token) in enumerate(zip(guesses, tokens, strict=False)):
        if guess != token:
            return count
    return min(len(guesses), len(tokens))


class Proposal(NamedTuple):
    """What may come next.

    Attributes:
        tokens: in order; none where there is no guess.
        drawn_from: what each was drawn from, where that is asked for; None where nothing else could have come.
        parents: of a tree, see `tree.py`; None: each token stands behind the one before.
    """

    tokens: list[int]
    drawn_from: list[Distribution] | None = None
    parents: list[int] | None = None


NONE = Proposal([])


class Proposer(Protocol):
    """Guesses what comes next; what it says is never more than a guess.

    It sees of each sequence verified tokens only, in the list that it was given when the sequence began; the list grows
    as they come. So a sequence for which nothing is to be guessed costs nothing in a step.

    Attributes:
        storages: where it has keys and values of its own, in the same blocks as the target.
    """

    @property
    def storages(self) -> tuple[Blocks, ...]: ...

    def begin(self, sequence: int, tokens: list[int], salt: str = "") -> None:
        """A sequence begins; `tokens` are its prompt, and the caller adds to them.

        What is learnt of it serves sequences of the same `salt` at most.
        """

    def follow(self, placed: Sequence[tuple[RowPlan, int]]) -> None:
        """The target computes these rows, which got blocks, in the step that begins; with their rows of the tables."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """For each row the tokens that may come next."""

    def observe(self, sequence: int, gained: int) -> None:
        """The sequence has `gained` tokens in a step in which drafts were wanted for it; learners hear of all."""

    def forget(self, sequence: int) -> None:
        """The sequence has ended; also where it never began."""


@runtime_checkable
class Learner(Protocol):
    """A proposer that guesses from the target's hidden states.

    Attributes:
        states: whether it has to see those of all tokens, or only those that are selected.
    """

    states: Literal["selected", "all"]

    def see(self, sequence: int, start: int, states: Tensor) -> None:
        """The target's states at the sequence's positions from `start` on, [positions, width].

        The last ones may be those of drafts that were right; `observe` follows with them where there are any.
        """
