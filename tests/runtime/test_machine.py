"""Limits of containers, read from files as the kernel writes them."""

from pathlib import Path

import pytest

from penstock.runtime import machine
from penstock.runtime.machine import machine_facts


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _pid: set(range(8)))
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, *rest: lines if str(self) == "/proc/self/cgroup" else read_text(self, *rest)
    )


def test_without_limits_the_machine_counts(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "0::/\n")
    write(cgroups, memory__max="max\n", cpu__max="max 100000\n")
    facts = machine_facts(api_beside=True)
    assert facts.cores == 8
    assert facts.available_memory > 2**28
    assert facts.api_beside


def test_the_tightest_ancestor_counts(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "0::/outer/inner\n")
    stat = "anon 5\ninactive_file 1000\nactive_file 200\n"
    write(cgroups / "outer", memory__max="50000", memory__current="20000", memory__stat=stat, cpu__max="250000 100000")
    write(cgroups / "outer" / "inner", memory__max="max", memory__current="20000", cpu__max="max 100000")
    facts = machine_facts(api_beside=False)
    assert facts.available_memory == 50000 - 20000 + 1200
    assert facts.cores == 2


def test_version_1_is_read_too(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "4:memory:/job\n3:cpu,cpuacct:/job\n")
    stat = "total_inactive_file 7\ntotal_active_file 3\n"
    write(
        cgroups / "memory" / "job",
        memory__limit_in_bytes="9000",
        memory__usage_in_bytes="4000",
        memory__stat=stat,
    )
    write(cgroups / "cpu,cpuacct" / "job", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    facts = machine_facts(api_beside=False)
    assert facts.available_memory == 5010
    assert facts.cores == 3
