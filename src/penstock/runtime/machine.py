"""What this process may use of the machine: memory and cores, within the limits of its containers (cgroups)."""

import os
from pathlib import Path

import psutil

from penstock.configuration.facts import MachineFacts

CGROUP = Path("/sys/fs/cgroup")


def machine_facts(*, api_beside: bool, cache_folder: str | None = None, obstacle: str | None = None) -> MachineFacts:
    """Memory that is free now and cores that may be used: affinity and cgroup limits respected.

    `obstacle` is why the native kernels cannot run, without which nothing is exact.
    """
    exact = obstacle is None
    return MachineFacts(_available_memory(), _cores(), api_beside, cache_folder, exact, obstacle)


def _available_memory() -> int:
    available = int(psutil.virtual_memory().available)
    return min([available, *(left for left in map(_memory_left, cgroup_directories("memory")) if left is not None)])


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for directory in cgroup_directories("cpu"):
        quota, period = cpu_quota(directory)
        if quota is not None and period:
            cores = min(cores, max(1, quota // period))
    return cores


def cgroup_directories(controller: str) -> list[Path]:
    """Directories of this process's cgroup and its ancestors, of version 2 and of version 1's `controller`."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    directories: list[Path] = []
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = CGROUP / names if names else CGROUP
        own = root / path.lstrip("/")
        # In a container, the path may be that of the host, and only the root is there to be read.
        directories += [folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder.is_dir()]
    return directories


def _memory_left(directory: Path) -> int | None:
    """Bytes that a cgroup may still use; its page cache counts as used but is given back under pressure."""
    for limit_name, used_name, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        limit, used = read_number(directory / limit_name), read_number(directory / used_name)
        if limit is not None and used is not None:
            cache = (f"{prefix}inactive_file", f"{prefix}active_file")
            return limit - used + sum(read_statistics(directory / "memory.stat").get(name, 0) for name in cache)
    return None


def cpu_quota(directory: Path) -> tuple[int | None, int | None]:
    """CPU quota and period in microseconds; None where there is no limit."""
    try:
        quota, period = (directory / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return read_number(directory / "cpu.cfs_quota_us"), read_number(directory / "cpu.cfs_period_us")
    return (None if quota == "max" else int(quota)), int(period)


def read_number(file: Path) -> int | None:
    """The number in a file of a cgroup; None where there is no such file, or no limit."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    # "max" in version 2 and -1 in version 1 stand for no limit.
    return int(text) if text.isdigit() else None


def read_statistics(file: Path) -> dict[str, int]:
    """Names and whole numbers in a file, line by line."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) == 2}
