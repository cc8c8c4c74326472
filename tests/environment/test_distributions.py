"""The environment: no CUDA packages without a GPU, and an installer that keeps it so."""

import importlib.metadata
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from support.scripts import ROOT, load_script

installer = load_script("install")


def installed_cuda_packages() -> list[str]:
    names = {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}
    return sorted(name for name in names if installer.is_cuda_package(name))


@pytest.mark.skipif(installer.has_gpu(), reason="this machine has a GPU")
def test_no_cuda_packages_without_a_gpu() -> None:
    assert installed_cuda_packages() == []


@pytest.mark.parametrize("name", ["nvidia-cublas-cu12", "nvidia_nccl_cu12", "cuda-bindings", "cuda_toolkit"])
def test_an_installed_cuda_package_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_cuda_packages() == [name]


def test_pip_report_with_cuda_packages_is_recognised() -> None:
    names = ["torch", "nvidia-cudnn-cu13", "sympy", "cuda-bindings", "cudatext"]
    report = json.dumps({"install": [{"metadata": {"name": name}} for name in names]})
    assert installer.cuda_packages(report) == ["cuda-bindings", "nvidia-cudnn-cu13"]


def test_torch_that_brings_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    report = json.dumps({"install": [{"metadata": {"name": "torch"}}, {"metadata": {"name": "nvidia-nccl-cu13"}}]})
    calls: list[tuple[str, ...]] = []

    def pip(python: Path, *arguments: str, capture: bool = False) -> object:
        calls.append(arguments)
        return type("Completed", (), {"returncode": 0, "stdout": report})()

    monkeypatch.setattr(installer, "has_gpu", lambda: False)
    monkeypatch.setattr(installer, "is_reachable", lambda url: False)
    monkeypatch.setattr(installer, "pip", pip)
    with pytest.raises(SystemExit, match="no NVIDIA GPU.*nvidia-nccl-cu13"):
        installer.install_torch(Path("python"))
    assert all("--dry-run" in arguments for arguments in calls), "nothing was installed"


def test_where_pip_cannot_say_what_torch_brings_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(python: Path, *arguments: str, capture: bool = False) -> object:
        calls.append(arguments)
        return type("Completed", (), {"returncode": 1 if "--dry-run" in arguments else 0, "stdout": ""})()

    monkeypatch.setattr(installer, "has_gpu", lambda: False)
    monkeypatch.setattr(installer, "is_reachable", lambda url: False)
    monkeypatch.setattr(installer, "pip", pip)
    with pytest.raises(SystemExit, match=r"pip found no way to install torch==.*message is above"):
        installer.install_torch(Path("python"))
    assert all("--dry-run" in arguments for arguments in calls), "nothing was installed"


def test_the_cpu_index_is_the_first_source(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(python: Path, *arguments: str, capture: bool = False) -> object:
        calls.append(arguments)
        return type("Completed", (), {"returncode": 0, "stdout": ""})()

    monkeypatch.setattr(installer, "has_gpu", lambda: False)
    monkeypatch.setattr(installer, "is_reachable", lambda url: True)
    monkeypatch.setattr(installer, "pip", pip)
    installer.install_torch(Path("python"))
    assert len(calls) == 1
    assert calls[0][calls[0].index("--index-url") + 1] == "https://download.pytorch.org/whl/cpu"


def test_constraints_pin_torch_and_no_cuda_package() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert installer.pinned_torch(text) == "torch==2.13.0"
    names = [line.split("==")[0] for line in text.splitlines() if line and not line.startswith("#")]
    assert not any(installer.is_cuda_package(name) for name in names)


def test_the_probe_tells_an_index_from_nothing() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/whl/cpu"
        assert installer.is_reachable(url)
        server.shutdown()
    assert not installer.is_reachable(url, seconds=0.2)
