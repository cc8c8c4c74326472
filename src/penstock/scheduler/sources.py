"""Where drafts come from, with what became of them and what they cost."""

from dataclasses import dataclass, field

from penstock.core.acceptance import Acceptance
from penstock.scheduler.costs import StepCosts

# What became of drafts, beside what was hoped for, weighs less by this factor with each draft that is judged.
STEADY = 0.995
# Whether there were any is known of each time that they were wanted, and what is hoped for must not outweigh that.
LASTING = 0.98
# A source that does not seem best is tried after this many steps, since it may have become worth its while. One that
# costs something to try, and did not pay, is tried ever more rarely, up to the second number of steps.
PATIENCE = 64
MOST_PATIENCE = 1024


@dataclass(slots=True)
class Record:
    """What has become of drafts from one source, for one sequence or for all.

    Attributes:
        likeliest: how often tokens were right, one behind the other.
        beside: how often one in another branch was, where the likeliest was wrong.
        there: how often there were any where they were wanted.
    """

    likeliest: Acceptance = field(default_factory=Acceptance)
    beside: Acceptance = field(default_factory=Acceptance)
    there: Acceptance = field(default_factory=lambda: Acceptance(LASTING))

    def rates(self, likeliest: float, beside: float, there: float) -> tuple[float, float, float]:
        """All three, where the given ones are what others have shown."""
        return self.likeliest.rate(likeliest), self.beside.rate(beside), self.there.rate(there)


class Source:
    """One source of drafts.

    Attributes:
        common: what became of its drafts, for all sequences.
        kept: how many were right of those that should have been; a source is also chosen for lately having been lucky.
        drafting: seconds of drafting, by the tokens of all sequences together, with what is made up for now and then;
        wide_drafting: the same with other branches, whose second choices and blocks cost something too.
        is_tried: whether it has ever been asked.
        due: the step from which on it is to be tried again, after `patience` steps.
    """

    def __init__(self) -> None:
        self.common = Record()
        self.kept = Acceptance(STEADY)
        self.drafting, self.wide_drafting = StepCosts(even=False), StepCosts(even=False)
        self.is_tried = False
        self.due = self.patience = PATIENCE

    def tried(self, step: int, *, rarely: bool) -> None:
        """It is tried in this step; where that is to be done `rarely`, it is later than the last time."""
        self.patience = min(2 * self.patience, MOST_PATIENCE) if rarely else PATIENCE
        self.due = step + self.patience
