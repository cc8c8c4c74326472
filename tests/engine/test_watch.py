"""When an engine counts as stuck, and how long to wait before it is started again."""

from dataclasses import dataclass

import pytest

from penstock.engine.watch import Patience, RestartPolicy, StallWatch

PATIENCE = Patience(settled_seconds=30.0, first_delay=1.0, longest_delay=8.0)


@dataclass
class Moving:
    beats: int = 0


def test_an_engine_that_moves_is_never_stalled() -> None:
    watch, engine = StallWatch(), Moving()
    watch.begin(engine)
    for _ in range(100):
        engine.beats += 1
        watch.look(engine, 0.5)
        assert watch.stalled == 0.0


def test_looks_without_a_beat_add_up_until_the_next_beat() -> None:
    watch, engine = StallWatch(), Moving(beats=7)
    watch.begin(engine)
    for look in range(1, 5):
        watch.look(engine, 0.5)
        assert watch.stalled == look * 0.5
    engine.beats += 1
    watch.look(engine, 0.5)
    assert watch.stalled == 0.0
    watch.look(engine, 0.5)
    assert watch.stalled == 0.5


def test_another_engine_begins_anew() -> None:
    watch = StallWatch()
    watch.begin(Moving())
    watch.look(Moving(), 3.0)
    other = Moving(beats=2)
    watch.begin(other)
    assert watch.stalled == 0.0
    watch.look(other, 0.5)
    assert watch.stalled == 0.5


@pytest.mark.parametrize(
    ("served", "delays"),
    [
        ([100.0], [0.0]),
        ([100.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 8.0]),
        # An engine that ends soon after its first start is tried again at once, too.
        ([0.0, 29.9, 29.9, 30.0, 29.9, 29.9], [0.0, 1.0, 2.0, 0.0, 0.0, 1.0]),
    ],
)
def test_pauses_double_while_an_engine_ends_soon(served: list[float], delays: list[float]) -> None:
    policy = RestartPolicy(PATIENCE)
    assert [policy.delay(seconds) for seconds in served] == delays
