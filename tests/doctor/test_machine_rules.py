"""What figures of a machine mean, on machines that are made up."""

from typing import Any

import msgspec
import pytest

from penstock.core.ceilings import Ceilings
from penstock.core.devices import Gpu, GpuFacts
from penstock.doctor.finding import Evidence, Finding
from penstock.doctor.machine import Disk, Kernels, Machine, Memory, Others, Processor, Quota
from penstock.doctor.machine_rules import judge_machine

GIB = 2**30
CEILINGS = Ceilings(40.0, {"int8": 2000.0, "bfloat16": 0.0, "float32": 200.0})
PROCESSOR = Processor(name="Made-up 9000", machine=8, usable=8, threads=8, cores=8, nodes=1)
MEMORY = Memory(total=64 * GIB, available=60 * GIB, usable=60 * GIB, huge_pages="madvise")
WELL = Machine(
    processor=PROCESSOR,
    memory=MEMORY,
    others=Others(seconds=1.0, busy=0.1, stolen=0.0, cpu_pressure=0.0, memory_pressure=0.0),
    kernels=Kernels(instruction_sets=("avx512", "avx512_vnni", "avx2", "portable"), chosen="avx512", ceilings=CEILINGS),
    descriptors=(1024, 65536),
    disk=Disk(folder="/cache", total=500 * GIB, free=300 * GIB, room=250 * GIB, kept=0),
    gpus=GpuFacts(),
    gpu_copies={},
    container=None,
    software={"Penstock": "1.0"},
)


def machine(part: str, **changes: Any) -> Machine:
    """The machine that is well, with something changed in a part of it."""
    return msgspec.structs.replace(WELL, **{part: msgspec.structs.replace(getattr(WELL, part), **changes)})


def judged(given: Machine) -> dict[str, Finding]:
    return {finding.subject: finding for finding in judge_machine(given)}


def test_every_finding_has_its_evidence_and_its_meaning() -> None:
    found = judge_machine(WELL)
    assert len({finding.subject for finding in found}) == len(found)
    for finding in found:
        assert finding.level == "ok" and finding.advice is None, finding
        assert finding.evidence and finding.figure and finding.meaning.endswith(".")


@pytest.mark.parametrize(
    "subject, level, said, given",
    [
        ("processors", "warning", "two processors", machine("processor", usable=1, threads=1)),
        ("processors", "note", "taskset", machine("processor", usable=4, threads=4)),
        ("siblings", "note", "--threads 4", machine("processor", cores=4)),
        ("memory nodes", "warning", "numactl", machine("processor", nodes=2)),
        ("CPU quota", "warning", "whole processors", machine("processor", quota=Quota(2.5, 100, 40, "/cpu.max"))),
        ("kernels", "problem", "compiler", machine("kernels", obstacle="no compiler", ceilings=None)),
        ("kernels", "note", "int4", machine("kernels", chosen="avx2")),
        ("kernels", "warning", "AVX2", machine("kernels", chosen="portable")),
        ("memory", "warning", "smaller model", machine("memory", usable=GIB)),
        ("memory reads", "note", "again", machine("others", busy=6.0)),
        ("huge pages", "warning", "madvise", machine("memory", huge_pages="never")),
        ("swap", "note", "swapoff", machine("memory", swap_total=8 * GIB)),
        ("swap", "warning", "swapoff", machine("memory", swap_total=8 * GIB, swap_used=2 * GIB)),
        ("frequency", "note", "performance", machine("processor", governors=("powersave",))),
        ("packed weights", "note", "--packed-cache", machine("disk", room=GIB)),
        ("packed weights", "warning", "PENSTOCK_CACHE", machine("disk", room=None)),
        ("other load", "warning", "--threads", machine("others", busy=6.0)),
        ("other load", "warning", "--threads", machine("others", stolen=0.2)),
        ("other load", "warning", "--threads", machine("others", cpu_pressure=60.0)),
        ("other load", "warning", "--threads", machine("others", memory_pressure=20.0)),
        ("open files", "warning", "ulimit", msgspec.structs.replace(WELL, descriptors=(256, 1024))),
    ],
)
def test_what_costs_something_is_told_with_what_would_change_it(
    subject: str, level: str, said: str, given: Machine
) -> None:
    finding = judged(given)[subject]
    assert finding.level == level
    assert finding.advice is not None and said in finding.advice, finding


