"""Handles of steps: of one that is computed, one that a device is computing, and one that has to wait for another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from penstock.core.plan import Attended, BeamStep, StepPlan, StepResult, TransferResult
from penstock.runtime.rows import Carried, Row
from penstock.sampling.sampler import ChoiceUnderWay
from penstock.stepping.storage import Took, no_time


@dataclass(slots=True)
class StepNotes:
    """What is told of a step beside its samples.

    Attributes:
        sampling, drafting: seconds in which tokens were chosen, and drafted before.
        attended: of the rows that were to be told.
        beams: of the requests whose beams it has completed.
    """

    sampling: float = 0.0
    drafting: float = 0.0
    attended: tuple[Attended, ...] = ()
    beams: tuple[BeamStep, ...] = ()


def all_done(plan: StepPlan, took: Took = no_time) -> tuple[TransferResult, ...]:
    """The report that a plan's transfers are done, but for those to a disk or store and from there.

    `took` says how long those from the processor's memory took together.
    """
    if not plan.transfers:
        return ()
    came = sum(each.source.store == "host" for each in plan.transfers)
    share = took() / came if came else 0.0
    return tuple(
        TransferResult(each.id, done=True, seconds=share if each.source.store == "host" else 0.0)
        for each in plan.transfers
        if each.shelf is None
    )


class CompletedStep:
    """A step that was computed before `execute` returned."""

    under_way: ClassVar[bool] = False

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        """The step's answer, at once."""
        return self._result


class PostponedStep:
    """A step whose tokens cannot be chosen before those of the step under way are known: it is computed when asked."""

    under_way: ClassVar[bool] = False

    def __init__(self, compute: Callable[[], StepResult]) -> None:
        self._compute = compute

    def result(self) -> StepResult:
        """Compute the step; to be asked once."""
        return self._compute()


class StagedStep:
    """A step that goes through the stages of a pipeline. The last one is here, and computes it when asked."""

    under_way: ClassVar[bool] = True

    def __init__(self, finish: Callable[[], StepResult]) -> None:
        self._finish = finish

    def result(self) -> StepResult:
        """Wait for the step; to be asked once."""
        return self._finish()


class LaunchedStep:
    """A step that a device is computing, down to its tokens.

    Attributes:
        plan: what it computes.
        sampled: the rows that get a token, by sequence, in the order in which they are chosen.
        chosen: those tokens.
        carried: the same, for a step behind it.
        started: when it was launched, by the clock that is for short times.
        took: of copies that it waits for.
        attended: what it has learnt of its rows' attention, once it is over.
        answer, error: what came of it; None before it is finished.
    """

    under_way: ClassVar[bool] = True

    def __init__(
        self,
        plan: StepPlan,
        sampled: dict[int, Row],
        chosen: ChoiceUnderWay,
        started: float,
        finish: Callable[["LaunchedStep"], None],
        took: Took = no_time,
        attended: Callable[[], tuple[Attended, ...]] = tuple,
    ) -> None:
        """`finish` waits for it, and sets `answer` or `error`."""
        self.took, self.attended = took, attended
        self.plan, self.sampled, self.chosen, self.started = plan, sampled, chosen, started
        self.carried = Carried(plan.number, {sequence: place for place, sequence in enumerate(sampled)}, chosen.tokens)
        self.answer: StepResult | None = None
        self.error: BaseException | None = None
        self._finish = finish

    def result(self) -> StepResult:
        """Wait for the step; raises what the device, or the choice of a token, has raised."""
        if self.answer is None and self.error is None:
            self._finish(self)
        if self.error is not None:
            raise self.error
        assert self.answer is not None, "it was finished"
        return self.answer
