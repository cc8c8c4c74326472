"""What a supervisor knows: on a made-up clock."""

import msgspec
import pytest

from penstock.core.errors import ConfigurationError
from penstock.fleet.books import Books
from penstock.fleet.description import Between, FleetDescription, ModelDescription
from penstock.fleet.reconcile import MOST_FAILED_STARTS, Phase

ONE = ModelDescription(name="m", replicas=Between(1, 3), start_seconds=100.0, drain_seconds=5.0)
TWO = msgspec.structs.replace(ONE, cores=2)


def fleet(*models: ModelDescription) -> FleetDescription:
    return FleetDescription(model=models)


def ready(books: Books, name: str, now: float) -> bool:
    return books.seen(name, ready=True, why="", requests=1, now=now)


def test_a_replica_from_start_to_end() -> None:
    books = Books(fleet(ONE))
    books.started("a", ONE, books.free_slot("m", 3), 0.0)
    assert not books.seen("a", ready=False, why="it loads", requests=0, now=1.0)
    assert books.replicas["a"].phase == Phase.STARTING and not books.settled
    assert ready(books, "a", 2.0) and not ready(books, "a", 3.0) and books.settled
    assert books.members()[0].requests == 1
    assert books.seen("a", ready=False, why="it hangs", requests=0, now=4.0)
    assert books.replicas["a"].phase == Phase.UNREADY and books.replicas["a"].why == "it hangs"
    books.draining("a", "asked", 5.0)
    assert not ready(books, "a", 6.0) and books.replicas["a"].phase == Phase.DRAINING
    books.ended("a", "in order", 7.0)
    assert not books.replicas and books.models["m"].restarts == 0 and not books.told


def test_all_is_tried_once_each_model_serves_or_has_failed_to() -> None:
    other = msgspec.structs.replace(ONE, name="other")
    books = Books(fleet(ONE, other))
    books.started("a", ONE, 0, 0.0)
    books.started("b", other, 0, 0.0)
    ready(books, "a", 1.0)
    assert not books.tried
    books.ended("b", "it could not load", 2.0)
    assert books.tried and not books.settled
    books.started("c", other, 0, 3.0)
    ready(books, "c", 4.0)
    assert books.tried and books.settled


def test_slots_are_taken_evenly() -> None:
    books = Books(fleet(ONE))
    for number, expected in enumerate([0, 1, 2, 0]):
        assert books.free_slot("m", 3) == expected
        books.started(str(number), ONE, expected, 0.0)


def test_numbers_stay_within_bounds() -> None:
    books = Books(fleet(ONE))
    books.scale("m", 3)
    assert books.models["m"].count == 3
    with pytest.raises(ConfigurationError, match="from 1 to 3 replicas by its description, not 4"):
        books.scale("m", 4)
    with pytest.raises(ConfigurationError, match="has no model 'n'"):
        books.scale("n", 1)
    # What was scaled stays so, as far as new bounds let it.
    books.describe(fleet(msgspec.structs.replace(ONE, replicas=Between(1, 2))))
    assert books.models["m"].count == 2
    books.describe(fleet(msgspec.structs.replace(ONE, replicas=1)))
    assert books.models["m"].count == 1


def test_what_does_not_become_what_it_should_is_overdue() -> None:
    books = Books(fleet(ONE))
    for name in "abc":
        books.started(name, ONE, 0, 0.0)
    ready(books, "b", 10.0)
    books.seen("b", ready=False, why="silent", requests=0, now=20.0)
    books.draining("c", "asked", 30.0)
    assert books.overdue(79.0) == []
    assert books.overdue(81.0) == [("b", "it could not be asked for 60 s (silent)")]
    assert [name for name, _ in books.overdue(101.0)] == ["a", "b", "c"]


def test_an_update_whose_replicas_never_are_ready_is_taken_back() -> None:
    books = Books(fleet(ONE))
    books.started("a", ONE, 0, 0.0)
    ready(books, "a", 1.0)
    books.describe(fleet(TWO))
    assert books.wanted()[0].version == TWO.version
    for number in range(MOST_FAILED_STARTS):
        books.started(f"b{number}", TWO, 0, 2.0)
        books.ended(f"b{number}", "no memory", 3.0)
    assert books.wanted()[0].version == ONE.version and books.settled
    assert "is taken back" in books.told[-1] and "no memory" in books.told[-1]


def test_one_that_was_ready_once_is_not_taken_back() -> None:
    books = Books(fleet(ONE))
    books.started("a", ONE, 0, 0.0)
    ready(books, "a", 1.0)
    books.describe(fleet(TWO))
    books.started("b", TWO, 0, 2.0)
    ready(books, "b", 3.0)
    for number in range(2 * MOST_FAILED_STARTS):
        books.ended("b" if not number else f"b{number}", "killed", 4.0)
        books.started(f"b{number + 1}", TWO, 0, 4.0)
    assert books.wanted()[0].version == TWO.version and books.wanted()[0].failures == 2 * MOST_FAILED_STARTS
    # Failures that are far apart have nothing to do with each other.
    books.ended(f"b{2 * MOST_FAILED_STARTS}", "killed", 1000.0)
    assert books.wanted()[0].failures == 1


def test_a_model_that_is_described_no_longer() -> None:
    books = Books(fleet(ONE, ModelDescription(name="n")))
    books.started("x", books.models["n"].wanted, 0, 0.0)
    books.describe(fleet(ONE))
    assert [each.model for each in books.wanted()] == ["m"] and not books.settled
    books.ended("x", "killed", 1.0)
    assert books.told == ["x: killed"]
