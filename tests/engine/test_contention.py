"""How long threads waited for a processor, from files as the kernel writes them."""

from pathlib import Path

import pytest

from penstock.engine.contention import INTERVAL, CpuWait


def waits(folder: Path, **seconds: float) -> None:
    """Have each thread wait for so long, from its beginning."""
    for task, waited in seconds.items():
        (folder / task).mkdir(exist_ok=True)
        (folder / task / "schedstat").write_text(f"1 {int(waited * 1e9)} 1\n")


def test_the_thread_that_waited_longest_counts(tmp_path: Path) -> None:
    waits(tmp_path, a=5.0, b=7.0)
    wait = CpuWait(tmp_path)
    wait.begin_step(0.0)
    waits(tmp_path, a=5.5, b=7.1, c=0.2)
    assert wait.since_last(1.0) == pytest.approx(0.5)
    waits(tmp_path, a=6.0)
    assert wait.since_last(1.0 + INTERVAL / 2) == 0.0
    assert wait.since_last(1.0 + INTERVAL) == pytest.approx(0.5)


def test_what_was_waited_for_in_a_pause_is_nobody_s(tmp_path: Path) -> None:
    waits(tmp_path, heartbeat=0.0)
    wait = CpuWait(tmp_path)
    waits(tmp_path, heartbeat=3.0)
    wait.begin_step(60.0)
    assert wait.since_last(60.01) == 0.0
    waits(tmp_path, heartbeat=3.1)
    # The next step follows at once.
    wait.begin_step(60.02)
    assert wait.since_last(60.01 + INTERVAL) == pytest.approx(0.1)


def test_a_thread_that_ends_while_it_is_read_hides_no_other(tmp_path: Path) -> None:
    waits(tmp_path, a=5.0, b=7.0)
    wait = CpuWait(tmp_path)
    (tmp_path / "0").mkdir()
    assert wait.since_last(1.0) == 0.0
    (tmp_path / "0").rmdir()
    waits(tmp_path, a=5.1)
    assert wait.since_last(2.0) == pytest.approx(0.1)


def test_without_such_files_nobody_waits(tmp_path: Path) -> None:
    wait = CpuWait(tmp_path / "none")
    wait.begin_step(0.0)
    assert wait.since_last(1.0) == 0.0
