"""What this process may use of the machine: memory and cores, within the limits of its container."""

import os
from pathlib import Path

import psutil

from penstock.core.config import MachineFacts

CGROUP = Path("/sys/fs/cgroup")


def machine_facts(*, api_beside: bool) -> MachineFacts:
    """Memory that is free now and cores that may be used: affinity and cgroup (v2) limits respected."""
    return MachineFacts(available_memory=_available_memory(), cores=_cores(), api_beside=api_beside)


def _available_memory() -> int:
    available = int(psutil.virtual_memory().available)
    limit, used = _read_cgroup("memory.max"), _read_cgroup("memory.current")
    if limit is None or used is None:
        return available
    # Page cache counts as used but is given back under pressure.
    return min(available, limit - used + (_cgroup_stat("inactive_file") or 0))


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _read_cgroup(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_stat(name: str) -> int | None:
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), None)
