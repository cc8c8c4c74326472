"""GPUs as data: what their drivers say of them, and what was measured of their memory."""

import msgspec

# What bfloat16 and the kernels' instructions need: Ampere, of 2020.
LEAST_CAPABILITY = (8, 0)
# What has instructions for products of E4M3: Ada and Hopper, of 2022.
FP8_CAPABILITY = (8, 9)


class Gpu(msgspec.Struct, frozen=True):
    """A GPU as its driver describes it.

    Attributes:
        index: as CUDA counts those that this process sees.
        name: what its maker calls it.
        capability: what it can compute, (major, minor).
        total_memory, free_memory: bytes.
        driver: its version.
        ecc: whether its memory corrects errors; None where it does not say.
        memory_errors: of its memory since it was started, that could not be corrected; None where it does not say.
        interpreted: it is none, but Triton's interpreter in this process.
    """

    index: int
    name: str
    capability: tuple[int, int]
    total_memory: int
    free_memory: int
    driver: str = ""
    ecc: bool | None = None
    memory_errors: int | None = None
    interpreted: bool = False

    @property
    def device(self) -> str:
        """The GPU's name in options and in torch, such as `cuda:0`."""
        return f"cuda:{self.index}"

    @property
    def multiplies_fp8(self) -> bool:
        """Whether weights of E4M3 may stay what they are."""
        return self.capability >= FP8_CAPABILITY


class GpuFacts(msgspec.Struct, frozen=True):
    """The GPUs that this process sees, and what stands in the way of using them; None where nothing does."""

    gpus: tuple[Gpu, ...] = ()
    obstacle: str | None = None


def dotted(capability: tuple[int, int]) -> str:
    """A compute capability as NVIDIA writes it, such as 8.9."""
    return ".".join(map(str, capability))


class MemoryReading(msgspec.Struct, frozen=True):
    """A GPU's memory at one moment, in bytes.

    Attributes:
        free: what no process has.
        reserved: what this process's allocator has, in use or kept for later.
        peak: the most that it has had since it was last asked to forget that.
    """

    free: int
    reserved: int
    peak: int

    def taken_since(self, before: "MemoryReading") -> int:
        """What was taken at the most between `before` and this reading, by the allocator, by CUDA or by others."""
        return max(0, self.peak - before.reserved) + self.beside_since(before)

    def beside_since(self, before: "MemoryReading") -> int:
        """Of that, what the allocator did not take: CUDA's own, such as code of kernels, or other processes'."""
        return max(0, before.free - self.free - (self.reserved - before.reserved))


class StepMemory(msgspec.Struct, frozen=True):
    """What was measured of a GPU's memory before there was a pool, in bytes.

    Attributes:
        free: what is free behind the weights.
        step: what the largest step takes at its peak.
        graphs: what graphs of decode steps will take at most.
    """

    free: int
    step: int
    graphs: int = 0

    @property
    def left(self) -> int:
        """For the pool, and for what allocators cannot use."""
        return self.free - self.step - self.graphs
