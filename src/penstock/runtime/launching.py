"""Steps that a device computes one behind the other, while their tokens are not known here."""

import time
from collections import deque

from penstock.core.plan import SampleResult, StepPlan, StepResult
from penstock.runtime.handles import LaunchedStep, all_done
from penstock.runtime.rows import Row, RowTable
from penstock.sampling.sampler import Place, Sampler, take
from penstock.stepping.gather import order_rows
from penstock.stepping.model import Model
from penstock.stepping.storage import Took, no_time


class Launcher:
    """Launches steps whose tokens are chosen on the device, and finishes them in order."""

    def __init__(self, table: RowTable, model: Model, sampler: Sampler) -> None:
        self._table = table
        self._model = model
        self._sampler = sampler
        # Steps that the device is computing, the oldest first.
        self._launched: deque[LaunchedStep] = deque()
        # When the newest step that was waited for was over.
        self._waited = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether the device is computing."""
        return bool(self._launched)

    def can_launch(self, plan: StepPlan) -> bool:
        """Whether there is something to launch, and the next step can be begun before its results are known here."""
        rows, sampler = self._table.rows, self._sampler
        return bool(plan.rows) and all(
            row.scored[0] == row.scored[1]
            and row.sequence not in self._table.pooled
            and all(sampler.can_begin(rows[sample].state) for sample in row.samples)
            for row in plan.rows
        )

    def launch(self, plan: StepPlan, started: float, took: Took = no_time) -> LaunchedStep:
        """Let the device compute the step behind the one that it computes now, and behind copies that `took` is of."""
        table, rows = self._table, order_rows(plan.rows)
        table.place(plan.rows)
        carried = self._launched[-1].carried if self._launched else None
        batch = table.gather(rows, table.tables_of(rows), carried)
        logits = self._model.run(batch)
        sampled: dict[int, Row] = {}
        places: list[Place] = []
        for logits_row, row in enumerate(row for row in rows if row.samples):
            for sample in row.samples:
                sampled[sample] = table.rows[sample]
                ahead = int(carried is not None and sample in carried.places)
                places.append(Place(sampled[sample].state, logits_row, ahead))
        chosen = self._sampler.begin(logits, places)
        step = LaunchedStep(plan, sampled, chosen, started, self._finish, took, lambda: table.attended(rows, batch))
        self._launched.append(step)
        return step

    def wait(self, leave: int = 0) -> None:
        """Wait for the oldest steps, until only `leave` are under way; what goes wrong is told by their handles."""
        while len(self._launched) > leave:
            self._finish_oldest()

    def _finish(self, step: LaunchedStep) -> None:
        """Wait for a step, and for those before it."""
        while step in self._launched:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        step = self._launched.popleft()
        try:
            step.answer = self._answer(step)
        except BaseException as error:
            step.error = error
            # Behind a step that failed, nothing can be made of what it should have computed.
            self._table.make_void({*step.sampled, *(row.sequence for row in step.plan.rows)})
            if not isinstance(error, Exception):
                raise

    def _answer(self, step: LaunchedStep) -> StepResult:
        """Give the rows their tokens, but for those that are void."""
        table = self._table
        chosen = step.chosen.read()
        over = time.perf_counter()
        # While the device computed the step before, it did not compute this one.
        seconds, self._waited = over - max(step.started, self._waited), over
        table.end_forks(step.plan)
        results: list[SampleResult] = []
        for (sequence, row), one in zip(step.sampled.items(), chosen, strict=True):
            if table.is_void(sequence):
                continue
            gained = take(row.state, one)
            row.tokens += gained.tokens
            if gained.ending is not None:
                table.make_void((sequence,))
            results.append(SampleResult(sequence, gained))
        choosing = time.perf_counter() - over
        transfers = all_done(step.plan, step.took)
        # Masses have come before the tokens.
        attended = step.attended()
        return StepResult(step.plan.number, tuple(results), seconds, choosing, transfers=transfers, attended=attended)
