"""How many tokens a step may have, so that it takes no longer than it should."""

from penstock.core.plan import StepPlan

# A step has room for so many tokens of prompts, however long they take: with fewer, much of its time would go into
# reading the weights once more.
LEAST_PROMPT = 64
# What the newest step weighs beside all before it.
NEWEST = 0.1


class Pace:
    """How fast steps with prompts are, from those that were committed, and what that means for the next.

    The estimate is tokens by seconds of the last steps, those in which a prompt was computed. What a step costs
    whatever is in it counts as if its tokens had cost it: an estimate from short steps is too low, never too high, and
    as steps of the budget that follows from it are measured, it settles where they take the time they should.
    """

    def __init__(self, target: float | None) -> None:
        """`target`: seconds that a step should take at most; None: as long as its tokens take."""
        self._target = target
        self._tokens = 0.0
        self._seconds = 0.0

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long; 0 where that is not known."""
        tokens = plan.num_tokens
        # Decodes, and steps in the background, say little of prompts.
        if seconds > 0 and tokens >= LEAST_PROMPT and tokens > len(plan.rows):
            self._tokens += NEWEST * (tokens - self._tokens)
            self._seconds += NEWEST * (seconds - self._seconds)

    def budget(self, most: int, decodes: int) -> int:
        """Tokens for the next step, beside `decodes` that are in it whatever they take; at most `most`."""
        if self._target is None:
            return most
        # Until a first step was measured, one that is worth its while says how fast they are.
        wanted = int(self._target * self._tokens / self._seconds) if self._seconds else 0
        return min(most, max(wanted, decodes + LEAST_PROMPT))
