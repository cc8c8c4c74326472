"""What is found of GPUs, with a stand-in for NVIDIA's management library, which only its driver brings."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.devices import Gpu
from penstock.runtime import gpus
from penstock.runtime.gpus import find_gpus, software_obstacle, torch_cuda


class NVMLError(Exception):
    pass


class Library:
    """Two GPUs of a made-up kind, the second without ECC."""

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, cuda: int = 13000, broken: bool = False) -> None:
        self.cuda, self.broken, self.open = cuda, broken, 0
        self.cut = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlSystemGetCudaDriverVersion": lambda: self.cuda,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 << 30, free=(79 - handle) << 30),
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetName": lambda handle: f"Made-up {handle}",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}abc",
            "nvmlDeviceGetEccMode": self._ecc,
            "nvmlDeviceGetMigMode": self._mig,
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 7,
        }
        return answers[name]

    def _mig(self, handle: int) -> tuple[int, int]:
        if handle == 0:
            raise NVMLError("Not Supported")
        return int(self.cut), 0

    @staticmethod
    def _ecc(handle: int) -> tuple[int, int]:
        if handle:
            raise NVMLError("Not Supported")
        return 1, 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(gpus, "torch_cuda", lambda: (13, 0))
    monkeypatch.setattr(gpus, "installed", lambda _package: True)
    monkeypatch.setattr(gpus.shutil, "which", lambda name: f"/usr/bin/{name}")
    return made


def test_all_that_the_driver_names_are_found(library: Library) -> None:
    found = find_gpus({})
    assert found.obstacle is None
    assert found.gpus == (
        Gpu(0, "Made-up 0", (9, 0), 80 << 30, 79 << 30, "580.1", True, 7),
        Gpu(1, "Made-up 1", (9, 0), 80 << 30, 78 << 30, "580.1", None, None),
    )
    assert library.open == 0


@pytest.mark.parametrize(
    "asked, names",
    [
        ("1", ["Made-up 1"]),
        ("1,0", ["Made-up 1", "Made-up 0"]),
        ("GPU-1a", ["Made-up 1"]),
        ("0,-1,1", ["Made-up 0"]),
        ("", []),
        ("7", []),
    ],
)
@pytest.mark.usefixtures("library")
def test_those_are_shown_that_cuda_shows(asked: str, names: list[str]) -> None:
    found = find_gpus({"CUDA_VISIBLE_DEVICES": asked})
    assert [(gpu.index, gpu.name) for gpu in found.gpus] == list(enumerate(names))


@pytest.mark.parametrize(
    "cut, asked, refused",
    [
        (True, None, True),
        (True, "1", True),
        (True, "0", False),
        (False, None, False),
        (False, "MIG-1abc", True),
    ],
)
def test_a_part_of_a_gpu_is_refused(library: Library, cut: bool, asked: str | None, refused: bool) -> None:
    """Its memory is not that of the whole, which the driver names."""
    library.cut = cut
    found = find_gpus({} if asked is None else {"CUDA_VISIBLE_DEVICES": asked})
    assert ("MIG" in str(found.obstacle)) == refused


def test_a_driver_that_does_not_work_is_told(library: Library) -> None:
    library.broken = True
    found = find_gpus({})
    assert found.gpus == () and found.obstacle is not None and "Driver Not Loaded" in found.obstacle


def test_missing_software_is_told(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.cuda = 12040
    assert "knows CUDA up to 12.4 and torch is built for 13.0" in str(find_gpus({}).obstacle)
    monkeypatch.setattr(gpus, "torch_cuda", lambda: (12, 8))
    assert find_gpus({}).obstacle is None
    monkeypatch.setattr(gpus.shutil, "which", lambda _name: None)
    assert "C compiler" in str(software_obstacle((13, 0), {}))
    assert "CC=own-cc" in str(software_obstacle((13, 0), {"CC": "own-cc"}))
    monkeypatch.setattr(gpus, "installed", lambda _package: False)
    assert "Triton is not installed" in str(software_obstacle((13, 0), {}))
    monkeypatch.setattr(gpus, "torch_cuda", lambda: None)
    assert "CPUs alone" in str(software_obstacle((13, 0), {}))


@pytest.mark.parametrize(
    "line, expected", [("'13.0'", (13, 0)), ('"12.8"', (12, 8)), ("'13'", (13, 0)), ("None", None)]
)
def test_torch_says_what_it_is_built_for(
    line: str, expected: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\ncuda: Optional[str] = {line}\nhip = None\n")
    monkeypatch.setattr(
        gpus.importlib.util, "find_spec", lambda _name: SimpleNamespace(origin=tmp_path / "__init__.py")
    )
    assert torch_cuda() == expected


def test_this_torch_is_read_as_it_is() -> None:
    import torch

    version = torch.version.cuda
    assert torch_cuda() == (None if version is None else tuple(map(int, version.split(".")[:2])))


def test_the_interpreter_stands_in_for_a_gpu() -> None:
    (gpu,) = find_gpus({"TRITON_INTERPRET": "1"}).gpus
    assert gpu.interpreted and gpu.device == "cuda:0" and 0 < gpu.free_memory <= gpu.total_memory
