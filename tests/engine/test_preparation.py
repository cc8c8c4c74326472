"""What is made ready beside the engine's loop: nothing is lost, and a loop that sleeps is woken."""

import threading

import pytest

from penstock.core.errors import EngineError, EngineUnavailable, InvalidParameter, PenstockError
from penstock.core.grammar import Grammar
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.engine.preparation import MAX_SECONDS, MAX_WAITING, THREADS, Preparations
from support.waiting import PATIENCE


def request(number: int, offered_at: str = "") -> Request:
    params = SamplingParams(grammar=Grammar.regex("a", f"field{number}"), max_tokens=1, seed=0)
    return Request(request_id=number, prompt_token_ids=[1], sampling=params, eos_token_ids=(2,), offered_at=offered_at)


class Desk:
    """Preparations whose work waits for a gate."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate, self.partner = threading.Event(), threading.Event()
        self.woken = threading.Semaphore(0)
        self.error = error
        self.prepared: list[int] = []
        self.preparations = Preparations(self._prepare, self._find, self.woken.release)

    def _prepare(self, request: Request) -> None:
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.prepared.append(request.request_id)

    def _find(self, request: Request) -> None:
        assert self.partner.wait(PATIENCE)

    def wait(self, count: int) -> None:
        self.gate.set()
        for _ in range(count):
            assert self.woken.acquire(timeout=PATIENCE)


def test_requests_come_back_in_their_order() -> None:
    desk = Desk()
    for number in range(5):
        desk.preparations.begin(request(number), now=0.0)
    assert desk.preparations.take(1.0) == []
    desk.wait(5)
    assert desk.preparations.take(1.0) == [(request(number), None, 1.0) for number in range(5)]
    assert desk.preparations.take(1.0) == []
    assert desk.preparations.seconds_left(1.0) is None


def test_one_that_nobody_waits_for_is_not_prepared() -> None:
    desk = Desk()
    for number in range(4):
        desk.preparations.begin(request(number), now=0.0)
    desk.preparations.drop(3)
    desk.preparations.drop(7)
    desk.wait(4)
    assert [ready.request_id for ready, _, _ in desk.preparations.take(1.0)] == [0, 1, 2]
    assert sorted(desk.prepared) == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "kind"), [(InvalidParameter("regex", "is wrong."), InvalidParameter), (ValueError("0x1234"), EngineError)]
)
def test_an_error_is_the_requests(error: Exception, kind: type[PenstockError]) -> None:
    desk = Desk(error)
    desk.preparations.begin(request(0), now=0.0)
    desk.wait(1)
    ((_, found, _),) = desk.preparations.take(1.0)
    assert type(found) is kind
    assert "0x1234" not in found.message


def test_one_that_takes_too_long_is_refused() -> None:
    desk = Desk()
    desk.preparations.begin(request(0), now=5.0)
    assert desk.preparations.seconds_left(6.0) == MAX_SECONDS - 1
    assert desk.preparations.take(5.0 + MAX_SECONDS / 2) == []
    ((_, error, _),) = desk.preparations.take(5.0 + MAX_SECONDS)
    assert isinstance(error, InvalidParameter)
    assert error.param == "field0"
    desk.wait(1)
    assert desk.preparations.take(100.0) == []


def test_how_many_wait_is_bounded() -> None:
    desk = Desk()
    for number in range(MAX_WAITING):
        desk.preparations.begin(request(number), now=0.0)
    with pytest.raises(EngineUnavailable, match="try again"):
        desk.preparations.begin(request(MAX_WAITING), now=0.0)
    desk.wait(MAX_WAITING)
    assert len(desk.preparations.take(0.0)) == MAX_WAITING


def test_who_waits_for_another_replica_keeps_no_grammar_waiting() -> None:
    desk = Desk()
    for number in range(2 * THREADS):
        desk.preparations.begin(request(number, "a place"), now=0.0)
    desk.preparations.begin(request(99), now=0.0)
    # All grammars are ready, and one request waits for nothing else.
    desk.wait(2 * THREADS + 1)
    assert desk.preparations.take(1.0) == [(request(99), None, 1.0)]
    # A replica that never answers is no fault of a grammar.
    assert {error for _, error, _ in desk.preparations.take(MAX_SECONDS)} == {None}
    assert not desk.preparations.waiting
    desk.partner.set()
