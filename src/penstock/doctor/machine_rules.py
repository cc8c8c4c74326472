"""What a machine's figures mean for serving. Pure: the same figures give the same findings."""

from collections.abc import Iterator

from penstock.core.config import QUANTIZED_BYTES
from penstock.core.devices import LEAST_CAPABILITY, Gpu
from penstock.doctor.finding import Evidence, Finding, Level, in_bytes, in_number
from penstock.doctor.machine import Machine

# Below this much memory hardly any model and its KV fit.
_LITTLE_MEMORY = 2 << 30
# Shares of time from which requests wait that would not have to.
_THROTTLED = 0.01
_STOLEN = 0.02
_OTHERS = 0.1
_PRESSURE = 10.0
_MEMORY_PRESSURE = 1.0
# A server takes half of its files for connections, at most 4,096 of them.
_ENOUGH_FILES = 8192
# Parameters of the model in the examples.
_EXAMPLE = 1e9

_SETS = {
    "amx": "every operation has kernels by hand, and int8, int4 and bfloat16 weights are multiplied by AMX",
    "avx512": "every operation has kernels by hand",
    "avx512_vnni": "every operation has kernels by hand, and bfloat16 is multiplied as float32",
    "avx2": "every operation has kernels by hand, whose integer products take several instructions",
    "portable": "plain C++ as it was compiled, several times slower than kernels by hand",
}

_FULL = ("amx", "avx512", "avx512_vnni")


def judge_machine(machine: Machine) -> tuple[Finding, ...]:
    """All findings, from silicon upwards."""
    return (
        *_processors(machine),
        *_placement(machine),
        *_instructions(machine),
        *_memory(machine),
        *_ceilings(machine),
        *_graphics(machine),
        *_system(machine),
        *_others(machine),
        *_packaging(machine),
    )


def _processors(machine: Machine) -> Iterator[Finding]:
    own = machine.processor
    few = own.usable < own.machine
    figure = f"{own.name}: {own.usable} of {own.machine} processors" if few else f"{own.name}: {own.usable} processors"
    meaning = f"The computation takes {own.threads} thread{'s' if own.threads > 1 else ''}, unless --threads says else."
    advice = None
    if own.usable == 1:
        meaning += " The API process has to share the only processor with it."
        advice = "Give the server two processors: steps then do not wait while answers are written."
    elif few:
        advice = "Allow it more processors (taskset, cpuset, --cpuset-cpus) if it is to be faster."
    evidence = Evidence(f"{own.usable} of {own.machine}", "sched_getaffinity and /proc/cpuinfo")
    level: Level = "warning" if own.usable == 1 else "note" if few else "ok"
    yield Finding(
        subject="processors",
        layer="L0",
        level=level,
        figure=figure,
        meaning=meaning,
        advice=advice,
        evidence=(evidence,),
    )


def _placement(machine: Machine) -> Iterator[Finding]:
    """Siblings and nodes, where there is anything to say."""
    own = machine.processor
    if own.cores is not None and own.cores < own.usable:
        yield Finding(
            subject="siblings",
            layer="L0",
            level="note",
            figure=f"{own.usable} processors are {own.cores} physical cores",
            meaning="Two threads on a core share its arithmetic and its caches: prompts get little faster with the "
            "second, and every step waits for the slower of both.",
            advice=f"Compare `penstock bench engine --threads {own.cores}` with --threads {own.usable}, and keep the "
            "faster.",
            evidence=(Evidence(f"{own.cores} cores", "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list"),),
        )
    if own.nodes is not None and own.nodes > 1:
        yield Finding(
            subject="memory nodes",
            layer="L0",
            level="warning",
            figure=f"the processors belong to {own.nodes} NUMA nodes",
            meaning="Each weight lies on one node, and threads on others read it over the link between sockets, which "
            "is slower than their own memory.",
            advice="Run one server on each node (numactl --cpunodebind=0 --membind=0 penstock serve …), and spread "
            "the requests over them.",
            evidence=(Evidence(f"{own.nodes} nodes", "/sys/devices/system/cpu/cpu*/node*"),),
        )


