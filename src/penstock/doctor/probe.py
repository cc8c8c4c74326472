"""Reads what this machine says of itself: the kernel's files, limits, and the driver of graphics processors.

What a system does not have is None; nothing here fails for that.
"""

import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import psutil

from penstock import __version__
from penstock.core.devices import Gpu
from penstock.doctor.finding import Evidence
from penstock.doctor.machine import Disk, Kernels, Machine, Memory, Others, Processor, Quota
from penstock.loading.cache_folder import SHARE_KEPT_FREE, packed_files
from penstock.runtime.gpus import find_gpus
from penstock.runtime.machine import cgroup_directories, cpu_quota, machine_facts, read_number, read_statistics

ROOT = Path("/")
# Which of a processor's instructions tell something about products of matrices.
_EXTENSIONS = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip
_SECONDS = 1.0
# Larger limits of version 1 of cgroups stand for none.
_NO_LIMIT = 1 << 60


def read_machine(
    measure: Callable[[int], Kernels],
    threads: int | None,
    packed: Path | None,
    root: Path = ROOT,
    *,
    copies: Callable[[Gpu], float | None] | None = None,
) -> Machine:
    """Everything; it sleeps for a second to see what others do, and only then has the kernels measured.

    `measure` gets the number of threads to do that with, `copies` a GPU that can be used; `packed` is the folder of
    packed weights.
    """
    gpus = find_gpus()
    usable = () if gpus.obstacle is not None else [gpu for gpu in gpus.gpus if not gpu.interpreted]
    measured = [] if copies is None else [(gpu, copies(gpu)) for gpu in usable]
    others, processor = read_others(_SECONDS, root), read_processor(threads, root)
    return Machine(
        processor=processor,
        memory=read_memory(root),
        others=others,
        kernels=measure(processor.threads),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE),
        disk=None if packed is None else read_disk(packed),
        gpus=gpus,
        gpu_copies={gpu.device: rate for gpu, rate in measured if rate is not None},
        container=find_container(os.environ, root),
        software=read_versions(),
    )


