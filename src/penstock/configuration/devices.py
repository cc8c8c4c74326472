"""Which device computes: what a user may ask for, and which of the GPUs that there are it comes to."""

import re
from collections.abc import Sequence

from penstock.configuration.reasons import Note
from penstock.core.devices import LEAST_CAPABILITY, Gpu, GpuFacts, dotted
from penstock.core.errors import ConfigurationError

_DEVICE = re.compile(r"cuda(?::(0|[1-9][0-9]{0,3}))?")


def resolve_device(asked: str, facts: GpuFacts, note: Note) -> Gpu | None:
    """The GPU that computes, None where the CPU does. Raises ConfigurationError where it is not there."""
    match = _DEVICE.fullmatch(asked)
    if asked not in ("auto", "cpu") and match is None:
        raise ConfigurationError(f"--device {asked} is not one of auto, cpu, cuda, cuda:0, cuda:1, ….")
    if asked == "cpu":
        note("device", "cpu", "unless --device asks for a GPU")
        return None
    usable = [gpu for gpu in facts.gpus if gpu.capability >= LEAST_CAPABILITY and not gpu.interpreted]
    if match is None:
        if facts.obstacle is None and usable:
            note("device", usable[0].device, f"{_described(usable[0])}; --device cpu computes without it")
            return usable[0]
        note("device", "cpu", _why_none(facts))
        return None
    if facts.obstacle is not None:
        raise ConfigurationError(f"--device {asked} is not possible here: {facts.obstacle}.")
    gpu = _numbered(asked, int(match[1] or 0), facts.gpus)
    note("device", gpu.device, f"as asked: {_described(gpu)}")
    return gpu


def _numbered(asked: str, index: int, gpus: Sequence[Gpu]) -> Gpu:
    found = next((gpu for gpu in gpus if gpu.index == index), None)
    if found is None:
        there = ", ".join(gpu.device for gpu in gpus) or "none"
        raise ConfigurationError(f"--device {asked} is not there; this process sees {there} (CUDA_VISIBLE_DEVICES).")
    if found.capability < LEAST_CAPABILITY:
        raise ConfigurationError(
            f"--device {asked} is a {found.name} of compute capability {dotted(found.capability)}, and the kernels "
            f"need {dotted(LEAST_CAPABILITY)} or more; --device cpu computes without it."
        )
    return found


def _why_none(facts: GpuFacts) -> str:
    if facts.obstacle is not None:
        return f"no GPU can be used: {facts.obstacle}"
    if old := [gpu for gpu in facts.gpus if not gpu.interpreted]:
        return f"{old[0].name} has compute capability {dotted(old[0].capability)}, below {dotted(LEAST_CAPABILITY)}"
    return "this process sees no GPU"


def _described(gpu: Gpu) -> str:
    if gpu.interpreted:
        return "Triton interprets its kernels in this process, which is for tests of them and thousands of times slower"
    memory = f"{gpu.free_memory / 2**30:.1f} of {gpu.total_memory / 2**30:.1f} GiB free"
    return f"{gpu.name}, compute capability {dotted(gpu.capability)}, {memory}"
