"""What GPUs this process sees, and what stands in the way of using them. Asks the driver; imports no torch.

The driver's library counts all GPUs of the machine by where they are plugged in, CUDA those that CUDA_VISIBLE_DEVICES
leaves, in its order, and counts by speed unless CUDA_DEVICE_ORDER says otherwise.
"""

import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from msgspec.structs import replace

from penstock.core.devices import FP8_CAPABILITY, Gpu, GpuFacts

COMPILERS = ("gcc", "clang", "cc")
_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([0-9.]+)['\"]", re.MULTILINE)


def find_gpus(environment: Mapping[str, str] = os.environ) -> GpuFacts:
    """The GPUs, and the first thing that is missing for their use."""
    if environment.get("TRITON_INTERPRET") == "1":
        obstacle = None if installed("triton") else "Triton is not installed (pip install 'penstock[cuda]')"
        memory = psutil.virtual_memory()
        stand_in = Gpu(0, "Triton's interpreter", FP8_CAPABILITY, memory.total, memory.available, interpreted=True)
        return GpuFacts((stand_in,), obstacle)
    if environment is os.environ:
        # This process and those that it starts count as the driver's library does.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        import pynvml
    except ImportError:
        return GpuFacts((), "nvidia-ml-py is not installed (pip install nvidia-ml-py)")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuFacts((), f"there is no working NVIDIA driver ({error})")
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        found = [_described(index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
        newest = pynvml.nvmlSystemGetCudaDriverVersion()
        obstacle = software_obstacle((newest // 1000, newest % 1000 // 10), environment)
        if len(found) > 1 and environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") != "PCI_BUS_ID":
            obstacle = "CUDA_DEVICE_ORDER has to be PCI_BUS_ID, so that it is clear which GPU has which number"
        if _is_cut(found, environment):
            obstacle = (
                "the GPU is cut into MIG instances, whose own memory is not read here; switch MIG off (nvidia-smi -mig "
                "0), or let this process see a whole GPU (CUDA_VISIBLE_DEVICES)"
            )
        return GpuFacts(tuple(_visible(found, environment)), obstacle)
    except pynvml.NVMLError as error:
        return GpuFacts((), f"the NVIDIA driver does not answer ({error})")
    finally:
        pynvml.nvmlShutdown()


def _described(index: int, driver: str) -> tuple[str, Gpu]:
    """A GPU's unique id, and the rest."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    ecc, errors = None, None
    # Many GPUs have none, which is no failure.
    with suppress(pynvml.NVMLError):
        ecc = bool(pynvml.nvmlDeviceGetEccMode(handle)[0])
        errors = int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    gpu = Gpu(
        index=index,
        name=str(pynvml.nvmlDeviceGetName(handle)),
        capability=(int(major), int(minor)),
        total_memory=int(memory.total),
        free_memory=int(memory.free),
        driver=driver,
        ecc=ecc,
        memory_errors=errors,
    )
    return str(pynvml.nvmlDeviceGetUUID(handle)), gpu


def _is_cut(found: Sequence[tuple[str, Gpu]], environment: Mapping[str, str]) -> bool:
    """Whether this process sees a part of a GPU, while the driver's library tells of the whole GPU."""
    import pynvml

    if "MIG-" in environment.get("CUDA_VISIBLE_DEVICES", ""):
        return True
    shown = _shown(found, environment)
    for _, gpu in shown:
        # Most GPUs cannot be cut, which is no failure.
        with suppress(pynvml.NVMLError):
            current, _pending = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(gpu.index))
            if current == pynvml.NVML_DEVICE_MIG_ENABLE:
                return True
    return False


def _visible(found: Sequence[tuple[str, Gpu]], environment: Mapping[str, str]) -> list[Gpu]:
    """Those that CUDA shows this process, numbered as there."""
    return [replace(gpu, index=index) for index, (_, gpu) in enumerate(_shown(found, environment))]


def _shown(found: Sequence[tuple[str, Gpu]], environment: Mapping[str, str]) -> list[tuple[str, Gpu]]:
    """The same, numbered as the driver does. An entry that names none ends the list, as in CUDA."""
    asked = environment.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return list(found)
    shown: list[tuple[str, Gpu]] = []
    for entry in asked.split(","):
        name = entry.strip()
        one = next((each for each in found if name and (name == str(each[1].index) or each[0].startswith(name))), None)
        if one is None:
            break
        shown.append(one)
    return shown


def software_obstacle(driver: tuple[int, int], environment: Mapping[str, str] = os.environ) -> str | None:
    """What of the software is missing, where the driver knows CUDA up to version `driver`."""
    built_for = torch_cuda()
    if built_for is None:
        return "this build of torch computes on CPUs alone; install one for CUDA (https://pytorch.org/get-started)"
    # Within a major version, what is built for a newer minor one runs on an older driver.
    if built_for[0] > driver[0]:
        return (
            f"the driver knows CUDA up to {driver[0]}.{driver[1]} and torch is built for {built_for[0]}.{built_for[1]}"
            "; update the driver, or install a torch for the older version"
        )
    if not installed("triton"):
        return "Triton is not installed (pip install 'penstock[cuda]')"
    compiler = environment.get("CC")
    if not any(shutil.which(name) for name in ((compiler,) if compiler else COMPILERS)):
        looked = f"CC={compiler}" if compiler else " or ".join(COMPILERS)
        return f"Triton needs a C compiler for what starts its kernels, and there is no {looked}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Triton needs Python's headers for what starts its kernels, and there is no Python.h (python3-dev)"
    return None


def torch_cuda() -> tuple[int, int] | None:
    """The version of CUDA that torch is built for, None where it is built for CPUs. Importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    match = _CUDA.search((Path(spec.origin).parent / "version.py").read_text())
    if match is None:
        return None
    major, _, minor = match[1].partition(".")
    return int(major), int(minor.split(".")[0] or 0)


def installed(package: str) -> bool:
    """Whether a package could be imported."""
    return importlib.util.find_spec(package) is not None