def read_processor(threads: int | None = None, root: Path = ROOT) -> Processor:
    """The processors, and how much of them this process may have."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    fields = _fields(root / "proc/cpuinfo", ":")
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    folders = [root / f"sys/devices/system/cpu/cpu{number}" for number in usable]
    siblings = {_text(folder / "topology/thread_siblings_list") for folder in folders}
    nodes = {node.name for folder in folders for node in folder.glob("node[0-9]*")}
    governors = {_text(folder / "cpufreq/scaling_governor") for folder in folders}
    return Processor(
        name=fields.get("model name") or platform.processor() or platform.machine(),
        machine=os.cpu_count() or len(usable),
        usable=len(usable),
        threads=threads or machine_facts(api_beside=False).cores,
        cores=None if None in siblings else len(siblings),
        nodes=len(nodes) or None,
        quota=_read_quota(),
        extensions=tuple(name for name in _EXTENSIONS if name in flags),
        governors=tuple(sorted(name for name in governors if name)),
        virtual="hypervisor" in flags,
    )


def _read_quota() -> Quota:
    """The tightest quota, and how often it stopped processes."""
    tightest = Quota()
    for folder in cgroup_directories("cpu"):
        quota, period = cpu_quota(folder)
        if not quota or not period or (tightest.cores is not None and tightest.cores <= quota / period):
            continue
        counts = read_statistics(folder / "cpu.stat")
        file = next((name for name in ("cpu.max", "cpu.cfs_quota_us") if (folder / name).exists()), "cpu.max")
        tightest = Quota(quota / period, counts.get("nr_periods", 0), counts.get("nr_throttled", 0), str(folder / file))
    return tightest


def read_memory(root: Path = ROOT) -> Memory:
    """Memory, its limits, and what is on disk."""
    fields = _fields(root / "proc/meminfo", ":")

    def size(name: str) -> int | None:
        words = fields.get(name, "").split()
        return int(words[0]) * 1024 if words and words[0].isdigit() else None

    total, limit, source = size("MemTotal"), None, None
    for folder in cgroup_directories("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            found = read_number(folder / name)
            if found is not None and found < min(limit or _NO_LIMIT, total or _NO_LIMIT):
                limit, source = found, str(folder / name)
    swap = size("SwapTotal") or 0
    huge = _text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    return Memory(
        total=total if total is not None else int(psutil.virtual_memory().total),
        available=size("MemAvailable"),
        usable=machine_facts(api_beside=False).available_memory,
        limit=limit,
        limit_source=source,
        swap_total=swap,
        swap_used=swap - (size("SwapFree") or 0),
        huge_pages=huge[huge.find("[") + 1 : huge.find("]")] if "[" in huge else None,
    )


def read_others(seconds: float, root: Path = ROOT) -> Others:
    """What others do while this process sleeps."""
    before, began = _processor_times(root), time.monotonic()
    time.sleep(seconds)
    after, passed = _processor_times(root), time.monotonic() - began
    busy = stolen = None
    if before and after and (all_ticks := after[0] - before[0]) > 0:
        processors = len(os.sched_getaffinity(0))
        busy = processors * (after[1] - before[1]) / all_ticks
        stolen = (after[2] - before[2]) / all_ticks
    return Others(
        seconds=passed,
        busy=busy,
        stolen=stolen,
        cpu_pressure=read_pressure("cpu", root),
        memory_pressure=read_pressure("memory", root),
    )


def read_pressure(name: str, root: Path = ROOT) -> float | None:
    """Percent of the last ten seconds in which a process waited for the resource."""
    for line in (_text(root / "proc/pressure" / name) or "").splitlines():
        words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        if line.startswith("some") and "avg10" in words:
            return float(words["avg10"])
    return None


def _processor_times(root: Path) -> tuple[int, int, int] | None:
    """Ticks of the usable processors: all, those in which a process ran, and those that were stolen."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    total = busy = stolen = 0
    for line in (_text(root / "proc/stat") or "").splitlines():
        name, *words = line.split()
        if name in names and len(words) >= 8:
            user, nice, system, idle, waiting, interrupts, soft, steal = map(int, words[:8])
            ran = user + nice + system + interrupts + soft
            total, busy, stolen = total + ran + idle + waiting + steal, busy + ran, stolen + steal
    return (total, busy, stolen) if total else None


def read_disk(folder: Path) -> Disk | None:
    """The disk that a folder is on, or would be; None where that cannot be told."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        usage = shutil.disk_usage(there)
        kept = sum(size for _, size in packed_files(folder))
    except OSError:
        return None
    room = max(0, usage.free + kept - int(SHARE_KEPT_FREE * usage.total))
    return Disk(
        folder=str(folder),
        total=usage.total,
        free=usage.free,
        room=room if os.access(there, os.W_OK) else None,
        kept=kept,
    )


def find_container(environment: Mapping[str, str], root: Path = ROOT) -> Evidence | None:
    """What tells that this process is in a container."""
    for file, name in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
        if (root / file).exists():
            return Evidence(name, f"/{file}")
    for variable, name in (("KUBERNETES_SERVICE_HOST", "Kubernetes"), ("container", "")):
        if environment.get(variable):
            return Evidence(name or environment[variable], f"the variable {variable}")
    return None


def read_versions() -> dict[str, str]:
    """Of what a server's behaviour depends on."""
    return {
        "Penstock": __version__,
        "Python": platform.python_version(),
        "torch": metadata.version("torch"),
        platform.system(): platform.release(),
    }


def _fields(file: Path, separator: str) -> dict[str, str]:
    """The first value of each name in a file of `name: value`."""
    found: dict[str, str] = {}
    for line in (_text(file) or "").splitlines():
        name, there, value = line.partition(separator)
        if there:
            found.setdefault(name.strip(), value.strip())
    return found


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
