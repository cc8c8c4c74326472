"""Standard error that never fails and never makes anybody wait."""

import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import log_stream
from penstock.cli.log_stream import MOST_WAITING, LogStream, unfailing_stderr
from support.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for whatever can be written, however slow this machine is."""
    monkeypatch.setattr(log_stream, "_END_SECONDS", PATIENCE)


def test_what_is_written_comes_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    stream = LogStream(descriptor)
    for number in range(1000):
        print(f"line {number} ü \ud800", file=stream)
    stream.end()
    os.close(descriptor)
    lines = path.read_text().splitlines()
    assert lines == [f"line {number} ü \\ud800" for number in range(1000)]


def test_a_reader_that_has_gone_costs_what_is_written_only() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = LogStream(writer)
    for _ in range(100):
        stream.write("nobody reads this\n")
    assert what_comes_later(stream, writer) == "100 pieces of this log were lost: Broken pipe.\nthe end\n"


def test_a_reader_that_does_not_read_makes_nobody_wait() -> None:
    reader, writer = os.pipe()
    stream = LogStream(writer)
    text = "x" * 99 + "\n"
    for _ in range(2 * MOST_WAITING):
        stream.write(text)
    # Once it reads, it gets what could be kept, and is told of the rest.
    got = bytearray()

    def read() -> None:
        while data := os.read(reader, 65536):
            got.extend(data)

    thread = threading.Thread(target=read)
    thread.start()
    # While it still holds what it can, more would be lost.
    until(lambda: b"were lost: it has no reader" in got and stream._texts.empty())
    stream.write("the end\n")
    stream.end()
    os.close(writer)
    thread.join(PATIENCE)
    os.close(reader)
    assert got.endswith(b"the end\n") and got.count(b"x") > MOST_WAITING * 90


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_costs_what_is_written_only() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = LogStream(descriptor)
    for _ in range(100):
        stream.write("there is no room for this\n")
    lost = "100 pieces of this log were lost: No space left on device.\n"
    assert what_comes_later(stream, descriptor) == f"{lost}the end\n"


def what_comes_later(stream: LogStream, descriptor: int) -> str:
    """What is written once there is something behind the descriptor that works."""
    until(lambda: stream._lost >= 100)
    reader, writer = os.pipe()
    os.dup2(writer, descriptor)
    os.close(writer)
    stream.write("the end\n")
    stream.end()
    os.close(descriptor)
    with open(reader) as read:
        return read.read()


@pytest.fixture
def ended() -> Iterator[tuple[logging.Logger, int, int]]:
    """A logger over a stream that has ended, and the pipe behind it."""
    reader, writer = os.pipe()
    stream = LogStream(writer)
    logger = logging.Logger("late")
    logger.addHandler(logging.StreamHandler(stream))
    logger.info("in time")
    stream.end()
    yield logger, reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(descriptor)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """What handlers of logs have caught."""
    found: list[BaseException | None] = []
    monkeypatch.setattr(logging.Handler, "handleError", lambda self, record: found.append(sys.exception()))
    return found


def test_what_is_logged_after_the_end_is_written(
    ended: tuple[logging.Logger, int, int], raised: list[BaseException | None]
) -> None:
    logger, reader, writer = ended
    for number in range(100):
        logger.info("late %d ü \ud800", number)
    os.close(writer)
    with open(reader, closefd=False) as read:
        assert read.read().splitlines() == ["in time", *(f"late {number} ü \\ud800" for number in range(100))]
    assert not raised


def test_nobody_waits_after_the_end_either(
    ended: tuple[logging.Logger, int, int], raised: list[BaseException | None]
) -> None:
    """Neither for a reader that does not read, nor for one that has gone, nor for a descriptor that is closed."""
    logger, reader, writer = ended

    def log() -> None:
        for _ in range(100):
            logger.info("x" * 10_000)
        os.close(reader)
        logger.info("nobody is there")
        os.close(writer)
        logger.info("nor is the pipe")
        logging.shutdown([weakref.ref(handler) for handler in logger.handlers])

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive() and not raised


def test_without_standard_error_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts a server with it closed (`2>&-`) has none."""
    monkeypatch.setattr(sys, "stderr", None)
    with unfailing_stderr():
        assert sys.stderr is None
