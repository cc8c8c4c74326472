"""What a stage gives to the next one arrives as it was, in order, or not at all."""

import socket
import threading

import pytest
import torch

from penstock.core.errors import EngineError
from penstock.parallel.passing import Before, Behind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrices_arrive_as_they_were(dtype: torch.dtype) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        before, behind = Before(theirs), Behind(ours)
        wide = torch.randn(300, 512).to(dtype)
        # In one piece or not, with rows or without.
        steps = [(wide,), (wide[:, 3:9], wide[:0]), (torch.zeros(1, 1, dtype=dtype),)]
        for number, values in enumerate(steps, 1):
            behind.give(number, values)
        for number, values in enumerate(steps, 1):
            found = before.take(number)
            assert len(found) == len(values)
            assert all(
                torch.equal(mine, right) and mine.dtype is dtype for mine, right in zip(found, values, strict=True)
            )
        assert behind.sent == sum(value.numel() for values in steps for value in values) * dtype.itemsize


def test_what_was_not_asked_for_is_passed_over() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        before, behind = Before(theirs), Behind(ours)
        for number in (1, 2, 3):
            behind.give(number, (torch.tensor([[float(number)]]),))
        assert float(before.take(3)[0]) == 3


def test_a_stage_that_ends_in_the_middle_of_a_step_lets_the_next_one_end() -> None:
    for content in (b"", b"\x05\x00", b"\x05\x00\x00\x00\x93"):
        ours, theirs = socket.socketpair()
        before = Before(theirs)
        ours.sendall(content)
        ours.close()
        for _ in range(2):
            with pytest.raises(EngineError, match="The stage before this one has ended"):
                before.take(1)


def test_who_waits_is_let_go() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        before = Before(theirs)
        failed: list[EngineError] = []

        def wait() -> None:
            try:
                before.take(1)
            except EngineError as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        before.part()
        waiting.join()
        assert failed


def test_the_next_stage_that_has_ended_is_told() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError):
        Behind(ours).give(1, (torch.zeros(1, 1),))