def _instructions(machine: Machine) -> Iterator[Finding]:
    kernels = machine.kernels
    if kernels.obstacle is not None:
        yield Finding(
            subject="kernels",
            layer="L3",
            level="problem",
            figure="there are none",
            meaning=f"Torch's operations take their place ({kernels.obstacle}): decoding is several times slower, "
            "--quantization is refused, and near ties a request's tokens depend on the batch.",
            advice="Install a C++17 compiler (g++ or clang++), and install Penstock again.",
            evidence=(Evidence("no native module", "penstock.kernels.cpu._native"),),
        )
        return
    chosen = kernels.chosen or "portable"
    level: Level = "ok" if chosen in _FULL else "note" if chosen == "avx2" else "warning"
    unused = [] if chosen == "amx" else [name for name in machine.processor.extensions if "amx" in name]
    meaning = f"{chosen}: {_SETS.get(chosen, 'kernels by hand')}."
    if unused:
        meaning += (
            f" The processor also has {', '.join(unused)}; kernels for AMX need amx_int8 and amx_bf16, "
            "and a system that lets the process use them."
        )
    yield Finding(
        subject="kernels",
        layer="L3",
        level=level,
        figure=f"{chosen}, of {', '.join(kernels.instruction_sets)}",
        meaning=meaning,
        advice=None
        if chosen in _FULL
        else "Take --quantization int8 or int4, whose kernels are the fastest here."
        if chosen == "avx2"
        else "Serve on a processor with AVX2 or AVX-512, if there is one.",
        evidence=(
            Evidence(", ".join(kernels.instruction_sets), "native.instruction_sets()"),
            Evidence(" ".join(machine.processor.extensions) or "none of interest", "/proc/cpuinfo"),
        ),
    )


def _memory(machine: Machine) -> Iterator[Finding]:
    memory = machine.memory
    total = "" if memory.total is None else f" of {in_bytes(memory.total)}"
    evidence = [Evidence(f"{in_bytes(memory.usable)} usable", "/proc/meminfo and cgroups")]
    meaning = "Weights, half a GiB of working space and the KV pool must fit into that; the pool takes 80% of the rest."
    level: Level = "ok"
    advice = None
    if memory.limit is not None and memory.limit_source is not None:
        evidence.append(Evidence(f"limit {in_bytes(memory.limit)}", memory.limit_source))
        meaning += f" A container's limit of {in_bytes(memory.limit)} counts; a process beyond it is killed."
        level = "note"
    if memory.usable < _LITTLE_MEMORY:
        level, advice = "warning", "Free memory, raise the limit, or serve a smaller model or a lower precision."
    yield Finding(
        subject="memory",
        layer="L0",
        level=level,
        figure=f"{in_bytes(memory.usable)}{total} can be taken",
        meaning=meaning,
        advice=advice,
        evidence=tuple(evidence),
    )


