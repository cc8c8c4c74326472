"""The check of a release finds what an sdist or a wheel lacks, and versions that differ; `make dist` applies it."""

import dataclasses
import io
import json
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.scripts import ROOT, load_script

check = load_script("check_dist")
PROJECT = ROOT / "pyproject.toml"
VERSION = check.this_version()


@pytest.fixture
def sdist() -> Any:
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "native").rglob("*.*")}
    files = frozenset({*check.AT_THE_TOP, *native, *(f"src/{file}" for file in check.package_files())})
    return check.Archive(f"penstock-{VERSION}.tar.gz", 17_000_000, files, {"Version": VERSION})


@pytest.fixture
def wheel() -> Any:
    files = {*check.package_files(), "penstock/kernels/cpu/_native.cpython-311-x86_64-linux-gnu.so"}
    name = f"penstock-{VERSION}-cp311-cp311-manylinux_2_35_x86_64.whl"
    licensed = files | {f"penstock-{VERSION}.dist-info/licenses/LICENSE"}
    return check.Archive(name, 17_000_000, frozenset(licensed), {"Version": VERSION})


def test_what_is_wrong_with_an_sdist_is_told(sdist: Any) -> None:
    assert check.faults_of_sdist(sdist, VERSION) == []
    assert {"LICENSE", "native/CMakeLists.txt", "src/penstock/bundled/models/haiku/model.safetensors"} <= sdist.files
    files = sdist.files - {"native/src/pool.cpp", "src/penstock/py.typed"} | {"tests/conftest.py"}
    wrong = dataclasses.replace(sdist, size=30_000_000, files=files)
    assert check.faults_of_sdist(wrong, "9.9") == [
        f"{sdist.name} lacks native/src/pool.cpp",
        f"{sdist.name} lacks src/penstock/py.typed",
        f"{sdist.name} has tests/conftest.py, which is not for users",
        f"{sdist.name} has 30,000,000 bytes, more than 25,000,000",
        f"{sdist.name} is of version {VERSION}, and src/penstock/__init__.py says 9.9",
    ]


def test_what_is_wrong_with_a_wheel_is_told(wheel: Any) -> None:
    assert check.faults_of_wheel(wheel, VERSION) == []
    kept = {file for file in wheel.files if not file.endswith((".so", "LICENSE", "py.typed"))}
    name = wheel.name.replace("manylinux_2_35", "linux")
    assert check.faults_of_wheel(dataclasses.replace(wheel, name=name, files=frozenset(kept)), VERSION) == [
        f"{name} lacks penstock/py.typed",
        f"{name} lacks the native kernels",
        f"{name} lacks LICENSE",
        f"{name} does not say which Linux it runs on; `auditwheel repair` does",
    ]


def test_a_bill_of_materials_is_whole_and_of_this_version() -> None:
    names = [re.split(r"[^\w.-]", each)[0] for each in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]]
    components = [{"name": name} for name in [*names, "penstock"]]
    told = {"metadata": {"component": {"name": "penstock"}}, "components": components}
    bill = json.loads(check.completed_sbom(json.dumps(told), VERSION))
    assert bill["metadata"]["component"]["version"] == VERSION
    assert [each["name"] for each in bill["components"]] == names
    told["components"] = [each for each in components if each["name"] not in ("numpy", "huggingface_hub")]
    with pytest.raises(SystemExit, match="lacks huggingface-hub, numpy"):
        check.completed_sbom(json.dumps(told), VERSION)


METADATA = b"Name: penstock\nVersion: 1.2\n\nText: none\n"


def test_a_wheel_is_read(tmp_path: Path) -> None:
    path = tmp_path / "penstock-1.2-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("penstock/py.typed", "")
        archive.writestr("penstock-1.2.dist-info/METADATA", METADATA)
    read = check.read_wheel(path)
    assert (read.name, read.size) == (path.name, path.stat().st_size)
    assert read.files == {"penstock/py.typed", "penstock-1.2.dist-info/METADATA"}
    assert read.metadata == {"Name": "penstock", "Version": "1.2"}


def test_an_sdist_is_read(tmp_path: Path) -> None:
    path = tmp_path / "penstock-1.2.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("PKG-INFO", METADATA), ("src/penstock/py.typed", b"")):
            member = tarfile.TarInfo(f"penstock-1.2/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    read = check.read_sdist(path)
    assert (read.name, read.size) == (path.name, path.stat().st_size)
    assert read.files == {"PKG-INFO", "src/penstock/py.typed"}
    assert read.metadata == {"Name": "penstock", "Version": "1.2"}


def test_the_changelog_and_the_package_name_the_same_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.count("\n## [Unreleased]\n") == 1
    assert check.faults_of_changelog(text, VERSION) == []
    released = "## [Unreleased]\n\n## [1.1.0] - 2026-01-31\n\n- This.\n\n## [1.0.0] - 2025-01-31\n"
    assert check.faults_of_changelog(released, "1.1.0") == []
    assert check.faults_of_changelog(released, "1.2.0") == [
        "CHANGELOG.md ends at 1.1.0, and src/penstock/__init__.py says 1.2.0"
    ]
