"""What an engine was at work on, as the other process reads it."""

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.engine import process
from penstock.engine.process import EngineProcess
from penstock.engine.record import RECORD_BYTES, Record, create_record


@pytest.fixture
def record() -> Record:
    return Record(bytearray(RECORD_BYTES))


def test_it_can_be_any_until_something_is_said(record: Record) -> None:
    assert record.suspects() is None


def test_what_was_said_last_counts(record: Record) -> None:
    record.only({3, 5 << 32})
    assert record.suspects() == {3, 5 << 32}
    record.only(())
    assert record.suspects() == frozenset()
    record.only([7])
    record.any()
    assert record.suspects() is None
    record.only([7])
    assert record.suspects() == {7}


def test_of_too_many_it_can_be_any(record: Record) -> None:
    record.only(range(RECORD_BYTES // 8 - 1))
    assert record.suspects() == set(range(RECORD_BYTES // 8 - 1))
    record.only(range(RECORD_BYTES // 8))
    assert record.suspects() is None


def test_what_makes_no_sense_says_nothing() -> None:
    assert Record(bytearray(b"\xff" * RECORD_BYTES)).suspects() is None


def test_it_outlives_the_process_that_wrote_it() -> None:
    descriptor = create_record()
    program = "import os, sys; from penstock.engine.record import Record; "
    program += "Record.attach(int(sys.argv[1])).only([4, 2]); os.kill(os.getpid(), 9)"
    try:
        ended = subprocess.run([sys.executable, "-c", program, str(descriptor)], pass_fds=(descriptor,))
        assert ended.returncode == -9
        assert Record.attach(descriptor).suspects() == {2, 4}
    finally:
        os.close(descriptor)


def test_a_start_without_descriptors_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[os.stat_result] = []

    def noted() -> int:
        descriptor = create_record()
        made.append(os.fstat(descriptor))
        return descriptor

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(process, "create_record", noted)
            patched.setattr(socket, "socketpair", refuse)
            with pytest.raises(OSError, match="too many"):
                await EngineProcess.start(["true"], lambda done, total: None)

    asyncio.run(main())
    assert len(made) == 1 and not [each for each in opened() if os.path.samestat(each, made[0])]


def opened() -> Iterator[os.stat_result]:
    """All descriptors of this process, which other threads open and close meanwhile."""
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.fstat(int(each))
