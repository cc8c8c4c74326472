"""How many tokens and rows a step may have, so that it takes no longer than it should."""

from penstock.core.plan import StepPlan

# A step has room for `LEAST_PROMPT` tokens of prompts, however long they take: with fewer, much of its time would go
# into reading the weights once more. Where that is known not to be so, and a time was asked for, it has room for the
# tokens that take the part `LEAST_PART` of the time of a step of decodes.
LEAST_PROMPT = 64
LEAST_PART = 0.5
# Where there are several tenants it may have fewer, since the next request waits for its end: the tokens that take
# `SHARED_WORTH` times as long as a step of decodes, but at least `LEAST_SHARED`.
LEAST_SHARED = 32
SHARED_WORTH = 3
# Where no time is asked for, a step with a prompt in it takes at most `STRETCH` times as long as those before it that
# only decoded. But it may always have `ENOUGH_PROMPT` tokens of prompts: for fewer, a step's fixed cost is too much.
STRETCH = 1.5
ENOUGH_PROMPT = 64
# The weight of the newest step beside all before it.
NEWEST = 0.1
# The part of a step's fixed time by which rows may lengthen it in any case.
LEAST_ROWS_PART = 0.25
# A batch of `LEAST_ROWS` rows is never too large. A larger one is at most `GROWTH` times as large as a measured one.
LEAST_ROWS = 4
GROWTH = 2
LEAST_VARIANCE = 0.25
# A step has mostly decodes where it has at most this many tokens to a row. One of a short prompt costs about the same.
MOSTLY_DECODES = 1.5


class Pace:
    """How fast steps with prompts are, from those that were committed, and what that means for the next.

    The estimate is tokens by seconds of the last steps, those in which a prompt was computed. What a step costs
    whatever is in it counts as if its tokens had cost it: an estimate from short steps is too low, never too high, and
    as steps of the budget that follows from it are measured, it settles where they take the time they should. Beside
    rows that decode, whose steps have been measured by themselves, a prompt's tokens cost what they lengthen them by.
    """

    def __init__(self, target: float | None, *, asked: bool = True) -> None:
        """`target`: seconds that a step should take at most; None: as long as its tokens take.

        Where it is not `asked` for, steps are shorter if that costs little: sequences that decode wait less. So do most
        of the requests that come together: their first tokens come one after the other instead of all in the end.
        """
        self._target = target
        self._asked = asked
        # Tokens that the last step could have had.
        self._budget = 0
        self._decoding, self._decodes = 0.0, 0
        self._tokens = 0.0
        self._seconds = 0.0
        # Means over steps with prompts: tokens of prompts, and seconds by which the step is longer than one of decodes.
        self._more = 0.0
        self._longer = 0.0

    def measured(self, plan: StepPlan, seconds: float) -> None:
        """The step of `plan` took `seconds`, or its steps did; 0 where that is not known."""
        tokens = plan.num_tokens
        if seconds > 0 and tokens == len(plan.rows):
            self._note_decodes(seconds / plan.steps, plan.steps)
        elif seconds > 0 and self._decoding:
            more = tokens - sum(row.count == 1 for row in plan.rows)
            self._more += NEWEST * (more - self._more)
            self._longer += NEWEST * (max(0.0, seconds - self._decoding) - self._longer)
        # Decodes, short prompts, and steps in the background, say little of prompts; unless there was room for no more.
        if seconds > 0 and tokens >= min(LEAST_SHARED, self._budget) and tokens > len(plan.rows):
            self._tokens += NEWEST * (tokens - self._tokens)
            self._seconds += NEWEST * (seconds - self._seconds)

    def _note_decodes(self, seconds: float, steps: int) -> None:
        """A number of steps that only decoded took `seconds` each."""
        # The first one may have been held up by what is done once.
        while steps and self._decodes * NEWEST < 1:
            self._decodes += 1
            self._decoding += (seconds - self._decoding) / self._decodes
            steps -= 1
        self._decoding += (1 - (1 - NEWEST) ** steps) * (seconds - self._decoding)

    def budget(self, most: int, decodes: int, *, shared: bool = False) -> int:
        """Tokens for the next step, beside `decodes` that are in it whatever they take; at most `most`.

        Where tenants share the machine (`shared`), the next request may be another tenant's, and then its wait for the
        step's end counts like that of a sequence that decodes.
        """
        self._budget = most if self._target is None else self._tokens_for(self._target, most, decodes, shared)
        return self._budget

    def least_shared(self) -> int:
        """Tokens of prompts that are worth a step where there are several tenants."""
        if not (self._decoding and self._seconds):
            return LEAST_PROMPT
        return max(LEAST_SHARED, self._within(SHARED_WORTH * self._decoding, LEAST_PROMPT))

    def _tokens_for(self, target: float, most: int, decodes: int, shared: bool) -> int:
        # Until a first step was measured, one that is worth its while says how fast they are.
        wanted, least = self._within(target, most), LEAST_PROMPT
        if decodes and self._longer and self._asked:
            each = self._longer / self._more
            wanted = max(wanted, decodes + int(max(0.0, target - self._decoding) / each))
            least = max(1, min(LEAST_PROMPT, int(LEAST_PART * self._decoding / each)))
        if (decodes or shared) and self._decoding and not self._asked:
            wanted = min(wanted, max(self._within(STRETCH * self._decoding, most), decodes + ENOUGH_PROMPT))
        return min(most, max(wanted, decodes + least))

    def _within(self, seconds: float, most: int) -> int:
        """Tokens that are computed in a time, at most `most`; 0 where nothing is known."""
        return int(min(most, seconds * self._tokens / self._seconds)) if self._seconds else 0


