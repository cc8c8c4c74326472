"""Whether an sdist and a wheel are what a release needs: their contents first, then each as users have it.

Each is installed into an empty environment, and Penstock answers there from another directory. Where the wheel is, no
program but Python's own can be found: no compiler, no CMake.
"""

from __future__ import annotations

import argparse
import contextlib
import email.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "penstock"
VERSION = re.compile(r'^__version__ = "(?P<version>[^"]+)"$', re.MULTILINE)
RELEASED = re.compile(r"^## \[(?P<version>\d[^\]]*)\] - \d{4}-\d\d-\d\d$", re.MULTILINE)
# What an sdist has beside the package and the kernels' sources.
AT_THE_TOP = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml"}
MOST_BYTES = 25_000_000  # of either; the bundled models are 17 MB
KERNELS = re.compile(r"penstock/kernels/cpu/_native\.\S+\.so")
PLATFORM = re.compile(r"manylinux_\d+_\d+_x86_64")
COMPILERS = ("c++", "cc", "clang++", "cmake", "g++")
PROMPT = "Write a haiku about rain."


@dataclass(frozen=True)
class Archive:
    """An sdist or a wheel: its name, its bytes, its files without the folder at the top, and its metadata."""

    name: str
    size: int
    files: frozenset[str]
    metadata: dict[str, str]


def read_sdist(path: Path) -> Archive:
    """The sdist in a file. Raises tarfile.TarError or KeyError where it is none."""
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
        information = archive.extractfile(path.name.removesuffix(".tar.gz") + "/PKG-INFO")
        assert information is not None
        return Archive(path.name, path.stat().st_size, frozenset(files), _metadata(information.read()))


def read_wheel(path: Path) -> Archive:
    """The wheel in a file. Raises zipfile.BadZipFile or KeyError where it is none."""
    name, version, *_ = path.name.split("-")
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read(f"{name}-{version}.dist-info/METADATA")
        return Archive(path.name, path.stat().st_size, frozenset(archive.namelist()), _metadata(metadata))


def _metadata(text: bytes) -> dict[str, str]:
    return dict(email.parser.BytesParser().parsebytes(text, headersonly=True).items())


def package_files() -> set[str]:
    """The files of the package in this checkout, as `penstock/…`."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so"))
    return {path.relative_to(SOURCE.parent).as_posix() for path in files}


def faults_of_sdist(sdist: Archive, version: str) -> list[str]:
    """What is wrong with it: what it lacks, and what is not for users."""
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "native").rglob("*") if path.is_file()}
    wanted = AT_THE_TOP | native | {f"src/{file}" for file in package_files()}
    lacks = [f"lacks {file}" for file in sorted(wanted - sdist.files)]
    extra = [f"has {file}, which is not for users" for file in sorted(sdist.files - wanted)]
    return [f"{sdist.name} {fault}" for fault in lacks + extra + _faults_of_both(sdist, version)]


def faults_of_wheel(wheel: Archive, version: str) -> list[str]:
    """What is wrong with it: what it lacks, and whether it says where it runs."""
    lacks = [f"lacks {file}" for file in sorted(package_files() - wheel.files)]
    if not any(KERNELS.fullmatch(file) for file in wheel.files):
        lacks.append("lacks the native kernels")
    if not any(PurePosixPath(file).name == "LICENSE" for file in wheel.files):
        lacks.append("lacks LICENSE")
    if not PLATFORM.search(wheel.name):
        lacks.append("does not say which Linux it runs on; `auditwheel repair` does")
    return [f"{wheel.name} {fault}" for fault in lacks + _faults_of_both(wheel, version)]


def _faults_of_both(archive: Archive, version: str) -> list[str]:
    faults = []
    if archive.size > MOST_BYTES:
        faults.append(f"has {archive.size:,} bytes, more than {MOST_BYTES:,}")
    if archive.metadata["Version"] != version:
        faults.append(f"is of version {archive.metadata['Version']}, and src/penstock/__init__.py says {version}")
    return faults


def faults_of_changelog(text: str, version: str) -> list[str]:
    """What is wrong with the changelog: the newest version in it is the package's own, unless none was released yet."""
    newest = RELEASED.search(text)
    if newest is None or newest["version"] == version:
        return []
    return [f"CHANGELOG.md ends at {newest['version']}, and src/penstock/__init__.py says {version}"]


