"""Builds the virtual environment: torch first and alone, then Penstock with pinned constraints.

On a machine without an NVIDIA GPU, torch comes from PyTorch's own CPU index where that can be reached, else from the
sources that pip is configured with, and is refused there if it would bring gigabytes of CUDA packages along.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 1.5
# Not what asks the driver, which is small and needs no GPU.
CUDA_PACKAGE = re.compile(r"(?!nvidia[-_.]ml[-_.]py)(nvidia|cuda)[-_.]", re.IGNORECASE)


def is_cuda_package(name: str) -> bool:
    """Whether a distribution of this name belongs to CUDA."""
    return CUDA_PACKAGE.match(name) is not None


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU with a working driver."""
    if shutil.which("nvidia-smi") is None:
        return False
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU" in listing.stdout


def is_reachable(url: str, seconds: float = PROBE_SECONDS) -> bool:
    """Whether `url` answers within `seconds`."""
    answered = threading.Event()

    def probe() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answered.set()
        except (OSError, ValueError):
            return

    # A thread, because the time-out of a socket does not bound the name lookup before it.
    threading.Thread(target=probe, daemon=True).start()
    return answered.wait(seconds + 0.5)


def pinned_torch(constraints: str) -> str:
    """The requirement that pins torch in the text of a constraints file."""
    for line in constraints.splitlines():
        if line.startswith("torch=="):
            return line.strip()
    raise SystemExit("constraints.txt does not pin torch; add a line such as torch==2.13.0.")


def cuda_packages(report: str) -> list[str]:
    """Names of the CUDA distributions that pip would install, from the JSON text of its installation report."""
    names = [item["metadata"]["name"] for item in json.loads(report)["install"]]
    return sorted(name for name in names if is_cuda_package(name))


def pip(python: Path, *arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Run pip in the environment of `python`; its output is shown unless captured."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE if capture else None, text=True, check=False, cwd=ROOT)


def install_torch(python: Path, *, cuda: bool = False) -> None:
    """Install the pinned torch: the CPU build where there is no GPU, unless it is to be that for CUDA all the same.

    Exits with one sentence where that is not had.
    """
    requirement = pinned_torch(CONSTRAINTS.read_text(encoding="utf-8"))
    pinned = ["-c", str(CONSTRAINTS), requirement]
    if not cuda and not has_gpu():
        if is_reachable(f"{CPU_INDEX}/torch/"):
            # Its dependencies come later, from the usual sources, with everyone else's.
            if pip(python, "install", "--no-deps", "--index-url", CPU_INDEX, *pinned).returncode == 0:
                return
            print(f"{requirement} could not be installed from {CPU_INDEX}; trying pip's configured sources.")
        else:
            print(f"{CPU_INDEX} can't be reached; taking torch from pip's configured sources.")
        report = pip(python, "install", "--quiet", "--dry-run", "--report", "-", *pinned, capture=True)
        if report.returncode != 0:
            raise SystemExit(f"pip found no way to install {requirement} without CUDA packages; its message is above.")
        unwanted = cuda_packages(report.stdout)
        if unwanted:
            raise SystemExit(
                f"This machine has no NVIDIA GPU, but {requirement} from pip's configured sources would bring "
                f"{len(unwanted)} CUDA packages ({unwanted[0]}, ...); make {CPU_INDEX} reachable, or give pip a folder "
                "with a CPU wheel of torch through PIP_FIND_LINKS."
            )
    if pip(python, "install", *pinned).returncode != 0:
        raise SystemExit(f"pip could not install {requirement}; its message is above.")


def main() -> None:
    """Create or complete the environment that the command line names."""
    parser = argparse.ArgumentParser(description="Build Penstock's virtual environment.")
    parser.add_argument("environment", type=Path, help="folder of the virtual environment")
    parser.add_argument("--extra", action="append", default=[], help="optional dependencies of the package to install")
    parser.add_argument("--cuda", action="store_true", help="torch for GPUs, also where there is none: for an image")
    parser.add_argument("--torch-only", action="store_true", help="leave Penstock out: for what it is compared with")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is what tells so
        version = ".".join(map(str, sys.version_info[:2]))
        raise SystemExit(
            f"Python {version} is too old, 3.11 or later is needed; say which with `make PYTHON=python3.12`."
        )
    if os.environ.get("CI"):
        os.environ.setdefault("PIP_PROGRESS_BAR", "off")
    python = options.environment.absolute() / "bin" / "python"
    if not python.exists() and subprocess.run([sys.executable, "-m", "venv", options.environment]).returncode != 0:
        raise SystemExit("The virtual environment could not be made; the message is above.")
    install_torch(python, cuda=options.cuda)
    if options.torch_only:
        return
    package = f".[{','.join(options.extra)}]" if options.extra else "."
    if pip(python, "install", "-c", str(CONSTRAINTS), "--editable", package).returncode != 0:
        raise SystemExit("pip could not install Penstock; its message is above.")


if __name__ == "__main__":
    main()
