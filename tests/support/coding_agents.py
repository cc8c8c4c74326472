"""Coding agents as they come from package registries, run on a repository of their own without a network."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.http_server import free_port
from support.seen_requests import Seen, SeenRequests
from support.speaking_model import SpeakingModel

# Where `make clients` puts them.
FOLDER = Path(__file__).resolve().parents[2] / "build" / "clients"
PROGRAMS = {
    "codex": "node_modules/.bin/codex",
    "claude": "node_modules/.bin/claude",
    "opencode": "node_modules/.bin/opencode",
    "aider": "aider/bin/aider",
}
BEFORE = "def add(a, b):\n    return a - b\n"
AFTER = "def add(a, b):\n    return a + b\n"
# An agent that has not ended by then hangs.
SECONDS = 300


def find_agent(name: str) -> Path:
    """The program. Skips the test where it is not installed, but for continuous integration."""
    program = FOLDER / PROGRAMS[name]
    if not program.exists():
        missing = f"{name} is not installed (`make clients` installs the coding agents into {FOLDER})"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return program


@dataclass(frozen=True)
class WatchedModel:
    """A served model, and what its server was asked."""

    model: SpeakingModel
    seen: SeenRequests

    @property
    def url(self) -> str:
        """Where it is served."""
        return self.model.url

    def asked(self) -> list[Seen]:
        """All requests in the order in which their answers began."""
        return self.seen.requests


@dataclass(frozen=True)
class Workplace:
    """A home directory, and a git repository with one commit of `calc.py`, which subtracts where it should add."""

    home: Path
    repository: Path

    @classmethod
    def make(cls, folder: Path) -> "Workplace":
        """A new one in an empty folder."""
        place = cls(folder / "home", folder / "repository")
        place.home.mkdir()
        place.repository.mkdir()
        (place.repository / "calc.py").write_text(BEFORE)
        place._git("init", "--quiet")
        place._git("config", "user.name", "Somebody")
        place._git("config", "user.email", "somebody@localhost")
        place._git("add", ".")
        place._git("commit", "--quiet", "--message", "A calculator")
        return place

    @property
    def file(self) -> Path:
        """The file that is to be edited."""
        return self.repository / "calc.py"

    def write(self, path: str, text: str) -> None:
        """Write a file of settings below the home directory."""
        target = self.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def run(self, name: str, *arguments: str, settings: Mapping[str, str]) -> str:
        """What an agent writes to its standard output; fails unless it ends with status 0.

        `settings` are environment variables. The agent gets none of the test's own but the path of programs, and every
        connection that is not to this machine is refused.
        """
        nowhere = f"http://127.0.0.1:{free_port()}"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "http_proxy": nowhere,
            "https_proxy": nowhere,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            **settings,
        }
        process = subprocess.Popen(
            [find_agent(name), *arguments],
            cwd=self.repository,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=SECONDS)
        finally:
            # What it may have started and left running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.returncode == 0, f"{name} ended with status {process.returncode}:\n{output}\n{errors}"
        return output

    def log(self) -> list[str]:
        """The subjects of the commits, the last one first."""
        return self._git("log", "--format=%s").splitlines()

    def _git(self, *arguments: str) -> str:
        environment = {**os.environ, "HOME": str(self.home)}
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=self.repository, check=True, env=environment, stdout=subprocess.PIPE, text=True
        ).stdout