class Rows:
    """How long steps are in which mostly decodes are computed, and so how many rows they may have.

    Seconds are taken to be a constant, in which weights are read, and the same time for each row. Both are those of the
    line of least squares through the last steps; older ones weigh less. Contexts that grow make it steeper in time.
    """

    def __init__(self, target: float | None) -> None:
        """`target`: seconds that such a step should take at most; None: it may have any number of rows."""
        self._target = target
        self._largest = 0
        self._rows = self._seconds = self._variance = self._covariance = 0.0
        # Seconds of a row; nothing is known of it before batches of several sizes were measured.
        self._each = 0.0

    def measured(self, rows: int, tokens: int, seconds: float, steps: int = 1) -> None:
        """Steps of `rows` rows and `tokens` tokens, with drafts, took `seconds` each; 0 where that is not known."""
        if self._target is None or seconds <= 0:
            return
        if seconds <= self._target or rows == tokens:
            self._largest = max(self._largest, rows)
        # Where every step has a new prompt, there are no steps in which nothing else is computed.
        if tokens > MOSTLY_DECODES * rows:
            return
        if not self._rows:
            self._rows, self._seconds = float(tokens), seconds
        for _ in range(steps):
            more, longer = tokens - self._rows, seconds - self._seconds
            self._rows += NEWEST * more
            self._seconds += NEWEST * longer
            self._variance = (1 - NEWEST) * (self._variance + NEWEST * more * more)
            self._covariance = (1 - NEWEST) * (self._covariance + NEWEST * more * longer)
            # A batch that has not changed for long says nothing new of it.
            if self._variance > LEAST_VARIANCE:
                self._each = max(0.0, self._covariance / self._variance)

    def most(self, limit: int) -> int:
        """Rows that a batch may have, at most `limit`.

        Where a step takes too long with whatever is in it, rows that lengthen it little are no loss.
        """
        if self._target is None:
            return limit
        if not self._largest:
            return min(limit, LEAST_ROWS)
        most = limit
        if self._each > 0:
            fixed = self._seconds - self._each * self._rows
            most = int(max(self._target - fixed, LEAST_ROWS_PART * fixed) / self._each)
        return max(1, min(limit, max(LEAST_ROWS, min(most, GROWTH * self._largest))))