def _ceilings(machine: Machine) -> Iterator[Finding]:
    ceilings, threads = machine.kernels.ceilings, machine.processor.threads
    if ceilings is None:
        return
    read, source = ceilings.read * 1e9, f"native.read_memory on {threads} threads"
    rates = {name: in_number(read / (_EXAMPLE * size)) for name, size in {"bfloat16": 2.0, **QUANTIZED_BYTES}.items()}
    disturbed = machine.others.busy is not None and machine.others.busy > _OTHERS * machine.processor.usable
    yield Finding(
        subject="memory reads",
        layer="L0",
        level="note" if disturbed else "ok",
        figure=f"{ceilings.read:.1f} GB/s",
        meaning="It bounds decoding: for each token of a sequence alone, all weights are read. A model of a billion "
        f"parameters gets at most {rates['bfloat16']} tokens/s in bfloat16, {rates['int8']} in int8, {rates['int4']} "
        "in int4; more sequences at a time share each reading.",
        advice="Others were busy meanwhile; measure again when they are not." if disturbed else None,
        evidence=(Evidence(f"{ceilings.read:.1f} GB/s", source),),
    )
    peaks = {name: peak for name, peak in ceilings.arithmetic.items() if peak}
    prompts = [f"{in_number(peak * 1e9 / (2 * _EXAMPLE))} in {name}" for name, peak in peaks.items()]
    rows = QUANTIZED_BYTES["int4"] * ceilings.peak("int4") / (2 * ceilings.read)
    yield Finding(
        subject="arithmetic",
        layer="L0",
        level="note" if disturbed else "ok",
        figure=", ".join(f"{name} {peak:,.0f} GOP/s" for name, peak in peaks.items()),
        meaning="It bounds prompts and large batches. The most tokens/s of prompts, with a billion parameters: "
        f"{', '.join(prompts)}; an int4 batch of more than about {max(1, round(rows))} sequences is "
        "bound by it, not by memory.",
        evidence=tuple(
            Evidence(f"{name} {peak:,.0f} GOP/s", f"native.compute on {threads} threads")
            for name, peak in peaks.items()
        ),
    )


def _graphics(machine: Machine) -> Iterator[Finding]:
    facts = machine.gpus
    if not facts.gpus:
        yield Finding(
            subject="GPU",
            layer="L1",
            level="ok",
            figure="none",
            meaning="None is needed: models are computed on the processor.",
            evidence=(Evidence(facts.obstacle or "the driver names none", "NVIDIA's management library"),),
        )
        return
    for gpu in facts.gpus:
        yield _graphics_card(gpu, facts.obstacle, machine.gpu_copies.get(gpu.device))


def _graphics_card(gpu: Gpu, obstacle: str | None, copies: float | None) -> Finding:
    """Whether a GPU can be used, and what its memory reaches."""
    capability = ".".join(map(str, gpu.capability))
    figure = f"{gpu.name}, {in_bytes(gpu.free_memory)} of {in_bytes(gpu.total_memory)} free"
    meaning, advice = f"--device {gpu.device} computes on it.", None
    level: Level = "ok"
    if copies is not None:
        figure += f", {copies:,.0f} GB/s"
        meaning += " A sequence alone gets at most as many tokens per second as its weights are read in that time."
    if gpu.capability < LEAST_CAPABILITY:
        least = ".".join(map(str, LEAST_CAPABILITY))
        level, meaning = (
            "warning",
            f"It is too old for the kernels: compute capability {capability}, {least} is needed.",
        )
        advice = "Models are computed on the processor; --device cpu says so."
    elif obstacle is not None:
        level, meaning = "warning", f"It cannot be used: {obstacle}."
        advice = "Mend that, or compute on the processor (--device cpu)."
    elif gpu.memory_errors:
        level, meaning = (
            "problem",
            f"{gpu.memory_errors} errors of its memory could not be corrected: answers may be wrong.",
        )
        advice = "Reset it or have it replaced; until then take another (CUDA_VISIBLE_DEVICES)."
    ecc = "does not say" if gpu.ecc is None else "on" if gpu.ecc else "off"
    return Finding(
        subject="GPU" if gpu.index == 0 else f"GPU {gpu.index}",
        layer="L1",
        level=level,
        figure=figure,
        meaning=meaning,
        advice=advice,
        evidence=(
            Evidence(f"driver {gpu.driver}, compute capability {capability}, ECC {ecc}", "NVIDIA's management library"),
        ),
    )


def _system(machine: Machine) -> Iterator[Finding]:
    yield from _huge_pages(machine)
    yield from _swap(machine)
    yield from _governor(machine)
    yield from _descriptors(machine)
    yield from _disk(machine)


