"""What is known of a machine; None stands for what it does not tell."""

import msgspec

from penstock.core.ceilings import Ceilings
from penstock.core.devices import GpuFacts
from penstock.doctor.finding import Evidence


class Quota(msgspec.Struct, frozen=True):
    """How much of the processors a container may have.

    Attributes:
        cores: the number of processors whose time it may use; None without a limit.
        periods, throttled: in which processes ran, and in which they were stopped for the rest of it.
        source: the file with the limit, None where there is none.
    """

    cores: float | None = None
    periods: int = 0
    throttled: int = 0
    source: str | None = None


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """The processors.

    Attributes:
        name: as it calls itself.
        machine: logical processors of the machine, and `usable` those that this process may run on.
        cores: physical cores of the usable ones, and `nodes` their NUMA nodes.
        extensions: of its instructions, those that matter here.
        governors: policies of frequency.
        virtual: whether it is a virtual machine's.
        threads: that the kernels would compute with.
    """

    name: str
    machine: int
    usable: int
    threads: int
    cores: int | None = None
    nodes: int | None = None
    quota: Quota = Quota()
    extensions: tuple[str, ...] = ()
    governors: tuple[str, ...] = ()
    virtual: bool = False


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of memory.

    Attributes:
        total, available: of the machine.
        usable: what this process could still take, within its containers' limits.
        limit: of the tightest container, and `limit_source` its file.
        swap_total, swap_used: on disk.
        huge_pages: the setting of transparent huge pages.
    """

    total: int | None
    available: int | None
    usable: int
    limit: int | None = None
    limit_source: str | None = None
    swap_total: int = 0
    swap_used: int = 0
    huge_pages: str | None = None


class Others(msgspec.Struct, frozen=True, kw_only=True):
    """What others did while this process slept.

    Attributes:
        seconds: for how long it was looked at.
        busy: usable processors that they kept busy, on average.
        stolen: share of the usable processors' time that the hypervisor gave to other machines.
        cpu_pressure, memory_pressure: percent of the last ten seconds in which a process waited for a processor, or
            for memory.
    """

    seconds: float
    busy: float | None = None
    stolen: float | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """The native kernels: why there are none (`obstacle`), for which instructions, and what they reach."""

    obstacle: str | None = None
    instruction_sets: tuple[str, ...] = ()
    chosen: str | None = None
    ceilings: Ceilings | None = None


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """Where packed weights are kept.

    Attributes:
        folder: which; it may not exist yet.
        total, free: bytes of its disk.
        room: bytes that a file may have; None where the folder cannot be written.
        kept: bytes of the files in it.
    """

    folder: str
    total: int
    free: int
    room: int | None
    kept: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Everything.

    Attributes:
        descriptors: files that a process may open, soft and hard limit.
        gpus: those that this process sees.
        gpu_copies: GB/s that copies within a GPU's memory read and write, by its device; of those that were measured.
        container: what tells that this is one; None where nothing does.
        software: versions.
    """

    processor: Processor
    memory: Memory
    others: Others
    kernels: Kernels
    descriptors: tuple[int, int]
    disk: Disk | None
    gpus: GpuFacts
    gpu_copies: dict[str, float]
    container: Evidence | None
    software: dict[str, str]
