"""Reports of tiers with the results of steps: each once, whatever becomes of the steps."""

import threading
from collections.abc import Sequence

import pytest
import torch

from penstock.cache.shelf_room import Name
from penstock.core.errors import StepOutOfMemory
from penstock.core.plan import Place, StepPlan, StepResult, Transfer
from penstock.runtime.reporting import Reporter, ReportingStep
from penstock.runtime.sealing import Sealing
from penstock.runtime.tier import Backing
from penstock.runtime.tiers import Tiers
from penstock.stepping.storage import Pairs
from support.tiers import SIZE, Others, Pool

KEYS = [bytes([number]) * 32 for number in range(4)]
SEALING = Sealing(b"s" * 16)


class Gated(Others):
    """A store that gives the first of these keys only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        for number, key in enumerate(KEYS):
            sealed = bytearray(SEALING.beside + SIZE)
            SEALING.seal((0, key), bytes([number]) * SIZE, sealed)
            self.put((0, key), sealed)

    def get(self, name: Name, most: int) -> bytes | None:
        if name[1] == KEYS[0]:
            self.gate.wait()
        return super().get(name, most)


class Handle:
    """A step that a device computes, and that fails where it is told why."""

    under_way = True

    def __init__(self, number: int, error: BaseException | None) -> None:
        self._number, self._error = number, error

    def result(self) -> StepResult:
        if self._error is not None:
            raise self._error
        return StepResult(self._number, ())


class Cleared:
    """Blocks of a draft model."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def clear_blocks(self, blocks: list[int]) -> None:
        self.blocks += blocks

    def copy_blocks(self, pairs: Pairs) -> None:
        raise NotImplementedError


class Steps:
    """Steps of an executor whose tiers read from a store."""

    def __init__(self) -> None:
        self.store, self.pool, self.drafts = Gated(), Pool(), Cleared()
        tiers = Tiers([Backing("disk", "--kv-disk", self.store)], SEALING, self.pool, [SIZE])
        self._reporter = Reporter(tiers, [self.drafts])
        self._number = 0

    def begin(self, *reads: int, error: BaseException | None = None) -> ReportingStep:
        """The next step, with transfers that read these keys into blocks of their numbers."""
        transfers = tuple(Transfer(each, 0, Place("disk", (), KEYS[each]), Place("pool", (each,))) for each in reads)
        plan = StepPlan(self._number, (), transfers=transfers)
        self._number += 1
        self._reporter.begin(transfers)
        return self._reporter.watched(plan, Handle(plan.number, error))

    def until(self, count: int) -> list[int]:
        """Steps until so many transfers are reported: which."""
        found: list[int] = []
        while len(found) < count:
            found += told(self.begin().result())
        return sorted(found)


def told(result: StepResult) -> list[int]:
    assert all(report.done for report in result.transfers)
    return [report.id for report in result.transfers]


def test_what_was_read_is_put_and_reported_with_a_later_step() -> None:
    """Two steps are under way, and the older one tells what the newer one has begun."""
    steps = Steps()
    older, newer = steps.begin(1), steps.begin(2)
    assert older.under_way
    found = told(older.result()) + told(newer.result())
    assert sorted(found + steps.until(2 - len(found))) == sorted(steps.drafts.blocks) == [1, 2]
    assert steps.pool.blocks[2] == bytes([2]) * SIZE


@pytest.mark.parametrize("error", [RuntimeError("the device is ill"), None])
def test_a_step_that_fails_or_is_passed_over_is_told_nothing_of(error: BaseException | None) -> None:
    """And its blocks are not written, which may be another one's by then."""
    steps = Steps()
    given_up, next_one = steps.begin(0, 1, error=error), steps.begin(2)
    if error is not None:
        with pytest.raises(RuntimeError, match="ill"):
            given_up.result()
    found = told(next_one.result())
    found += steps.until(1 - len(found))
    steps.store.gate.set()
    found += told(steps.begin(3).result())
    found += steps.until(2 - len(found))
    assert found == [2, 3] and sorted(steps.pool.blocks) == [2, 3] == sorted(steps.drafts.blocks)


@pytest.mark.parametrize("raised", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("the device is ill")])
def test_where_nothing_can_be_put_nothing_is_lost(raised: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has failed; what was read before it is reported with the next."""
    steps = Steps()

    def fails(slots: Sequence[object]) -> None:
        raise raised

    expected = StepOutOfMemory if isinstance(raised, torch.OutOfMemoryError) else RuntimeError
    assert not told(steps.begin(0).result())
    with monkeypatch.context() as broken:
        broken.setattr(steps.pool, "put_slots", fails)
        steps.store.gate.set()
        with pytest.raises(expected):
            steps.until(1)
    assert steps.until(1) == [0]