def test_a_quota_that_nobody_notices_is_fine() -> None:
    finding = judged(machine("processor", quota=Quota(8.0, 1000, 1, "/sys/fs/cgroup/cpu.max")))["CPU quota"]
    assert finding.level == "ok" and finding.advice is None
    assert finding.evidence[0].source == "/sys/fs/cgroup/cpu.max"
    assert "CPU quota" not in judged(WELL)


def test_a_limit_of_memory_is_named_with_its_file() -> None:
    finding = judged(machine("memory", limit=8 * GIB, limit_source="/sys/fs/cgroup/memory.max"))["memory"]
    assert finding.level == "note" and "8 GiB" in finding.meaning
    assert Evidence("limit 8 GiB", "/sys/fs/cgroup/memory.max") in finding.evidence


def test_ceilings_become_tokens() -> None:
    found = judged(WELL)
    assert "20 tokens/s in bfloat16, 40 in int8, 75.3 in int4" in found["memory reads"].meaning
    assert "1,000 in int8, 100 in float32" in found["arithmetic"].meaning
    # A row of int4 costs 2 operations for 0.53 bytes: 0.53 · 2000 / (2 · 40).
    assert "about 13 sequences" in found["arithmetic"].meaning
    assert "memory reads" not in judged(machine("kernels", ceilings=None))


CARD = Gpu(0, "Made-up 100", (9, 0), 80 << 30, 79 << 30, "580.1", True, 0)


def gpu_finding(obstacle: str | None = None, copies: float | None = 3000.0, **changes: Any) -> Finding:
    facts = GpuFacts((msgspec.structs.replace(CARD, **changes),), obstacle)
    measured = {} if copies is None else {CARD.device: copies}
    return judged(msgspec.structs.replace(WELL, gpus=facts, gpu_copies=measured))["GPU"]


def test_a_gpu_is_named_with_what_it_reaches() -> None:
    finding = gpu_finding()
    assert finding.level == "ok" and finding.figure == "Made-up 100, 79 GiB of 80 GiB free, 3,000 GB/s"
    assert "--device cuda:0" in finding.meaning
    assert "580.1" in finding.evidence[0].figure and "9.0" in finding.evidence[0].figure
    assert "GB/s" not in gpu_finding(copies=None).figure


def test_a_gpu_that_cannot_be_used_is_told_with_the_reason() -> None:
    missing = gpu_finding("Triton is not installed")
    assert missing.level == "warning" and "Triton is not installed" in missing.meaning
    old = gpu_finding(capability=(7, 0))
    assert old.level == "warning" and "7.0, 8.0 is needed" in old.meaning
    broken = gpu_finding(memory_errors=3)
    assert broken.level == "problem" and "3 errors" in broken.meaning


def test_a_machine_without_gpu_lacks_nothing() -> None:
    finding = judged(msgspec.structs.replace(WELL, gpus=GpuFacts(obstacle="there is no working NVIDIA driver")))["GPU"]
    assert finding.level == "ok" and finding.figure == "none"
    assert "no working" in finding.evidence[0].figure


def test_amx_is_named_where_a_processor_has_it_and_kernels_do_not_use_it() -> None:
    has_it = machine("processor", extensions=("avx2", "amx_int8"))
    unused = judged(has_it)["kernels"]
    assert "amx_int8; kernels for AMX need" in unused.meaning
    kernels = msgspec.structs.replace(WELL.kernels, instruction_sets=("amx", "avx512_vnni", "avx2"), chosen="amx")
    used = judged(msgspec.structs.replace(has_it, kernels=kernels))["kernels"]
    assert used.level == "ok" and used.advice is None and "amx_int8" not in used.meaning


def test_a_system_that_tells_little_gets_fewer_findings() -> None:
    silent = msgspec.structs.replace(
        WELL,
        processor=Processor(name="?", machine=2, usable=2, threads=2),
        memory=Memory(total=None, available=None, usable=8 * GIB),
        others=Others(seconds=1.0),
        disk=None,
        descriptors=(256, -1),
    )
    found = judged(silent)
    assert {"processors", "kernels", "memory", "GPU", "swap", "open files", "packaging"} <= set(found)
    assert not {"huge pages", "frequency", "other load", "siblings", "packed weights"} & set(found)
    assert found["open files"].figure == "without limit"
