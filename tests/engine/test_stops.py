"""When a process counts as stopped by a signal."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.engine.stops import MOST_STOPPED, Stops, stopped_by_signal
from support.waiting import until


def looks(*states: set[int]) -> list[int | None]:
    """What comes of a look at processes 7 and 8 in each of these states, which are sets of those that are stopped."""
    stopped: set[int] = set()
    stops = Stops(lambda process: process in stopped)
    found = []
    for state in states:
        stopped.clear()
        stopped |= state
        found.append(stops.look([7, 8]))
    return found


def test_what_stays_stopped_is_named() -> None:
    assert looks(*[{8}] * MOST_STOPPED) == [None] * (MOST_STOPPED - 1) + [8]


def test_what_goes_on_in_time_is_not_stopped() -> None:
    stopped_shortly = [{7, 8}] * (MOST_STOPPED - 1) + [set[int]()]
    assert looks(*stopped_shortly * 5) == [None] * (MOST_STOPPED * 5)


def test_two_that_are_stopped_in_turn_are_not() -> None:
    assert looks(*[{7}, {8}] * MOST_STOPPED) == [None] * (2 * MOST_STOPPED)


def test_another_process_begins_anew() -> None:
    stops = Stops(lambda _process: True)
    assert [stops.look([number]) for number in (1, 1, 1, 2, 1, 1, 1, 1)] == [None] * 7 + [1]


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"]) as process:
        yield process
        process.kill()


def test_the_kernel_says_what_a_signal_has_stopped(process: "subprocess.Popen[bytes]") -> None:
    assert not stopped_by_signal(process.pid)
    process.send_signal(signal.SIGSTOP)
    until(lambda: stopped_by_signal(process.pid))
    process.send_signal(signal.SIGCONT)
    until(lambda: not stopped_by_signal(process.pid))


def test_what_has_ended_is_not_stopped(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)
    process.kill()
    until(lambda: not stopped_by_signal(process.pid))
    process.wait()
    assert not stopped_by_signal(process.pid)
