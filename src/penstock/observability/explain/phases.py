"""The phases of a request: its time cut where one thing ended and the next began."""

from dataclasses import dataclass

from penstock.core.facts import StepTotals
from penstock.engine.journal import Journal, Mark
from penstock.observability.account import Account
from penstock.observability.explain.explanation import PhaseName


@dataclass(frozen=True, slots=True)
class Span:
    """From one moment to another, on the monotonic clock."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """Length of the span in seconds."""
        return self.ended - self.began

    def within(self, began: float, ended: float) -> float:
        """Seconds of it that lie between two moments."""
        return max(0.0, min(self.ended, ended) - max(self.began, began))

    def clipped(self, began: float, ended: float) -> "Span":
        """What of another stretch lies in this one; empty, at one of its ends, where nothing does."""
        first = min(max(began, self.began), self.ended)
        return Span(first, max(first, min(ended, self.ended)))


@dataclass(frozen=True, slots=True)
class Course:
    """An account as it is looked at: until when, and which of its prompts.

    Attributes:
        now: the request's end, or the moment of looking, and what engines had done until then.
        prompt: the number of the prompt that was finished last; `journal` is None where no engine was given one.
        phases: one after the other, without gaps, from the arrival to `now`; those that have not begun are missing.
    """

    account: Account
    now: Mark
    prompt: int
    journal: Journal | None
    phases: dict[PhaseName, Span]

    @property
    def whole(self) -> Span:
        """The span from the request's arrival to its end, or to now."""
        return Span(self.account.arrived, self.now.at)

    def between(self, earlier: Mark | None, later: Mark | None) -> StepTotals:
        """What engines did between two marks, or until now; nothing before the first."""
        if earlier is None:
            return StepTotals()
        return (later or self.now).totals.since(earlier.totals)

    @property
    def generated(self) -> Mark | None:
        """When the prompt was computed: with the first token, or at the end where there is none."""
        assert self.journal is not None
        return self.journal.first_token or self.journal.finished


def course_of(account: Account, now: Mark) -> Course:
    """The request's course until its end, or until `now` where it has not ended."""
    if account.ended is not None:
        now = Mark(max(account.arrived, account.ended), now.totals)
    prompt, journal = _last_finished(account)
    return Course(account, now, prompt, journal, _phases(account, journal, now.at))


def _last_finished(account: Account) -> tuple[int, Journal | None]:
    """The prompt that the response waited for: one that is not finished, or the last that was."""
    if not account.journals:
        return 0, None
    ends = [float("inf") if each.finished is None else each.finished.at for each in account.journals]
    prompt = max(range(len(ends)), key=ends.__getitem__)
    return prompt, account.journals[prompt]


def _phases(account: Account, journal: Journal | None, end: float) -> dict[PhaseName, Span]:
    """Each begins where the one before ends, however the clocks of two processes were read."""
    bounds: list[tuple[PhaseName, float | None]] = [("receive", account.received)]
    if journal is None:
        bounds.append(("prepare", None))
    else:
        submitted = journal.submitted.at
        bounds.append(("prepare", submitted))
        if journal.grammar_seconds:
            bounds.append(("grammar", submitted + journal.grammar_seconds))
        if journal.find_seconds:
            bounds.append(("find", submitted + journal.grammar_seconds + journal.find_seconds))
        bounds.append(("queue", _at(journal.admitted)))
        if journal.admitted is not None and journal.begun is not journal.admitted:
            bounds.append(("fetch", _at(journal.begun)))
        bounds.append(("prefill", _at(journal.first_token or journal.finished)))
        if journal.first_token is not None:
            bounds.append(("decode", _at(journal.finished)))
        bounds.append(("deliver", None))
    phases: dict[PhaseName, Span] = {}
    last = account.arrived
    for name, bound in bounds:
        until = end if bound is None else min(max(bound, last), end)
        phases[name] = Span(last, until)
        last = until
        # What ended before something never got to it.
        if bound is None or bound > end:
            break
    return phases


def _at(mark: Mark | None) -> float | None:
    return None if mark is None else mark.at
