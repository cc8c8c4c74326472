"""A machine is read from files as the kernel writes them, and this one too."""

import os
from pathlib import Path

import pytest

from penstock.doctor import probe
from penstock.doctor.finding import Evidence
from penstock.doctor.machine import Kernels
from penstock.runtime import machine as runtime_machine

CPUINFO = "processor\t: 0\nmodel name\t: Made-up 9000\nflags\t\t: fpu avx2 avx512f hypervisor amx_int8\n"
MEMINFO = "MemTotal: 1000 kB\nMemAvailable:  600 kB\nSwapTotal: 200 kB\nSwapFree: 50 kB\n"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four processors on two cores of two nodes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(runtime_machine, "CGROUP", tmp_path / "cgroup")
    write(tmp_path / "proc/cpuinfo", CPUINFO)
    write(tmp_path / "proc/meminfo", MEMINFO)
    write(tmp_path / "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    for number in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}"
        write(folder / "topology/thread_siblings_list", f"{number % 2},{number % 2 + 2}\n")
        write(folder / "cpufreq/scaling_governor", "powersave\n")
        (folder / f"node{number % 2}").mkdir()
    return tmp_path


def use_groups(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, *rest: lines if str(self) == "/proc/self/cgroup" else read_text(self, *rest)
    )


def test_processors_are_read(root: Path) -> None:
    found = probe.read_processor(3, root)
    assert (found.name, found.usable, found.threads, found.cores, found.nodes) == ("Made-up 9000", 4, 3, 2, 2)
    assert found.extensions == ("avx2", "avx512f", "amx_int8")
    assert found.governors == ("powersave",) and found.virtual


def test_a_quota_is_read_with_how_often_it_stopped_somebody(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_groups(monkeypatch, "0::/a/b\n")
    write(root / "cgroup/a/cpu.max", "150000 100000\n")
    write(root / "cgroup/a/cpu.stat", "usage_usec 5\nnr_periods 200\nnr_throttled 30\n")
    write(root / "cgroup/a/b/cpu.max", "max 100000\n")
    quota = probe.read_processor(None, root).quota
    assert (quota.cores, quota.periods, quota.throttled) == (1.5, 200, 30)
    assert quota.source == str(root / "cgroup/a/cpu.max")


def test_memory_is_read_with_its_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_groups(monkeypatch, "0::/a\n")
    write(root / "cgroup/a/memory.max", "500000\n")
    write(root / "cgroup/a/memory.current", "100000\n")
    found = probe.read_memory(root)
    assert (found.total, found.available, found.swap_total, found.swap_used) == (1024000, 614400, 204800, 153600)
    assert found.limit == 500000 and found.limit_source == str(root / "cgroup/a/memory.max")
    assert found.usable == 400000 and found.huge_pages == "never"


def test_a_limit_that_is_none_is_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_groups(monkeypatch, "4:memory:/\n")
    write(root / "cgroup/memory/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    assert probe.read_memory(root).limit is None


def test_others_are_seen_in_what_processors_did(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "cpu{} {} 0 0 {} 0 0 0 {} 0 0\n"
    write(root / "proc/stat", "".join(lines.format(number, 100, 900, 0) for number in range(6)))
    write(root / "proc/pressure/cpu", "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=0.00 total=0\n")

    def pass_time(_: float) -> None:
        write(root / "proc/stat", "".join(lines.format(number, 150, 940, 10) for number in range(6)))

    monkeypatch.setattr(probe.time, "sleep", pass_time)
    found = probe.read_others(1.0, root)
    assert found.busy == pytest.approx(2.0), "half of four processors, not of six"
    assert found.stolen == pytest.approx(0.1)
    assert found.cpu_pressure == 12.5 and found.memory_pressure is None


def test_a_container_is_told_by_its_signs(tmp_path: Path) -> None:
    assert probe.find_container({}, tmp_path) is None
    assert probe.find_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == Evidence(
        "Kubernetes", "the variable KUBERNETES_SERVICE_HOST"
    )
    (tmp_path / ".dockerenv").touch()
    assert probe.find_container({}, tmp_path) == Evidence("Docker", "/.dockerenv")


def test_a_disk_has_room_beside_the_tenth_that_stays_free(tmp_path: Path) -> None:
    folder = tmp_path / "later" / "packed"
    found = probe.read_disk(folder)
    assert found is not None and found.kept == 0 and found.room is not None
    assert found.room <= found.free <= found.total


def test_this_machine_can_be_read() -> None:
    asked = []

    def measure(threads: int) -> Kernels:
        asked.append(threads)
        return Kernels(obstacle="not measured here")

    found = probe.read_machine(measure, 1, None)
    assert asked == [1]
    assert found.processor.usable >= 1 and found.memory.usable > 0 and found.software["Python"]
    assert found.disk is None


def test_a_system_without_files_is_read_all_the_same(tmp_path: Path) -> None:
    assert probe.read_others(0.0, tmp_path).busy is None
    assert probe.read_memory(tmp_path).huge_pages is None
    assert probe.read_processor(1, tmp_path).cores is None
