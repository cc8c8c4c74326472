"""Runs a driver as a child process: its last line of JSON, or what went wrong."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from peers.workload import LAUNCHED

# What is kept of a line that says why a child failed.
LONGEST_REASON = 300


@dataclass(frozen=True)
class Outcome:
    """Either `figures` or `error` is there; `seconds` is how long the child ran."""

    figures: dict[str, Any] | None
    error: str | None
    seconds: float


def run_child(command: Sequence[str], time_limit: float) -> Outcome:
    """Run a command to its end, or to the limit; nothing of it is left behind."""
    started = time.monotonic()

    def outcome(figures: dict[str, Any] | None, error: str | None) -> Outcome:
        return Outcome(figures, error, time.monotonic() - started)

    # Files rather than pipes: nobody needs to read them while the child is being timed.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, LAUNCHED: str(started)},
            )
        except OSError as error:
            return outcome(None, f"{command[0]} could not be started: {error.strerror}")
        try:
            status = process.wait(timeout=time_limit)
        except subprocess.TimeoutExpired:
            return outcome(None, f"not done after {time_limit:.0f} s; its last line: {last_line(err)}")
        finally:
            _end_group(process)
        if status != 0:
            return outcome(None, f"ended with status {status}: {last_line(err)}")
        figures = last_object(out)
        return outcome(figures, None if figures is not None else f"printed no figures; its last line: {last_line(err)}")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started: an engine's own processes would slow the next contender."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(file: IO[bytes]) -> str:
    """The last line of a file that says something."""
    lines = [line.strip() for line in _lines(file) if line.strip()]
    return lines[-1][:LONGEST_REASON] if lines else "it printed nothing"


def last_object(file: IO[bytes]) -> dict[str, Any] | None:
    """The last line that is a JSON object: engines print other things too."""
    for line in reversed(_lines(file)):
        if line.startswith("{"):
            with suppress(ValueError):
                value: dict[str, Any] = json.loads(line)
                return value
    return None


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()