def this_version() -> str:
    """The version that `src/penstock/__init__.py` says."""
    match = VERSION.search((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    assert match is not None
    return match["version"]


@dataclass(frozen=True)
class Installation:
    """Penstock in an environment of its own.

    Attributes:
        environment: folder of the virtual environment.
        home: an empty directory to work in, which has all caches too.
        path: what PATH is, for pip and for Penstock.
    """

    environment: Path
    home: Path
    path: str

    def install(self, archive: Path) -> None:
        """Make the environment and install an archive there, with the versions that are tested."""
        _run([sys.executable, str(ROOT / "scripts" / "install.py"), str(self.environment), "--torch-only"])
        self.home.mkdir()
        pip = [str(self.environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        pinned = ["--constraint", str(ROOT / "constraints.txt")]
        _run([*pip, *pinned, str(archive)], env=os.environ | {"PATH": self.path})

    def penstock(self, *arguments: str) -> str:
        """What a command prints; fails where its exit status is not 0."""
        return _run(self._command(*arguments), cwd=self.home, env=self._variables(), capture=True)

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """The URL of a server, once it is ready; sees that it ends in order."""
        command = self._command("serve", "--port", "0")
        with subprocess.Popen(
            command, cwd=self.home, env=self._variables(), stderr=subprocess.PIPE, text=True
        ) as server:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if address := re.search(r"http://\S+:\d+", line):
                    break
            else:
                raise SystemExit(f"The server ended before it was ready:\n{''.join(said)}")
            try:
                yield address[0]
            finally:
                server.terminate()
                server.stderr.read()
        if server.returncode != 0:
            raise SystemExit(f"The server ended with status {server.returncode}.")

    def _command(self, *arguments: str) -> list[str]:
        return [str(self.environment / "bin" / "penstock"), *arguments]

    def _variables(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": self.path, "COLUMNS": "200"}


def _run(
    command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None, capture: bool = False
) -> str:
    out = subprocess.PIPE if capture else None
    ended = subprocess.run(command, cwd=cwd, env=env, stdout=out, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {ended.returncode}; its message is above.")
    return ended.stdout or ""


def first_text(url: str) -> str:
    """The first text that a server at `url` streams of a chat."""
    body = {"model": "haiku", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                content = json.loads(line[6:])["choices"][0]["delta"].get("content")
                if content:
                    return str(content)
    raise SystemExit("The stream ended without a text.")


def check_installed(installation: Installation, version: str) -> None:
    """Use what users use first, and see that the native kernels compute. Exits with a sentence where it fails."""
    if (said := installation.penstock("--version").split()[-1]) != version:
        raise SystemExit(f"`penstock --version` says {said}, not {version}.")
    haiku = installation.penstock("run", "haiku", PROMPT)
    if not haiku.strip():
        raise SystemExit("`penstock run` has written nothing.")
    print(haiku.strip())
    with installation.serving() as url:
        print(f"The server's first text: {first_text(url)!r}")
    # Without native kernels, it refuses.
    reached = installation.penstock("bench", "kernels", "--operation", "rms_norm", "--rows", "1")
    print(reached.partition("\n")[0])


def completed_sbom(told: str, version: str) -> str:
    """A bill of materials of an environment in which a release is, with the version of that.

    Exits with a sentence where a package that it needs is not in it.
    """
    bill = json.loads(told)
    bill["metadata"]["component"]["version"] = version
    # The release itself is what the bill is of.
    bill["components"] = [each for each in bill["components"] if each["name"] != "penstock"]
    there = {_normal(each["name"]) for each in bill["components"]}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    if missing := sorted({_normal(re.split(r"[^\w.-]", each)[0]) for each in needed} - there):
        raise SystemExit(f"The bill of materials lacks {', '.join(missing)}.")
    return json.dumps(bill, indent=2) + "\n"


def _normal(name: str) -> str:
    """A name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write_sbom(tool: Path, python: Path, path: Path, version: str) -> None:
    """Write what is installed beside a release, with licences, in CycloneDX's form."""
    command = [str(tool), "environment", "--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml")]
    path.write_text(completed_sbom(_run([*command, str(python)], capture=True), version), encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


def try_out(archive: Path, place: Path, version: str) -> None:
    """Install an archive into an empty environment under `place`, and use it. Exits with a sentence where it fails."""
    print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB", flush=True)
    path = str(place / "environment" / "bin")
    if archive.suffix != ".whl":
        path = os.pathsep.join((path, os.environ["PATH"]))
    installation = Installation(place / "environment", place / "home", path)
    installation.install(archive)
    compilers = [program for program in COMPILERS if shutil.which(program, path=path)]
    if archive.suffix == ".whl" and compilers:
        raise SystemExit(f"The wheel's environment has {compilers[0]}, so it does not show that none is needed.")
    check_installed(installation, version)


def main() -> None:
    """Check the one sdist and the one wheel in a folder."""
    parser = argparse.ArgumentParser(description="Check the files of a release.")
    parser.add_argument("folder", type=Path, help="where the sdist and the wheel are")
    parser.add_argument(
        "--sbom", type=Path, metavar="TOOL", help="cyclonedx-py, which writes what the wheel comes with"
    )
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    version = this_version()
    sdists, wheels = sorted(folder.glob("*.tar.gz")), sorted(folder.glob("*.whl"))
    if len(sdists) != 1 or len(wheels) != 1:
        raise SystemExit(f"{folder} has {len(sdists)} sdists and {len(wheels)} wheels; one of each is checked.")
    (sdist,), (wheel,) = sdists, wheels
    faults = faults_of_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    faults += faults_of_sdist(read_sdist(sdist), version) + faults_of_wheel(read_wheel(wheel), version)
    if faults:
        raise SystemExit("\n".join(faults))
    for archive in (wheel, sdist):
        with tempfile.TemporaryDirectory() as temporary:
            try_out(archive, Path(temporary), version)
            if archive is wheel and arguments.sbom is not None:
                path = folder / f"{wheel.stem}.cdx.json"
                write_sbom(arguments.sbom.absolute(), Path(temporary) / "environment" / "bin" / "python", path, version)


if __name__ == "__main__":
    main()
