"""Coding agents as they come from package registries, run on a repository of their own without a network."""

import contextlib
import json
import os
import shlex
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
_ROOT = Path(__file__).resolve().parents[2]
FOLDER = _ROOT / "build" / "clients"
PAGE = _ROOT / "docs" / "clients.md"
PROGRAMS = {
    "codex": "node_modules/.bin/codex",
    "claude": "node_modules/.bin/claude",
    "opencode": "node_modules/.bin/opencode",
    "aider": "aider/bin/aider",
    "cohere": "cohere/bin/python",
}
BEFORE = "def add(a, b):\n    return a - b\n"
AFTER = "def add(a, b):\n    return a + b\n"
# An agent that has not ended by then hangs.
SECONDS = 900.0


def find_agent(name: str) -> Path:
    """The program. Skips the test where it is not installed, but for continuous integration."""
    return find_program(name, FOLDER / PROGRAMS[name])


def find_program(name: str, program: Path) -> Path:
    """The same of any that `make clients` installs."""
    if not program.exists():
        missing = f"{name} is not installed (`make clients` installs the clients into {FOLDER})"
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

    def run(self, name: str, *arguments: str, settings: Mapping[str, str], seconds: float = SECONDS) -> str:
        """What an agent writes to its standard output; fails unless it ends with status 0 and within `seconds`.

        `settings` are environment variables. The agent gets none of the test's own but the path of programs, and for
        all other machines a proxy that does not answer.
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
            output, errors = process.communicate(timeout=seconds)
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


@dataclass(frozen=True)
class Endpoint:
    """A served model: the server's address, the model's name there, and the tokens of its context."""

    url: str
    model: str = "scripted"
    context: int = 200_000

    def settings(self, agent: str) -> str:
        """What docs/clients.md says an agent is to be given: the first block of code of its section, for this model."""
        section = PAGE.read_text(encoding="utf-8").partition(f"\n## {agent}\n")[2]
        block = section.partition("\n```")[2].partition("\n")[2].partition("\n```")[0]
        assert block, f"{PAGE} has no settings of {agent}"
        for documented, value in (
            ("http://127.0.0.1:8000", self.url),
            ("my-model", self.model),
            ("32768", str(self.context)),
        ):
            block = block.replace(documented, value)
        return block


def run_codex(place: Workplace, server: Endpoint, task: str, *options: str, seconds: float = SECONDS) -> str:
    """Codex's last message."""
    place.write(".codex/config.toml", server.settings("Codex"))
    arguments = ("exec", "--dangerously-bypass-approvals-and-sandbox", "--color", "never", *options, task)
    return place.run("codex", *arguments, settings={"PENSTOCK_API_KEY": "none"}, seconds=seconds).strip()


def run_claude_code(place: Workplace, server: Endpoint, task: str, *options: str, seconds: float = SECONDS) -> str:
    """Claude Code's last message."""
    settings, _ = _shell(server.settings("Claude Code"))
    arguments = ("--print", task, "--output-format", "json", "--permission-mode", "acceptEdits")
    output = place.run("claude", *arguments, "--allowedTools", "Bash", *options, settings=settings, seconds=seconds)
    return str(json.loads(output)["result"])


def run_opencode(place: Workplace, server: Endpoint, task: str, seconds: float = SECONDS) -> str:
    """All that OpenCode says."""
    place.write(".config/opencode/opencode.json", server.settings("OpenCode"))
    environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"}
    return place.run("opencode", "run", "--auto", task, settings=environment, seconds=seconds)


def run_aider(place: Workplace, server: Endpoint, task: str, check: str, seconds: float = SECONDS) -> str:
    """All that Aider says. It runs the command `check` after each edit, and goes on where that fails."""
    settings, (_, *options) = _shell(server.settings("Aider"))
    arguments = ("--yes-always", "--no-pretty", "--auto-test", "--test-cmd", check, "--message", task, place.file.name)
    environment = {**settings, "PYTHONDONTWRITEBYTECODE": "1"}
    return place.run("aider", *options, *arguments, settings=environment, seconds=seconds)


def _shell(lines: str) -> tuple[dict[str, str], list[str]]:
    """The variables that lines of a shell export, and the command that is their last."""
    words = [shlex.split(line, comments=True) for line in lines.splitlines()]
    exported = [line[1] for line in words if line[0] == "export"]
    return {name: value for name, _, value in (pair.partition("=") for pair in exported)}, words[-1]
