"""The worker's loop, turn by turn, with a step under way while messages come."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from penstock.core.errors import InvalidParameter
from penstock.core.request import Request
from penstock.core.sampling import SamplingParams
from penstock.engine.contention import CpuWait
from penstock.engine.core import EngineCore
from penstock.engine.messages import Flush, Flushed, FromEngine, Pause, StepOutputs, Submit, ToEngine, unpack_outputs
from penstock.engine.pulling import Found
from penstock.engine.record import RECORD_BYTES, Record
from penstock.engine.worker import _Loop
from support.elsewhere import SPEC, Elsewhere, core_beside
from support.made_up_model import expected_output
from support.simulation import make_request, prompt


class Script:
    """The loop's connection: `turns` are the messages that each look for some finds; when it waits in vain, it ends.

    Attributes:
        tokens: what was told, by turn.
        waits: the turns in which it waited.
        flushed: what was answered to `Flush`, and after which turn.
    """

    def __init__(self, turns: list[list[ToEngine]]) -> None:
        self._turns = turns
        self.tokens: list[list[int]] = []
        self.waits: list[int] = []
        self.flushed: list[tuple[Flushed, int]] = []
        self._turn = 0

    def receive(self, *, wait: bool, seconds: float | None = None) -> list[ToEngine]:
        if wait:
            self.waits.append(self._turn)
            if self._turn >= len(self._turns):
                raise EOFError
        self._turn += 1
        return self._turns[self._turn - 1] if self._turn <= len(self._turns) else []

    def wake(self) -> None:
        """Nothing is prepared beside the loop here."""

    def send(self, message: FromEngine) -> None:
        if isinstance(message, StepOutputs):
            self.tokens.append([token for output in unpack_outputs(message) for token in output.gained.tokens])
        elif isinstance(message, Flushed):
            self.flushed.append((message, len(self.tokens)))


def served(turns: list[list[ToEngine]], executor: Elsewhere) -> Script:
    record = Record(bytearray(RECORD_BYTES))
    script = Script(turns)
    with pytest.raises(EOFError):
        _Loop(script, core_beside(executor), record, CpuWait()).run()  # type: ignore[arg-type]
    return script


def output(max_tokens: int) -> list[int]:
    return expected_output(SPEC, prompt(9), SamplingParams(max_tokens=max_tokens, seed=0))[0]


def test_a_pause_lets_what_was_begun_end_and_begins_nothing() -> None:
    executor = Elsewhere()
    request = Submit(make_request(0, prompt(9), 4))
    script = served([[request], [Pause(0)], [], [Pause(None)]], executor)
    first, second, third, fourth = output(4)
    # The load at the start; then a turn with each token, and between them one that only waits.
    assert script.tokens == [[], [first], [second], [], [third], [fourth]]
    assert script.waits == [0, 2, 3, 5]
    assert executor.events[:4] == [("begin", 0), ("begin", 1), ("result", 0), ("result", 1)]


@pytest.mark.parametrize("done", [True, False])
def test_what_is_written_is_waited_for_once_nothing_is_computed(done: bool) -> None:
    asked: list[float] = []

    def flush(seconds: float) -> bool:
        asked.append(seconds)
        return done

    script = Script([[Submit(make_request(0, prompt(9), 3)), Flush(7, 2.5)]])
    loop = _Loop(script, core_beside(Elsewhere()), Record(bytearray(RECORD_BYTES)), CpuWait(), flush=flush)  # type: ignore[arg-type]
    with pytest.raises(EOFError):
        loop.run()
    assert [each for turn in script.tokens for each in turn] == output(3)
    # Behind the load at the start and the turns of three tokens.
    assert asked == [2.5] and script.flushed == [(Flushed(7, done), 4)]


def test_the_record_has_all_whose_steps_are_under_way() -> None:
    class Looking(Elsewhere):
        def pass_event(self, what: str, number: int, seconds: float) -> None:
            super().pass_event(what, number, seconds)
            seen.append(record.suspects())

    seen: list[frozenset[int] | None] = []
    executor, record = Looking(), Record(bytearray(RECORD_BYTES))
    turns: list[list[ToEngine]] = [[Submit(make_request(0, prompt(9), 2))], [Submit(make_request(1, prompt(7), 1))]]
    with pytest.raises(EOFError):
        _Loop(Script(turns), core_beside(executor), record, CpuWait()).run()  # type: ignore[arg-type]
    assert executor.events == [
        ("begin", 0),
        ("begin", 1),
        ("result", 0),
        ("begin", 2),
        ("result", 1),
        ("result", 2),
    ]
    both = frozenset({0, 1})
    assert seen == [{0}, {0}, {0}, both, both, {1}]


class Others:
    """Other replicas, which have all that they are asked for; `left` are requests that need nothing more."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.left: list[int] = []

    def find(self, request: Request, place: str, slots: Found, awaited: int) -> Found:
        self._meanwhile()
        return slots

    def leave(self, request_id: int) -> Found:
        self.left.append(request_id)
        return ()


@pytest.mark.parametrize("late", [False, True])
def test_what_is_refused_needs_nothing_of_other_replicas(late: bool) -> None:
    """`late`: what they have is known once it was refused."""

    def refuse() -> None:
        loop._add(request, InvalidParameter("regex", "could not be compiled."))

    others = Others(refuse if late else lambda: None)
    core = EngineCore(core_beside(Elsewhere()).scheduler, Elsewhere(), partners=others)
    loop = _Loop(Script([]), core, Record(bytearray(RECORD_BYTES)), CpuWait())  # type: ignore[arg-type]
    request = replace(make_request(7, prompt(90), 4), offered_at="a place")
    assert core.needs_preparation(request)
    core.find(request)
    assert others.left == ([7, 7] if late else [])
    refuse()
    assert others.left == ([7, 7] if late else [7]) and not core._pulling._found