def _huge_pages(machine: Machine) -> Iterator[Finding]:
    setting, file = machine.memory.huge_pages, "/sys/kernel/mm/transparent_hugepage/enabled"
    if setting is None:
        return
    off = setting == "never"
    yield Finding(
        subject="huge pages",
        layer="L1",
        level="warning" if off else "ok",
        figure=setting,
        meaning="Weights lie in pages of 4 KiB, and the processor looks up their addresses anew all the time, which "
        "costs some percent of every step."
        if off
        else "Weights that are packed at a start are put into pages of 2 MiB, so that reading them all looks up few "
        "addresses.",
        advice=f"echo madvise | sudo tee {file}" if off else None,
        evidence=(Evidence(setting, file),),
    )


def _swap(machine: Machine) -> Iterator[Finding]:
    memory = machine.memory
    level: Level = "ok"
    if not memory.swap_total:
        figure = "none"
        meaning, advice = "Memory that is taken stays where it is; what does not fit ends a process.", None
    else:
        figure = f"{in_bytes(memory.swap_used)} of {in_bytes(memory.swap_total)} used"
        level = "warning" if memory.swap_used > memory.swap_total // 10 else "note"
        meaning = "Weights and KV are read in every step: of what lies on the disk, a step waits for each page."
        advice = "Keep the server out of it (swapoff -a, or memory.swap.max 0 for its group)."
    yield Finding(
        subject="swap",
        layer="L1",
        level=level,
        figure=figure,
        meaning=meaning,
        advice=advice,
        evidence=(Evidence(figure, "/proc/meminfo"),),
    )


