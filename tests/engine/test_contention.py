"""How long threads wait for a processor, where others take it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.engine.contention import INTERVAL, CpuWait

COUNTED = Path("/proc/self/schedstat")


def busy(seconds: float) -> None:
    """Compute for so long, by the clock on the wall."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def test_it_is_asked_for_seldom_and_never_more_than_was_computed() -> None:
    wait = CpuWait()
    assert wait.since_last(100.0, 0.0) == 0.0, "no step, no wait"
    assert wait.since_last(100.0 + INTERVAL / 2, 5.0) == 0.0, "too early to ask"
    assert 0.0 <= wait.since_last(100.0 + INTERVAL, 0.001) <= 5.001


@pytest.mark.skipif(not COUNTED.exists(), reason="this kernel does not count it")
def test_who_shares_a_core_waits() -> None:
    cores = os.sched_getaffinity(0)
    (core, *_) = cores
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        for burner in burners:
            os.sched_setaffinity(burner.pid, {core})
        os.sched_setaffinity(0, {core})
        wait = CpuWait()
        wait.since_last(time.monotonic(), 0.0)
        busy(0.6)
        # Of four who want one core, each waits three quarters of the time.
        assert wait.since_last(time.monotonic(), 0.6) > 0.2
    finally:
        os.sched_setaffinity(0, cores)
        for burner in burners:
            burner.kill()
            burner.wait()
