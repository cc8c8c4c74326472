"""Standard error that never fails and never makes anybody wait."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.cli.log_stream import MOST_WAITING, LogStream, unfailing_stderr


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
    stream.end()
    os.close(writer)


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
    deadline = time.monotonic() + 10
    while b"were lost: nobody reads it" not in got:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stream.write("the end\n")
    stream.end()
    os.close(writer)
    thread.join(10)
    os.close(reader)
    assert got.endswith(b"the end\n") and got.count(b"x") > MOST_WAITING * 90


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_costs_what_is_written_only() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = LogStream(descriptor)
    for _ in range(100):
        print("there is no room for this", file=stream)
    stream.end()
    os.close(descriptor)


def test_without_standard_error_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts a server with it closed (`2>&-`) has none."""
    monkeypatch.setattr(sys, "stderr", None)
    with unfailing_stderr():
        assert sys.stderr is None
