"""Where drafts come from, with what became of them and what they cost."""

from dataclasses import dataclass, field

from penstock.core.acceptance import Acceptance
from penstock.scheduler.costs import StepCosts

# What became of drafts, beside what was hoped for, is forgotten so slowly by each that is judged.
STEADY = 0.995
# Whether there were any is known of each time that they were wanted, and what is hoped for must not outweigh that.
LASTING = 0.98


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


class Source:
    """One of those who draft.

    Attributes:
        common: what became of its drafts, for all sequences.
        kept: how many were right of those that should have been: who was right lately is chosen for being lucky, too.
        drafting: of drafting so many tokens for all sequences together, with what is made up for now and then;
        wide_drafting: the same with other branches, whose second choices and blocks cost something too.
        is_tried: whether it has ever been asked.
    """

    def __init__(self) -> None:
        self.common = Record()
        self.kept = Acceptance(STEADY)
        self.drafting, self.wide_drafting = StepCosts(even=False), StepCosts(even=False)
        self.is_tried = False