def _governor(machine: Machine) -> Iterator[Finding]:
    governors = machine.processor.governors
    if not governors:
        return
    slow = [name for name in governors if name != "performance"]
    yield Finding(
        subject="frequency",
        layer="L1",
        level="note" if slow else "ok",
        figure=", ".join(governors),
        meaning="Between steps the processor slows down, and the next one begins slowly: short steps of small models "
        "and single streams notice that."
        if slow
        else "The processor keeps its frequency between steps.",
        advice="cpupower frequency-set -g performance" if slow else None,
        evidence=(Evidence(", ".join(governors), "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),),
    )


def _descriptors(machine: Machine) -> Iterator[Finding]:
    soft, hard = machine.descriptors
    endless = hard < 0
    few = not endless and hard < _ENOUGH_FILES
    yield Finding(
        subject="open files",
        layer="L1",
        level="warning" if few else "ok",
        figure="without limit" if endless else f"at most {hard:,}",
        meaning=f"Each stream is one: the server takes {hard // 2:,} connections at a time, and refuses more."
        if few
        else "Each stream is one; a server takes 4,096 connections at a time unless --max-connections says else.",
        advice="Raise the hard limit (ulimit -Hn 65536, LimitNOFILE=65536 in systemd)." if few else None,
        evidence=(Evidence(f"soft {soft:,}, hard {'none' if endless else f'{hard:,}'}", "getrlimit(RLIMIT_NOFILE)"),),
    )


def _disk(machine: Machine) -> Iterator[Finding]:
    disk = machine.disk
    if disk is None:
        return
    source, kept = "statvfs", f"{in_bytes(disk.kept)} kept now"
    level: Level
    if disk.room is None:
        figure, level = f"{disk.folder} cannot be written", "warning"
        meaning = "Every start packs the weights again, which takes seconds to minutes."
        advice = "Name a folder that can be written with --packed-cache or PENSTOCK_CACHE."
    else:
        figure, advice = f"room for {in_bytes(disk.room)} in {disk.folder}", None
        level = "note" if disk.room < _LITTLE_MEMORY else "ok"
        meaning = "A first start keeps packed weights there if they fit, and leaves a tenth of the disk free; later "
        meaning += "starts map them, and take a second or two."
        if level == "note":
            advice = "Free some of the disk, or name a folder on another one with --packed-cache."
    yield Finding(
        subject="packed weights",
        layer="L1",
        level=level,
        figure=figure,
        meaning=meaning,
        advice=advice,
        evidence=(Evidence(f"{in_bytes(disk.free)} of {in_bytes(disk.total)} free, {kept}", source),),
    )


def _others(machine: Machine) -> Iterator[Finding]:
    """What takes time from this machine's processors."""
    others, own = machine.others, machine.processor
    evidence, costs = [], []
    if others.busy is not None:
        evidence.append(Evidence(f"{others.busy:.2f} processors busy in {others.seconds:.1f} s", "/proc/stat"))
        if others.busy > _OTHERS * own.usable:
            costs.append(f"keep {others.busy:.1f} of {own.usable} processors busy")
    if others.stolen is not None:
        evidence.append(Evidence(f"{others.stolen:.1%} stolen", "/proc/stat"))
        if others.stolen > _STOLEN:
            costs.append(f"on the same host take {others.stolen:.0%} of this machine's time (steal)")
    if others.cpu_pressure is not None:
        evidence.append(Evidence(f"some avg10={others.cpu_pressure:g}", "/proc/pressure/cpu"))
        if others.cpu_pressure > _PRESSURE:
            costs.append(f"wait for a processor {others.cpu_pressure:.0f}% of the time")
    if others.memory_pressure is not None:
        evidence.append(Evidence(f"some avg10={others.memory_pressure:g}", "/proc/pressure/memory"))
        if others.memory_pressure > _MEMORY_PRESSURE:
            costs.append(f"wait for memory {others.memory_pressure:.0f}% of the time")
    if not evidence:
        return
    yield Finding(
        subject="other load",
        layer="L0",
        level="warning" if costs else "ok",
        figure=f"others {', and '.join(costs)}" if costs else "others leave the processors to this machine",
        meaning="A step ends with its slowest thread: one that has to wait for its processor holds up every stream."
        if costs
        else "A step ends with its slowest thread, and none has to wait for its processor.",
        advice="Move the others elsewhere, or leave processors to them with --threads." if costs else None,
        evidence=tuple(evidence),
    )


def _packaging(machine: Machine) -> Iterator[Finding]:
    yield from _quota(machine)
    where, own = machine.container, machine.processor
    figure = ("a container" if where else "no container") + (", in a virtual machine" if own.virtual else "")
    versions = ", ".join(f"{name} {version}" for name, version in machine.software.items())
    evidence = (where,) if where else (Evidence("no sign of one", "/.dockerenv, /run/.containerenv, variables"),)
    yield Finding(
        subject="packaging",
        layer="L2",
        level="ok",
        figure=figure,
        meaning=f"What works here and not elsewhere differs in one of these: {versions}.",
        evidence=evidence,
    )


def _quota(machine: Machine) -> Iterator[Finding]:
    quota, own = machine.processor.quota, machine.processor
    if quota.cores is None or quota.source is None:
        return
    share = quota.throttled / quota.periods if quota.periods else 0.0
    stopped = share > _THROTTLED
    whole = quota.cores >= 1 and quota.cores == int(quota.cores)
    tight = quota.cores < own.usable
    meaning = f"The container has the time of {quota.cores:g} processors; "
    if own.threads > quota.cores:
        meaning += f"{own.threads} threads use it up before a period ends, and all of them then stand still."
    else:
        meaning += f"{own.threads} threads stay within it while the API process does little."
    advice = None
    if stopped or (tight and not whole):
        advice = "Raise the quota to whole processors, one more than --threads, or use a cpuset in its place."
    yield Finding(
        subject="CPU quota",
        layer="L2",
        level="warning" if stopped or own.threads > quota.cores else "note" if tight else "ok",
        figure=f"{quota.cores:g} processors, stopped in {share:.1%} of {quota.periods:,} periods",
        meaning=meaning,
        advice=advice,
        evidence=(
            Evidence(f"{quota.cores:g} processors", quota.source),
            Evidence(f"{quota.throttled:,} of {quota.periods:,} periods", "cpu.stat beside it"),
        ),
    )
