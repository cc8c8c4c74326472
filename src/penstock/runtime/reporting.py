"""What tiers report of transfers, told with the results of steps."""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec.structs import replace

from penstock.core.plan import StepPlan, StepResult, Transfer
from penstock.runtime.device_memory import raise_if_memory_ended
from penstock.runtime.tiers import Tiers
from penstock.stepping.storage import Blocks


class Handle(Protocol):
    """A step that was begun: see `runtime/handles.py`."""

    @property
    def under_way(self) -> bool:
        """Whether a device computes it meanwhile."""

    def result(self) -> StepResult:
        """Wait until it is over; what came of it."""


class Reporter:
    """Tiers between the steps of an executor.

    Between the result of a step and the next step, what was read is put into the pool, in the order of the device.
    Results are asked for in the order of the steps. A step that is passed over in this is given up, as one that fails
    is: its transfers are not reported any more.

    Args:
        beside: storages with the same blocks, which have nothing of what comes: those of draft models.
    """

    def __init__(self, tiers: Tiers, beside: Sequence[Blocks]) -> None:
        self._tiers, self._beside = tiers, tuple(beside)
        self._unanswered: deque[StepPlan] = deque()

    def watched(self, plan: StepPlan, handle: Handle) -> "ReportingStep":
        """The step of a handle, whose result has the reports too."""
        self._unanswered.append(plan)
        return ReportingStep(self, plan, handle)

    def leave(self, transfers: Collection[Transfer]) -> None:
        """These are not reported: their plan has failed."""
        self._tiers.leave(transfers)

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """Begin those of a plan."""
        self._tiers.begin(transfers)

    def use_idle_time(self) -> None:
        """Nothing is computed: what was copied out of the pool is there soon."""
        self._tiers.hand_over(wait=True)

    def result(self, plan: StepPlan, handle: Handle) -> StepResult:
        """The result of a step, with what is over by now."""
        while self._unanswered[0] is not plan:
            self.leave(self._unanswered.popleft().transfers)
        self._unanswered.popleft()
        try:
            result = handle.result()
            over = self._tiers.finish(self._came, wait=plan.waits)
        except BaseException as error:
            self.leave(plan.transfers)
            if isinstance(error, RuntimeError):
                raise_if_memory_ended(error)
            raise
        return replace(result, transfers=(*result.transfers, *over))

    def _came(self, blocks: Sequence[int]) -> None:
        """A slot has come from a tier."""
        for storage in self._beside:
            storage.clear_blocks(list(blocks))


class ReportingStep:
    """A step whose result has what tiers report; to be asked for once."""

    def __init__(self, reporter: Reporter, plan: StepPlan, handle: Handle) -> None:
        self._reporter, self._plan, self._handle = reporter, plan, handle

    @property
    def under_way(self) -> bool:
        """Whether a device computes it meanwhile."""
        return self._handle.under_way

    def result(self) -> StepResult:
        """Wait for the step, and put what was read into the pool."""
        return self._reporter.result(self._plan, self._handle)
