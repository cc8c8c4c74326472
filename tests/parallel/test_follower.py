"""A rank that is told what to do has the pool, and the programs over it, that it was told to have."""

import socket

import pytest
import torch

from penstock.engine.fail_points import FailPoints
from penstock.kernels.batch import StepBatch
from penstock.parallel.follower import Parts, follow
from penstock.parallel.messages import Clear, Inbox, Pool, Prepare, ProgramName, frame
from penstock.stepping.storage import Pairs


class _Pool:
    """Blocks that tell what is done to them."""

    def __init__(self, blocks: int, done: list[object]) -> None:
        self.blocks, self._done = blocks, done

    def clear_blocks(self, blocks: list[int]) -> None:
        self._done.append((self.blocks, "clear", blocks))

    def copy_blocks(self, pairs: Pairs) -> None:
        raise NotImplementedError


class _Program:
    """One over a pool, that tells when it is made faster."""

    def __init__(self, name: ProgramName, pool: _Pool, done: list[object]) -> None:
        self._name, self._pool, self._done = name, pool, done

    def run(self, batch: StepBatch) -> torch.Tensor:
        raise NotImplementedError

    def results(self, batch: StepBatch, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    def use_idle_time(self) -> bool:
        self._done.append((self._pool.blocks, "prepare", self._name))
        return False


def _no_slots(storage: _Pool) -> Parts:
    raise NotImplementedError


def test_another_pool_has_programs_of_its_own() -> None:
    done: list[object] = []
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            told = (Prepare("logits"), Prepare("logits"), Clear([1]), Pool(7), Clear([2]), Prepare("logits"))
            ours.sendall(b"".join(map(frame, told)))

        def pool(blocks: int) -> _Pool:
            done.append(("pool", blocks))
            return _Pool(blocks, done)

        def program(name: ProgramName, storage: _Pool) -> _Program:
            done.append(("program", storage.blocks))
            return _Program(name, storage, done)

        with pytest.raises(EOFError):
            follow(Inbox(theirs), _Pool(1, done), pool, program, _no_slots, FailPoints(1))
    assert done == [
        *(("program", 1), (1, "prepare", "logits"), (1, "prepare", "logits"), (1, "clear", [1])),
        *(("pool", 7), (7, "clear", [2]), ("program", 7), (7, "prepare", "logits")),
    ]
