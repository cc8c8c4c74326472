"""Runs the tests several times in a row beside processes that burn processors: their verdicts must not depend on load.

    python scripts/under_load.py --burners 4 --times 3 [--nice 19] [--log FILE] [arguments of pytest]

A line for each run, and the tests that failed in it, are printed and appended to the log; the output of each run is in
files beside it. Ends with status 1 where any run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A number of processes of one group that take all the time that they are given.
BURNER = """
import os, sys
os.nice(int(sys.argv[2]))
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0: break
while True: pass
"""
# What pytest's last line counts, such as "10675 passed", and what its summary names.
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
_FAILED = re.compile(r"^(?:FAILED|ERROR) \S+", re.MULTILINE)


@contextlib.contextmanager
def burning(count: int, niceness: int) -> Iterator[None]:
    """Have this number of processes take all the time that processors give them, until the block ends.

    All are in one session: a kernel that shares processors out among sessions gives it half, as it would where
    somebody else's work runs on the machine.
    """
    if not count:
        yield
        return
    burner = subprocess.Popen([sys.executable, "-c", BURNER, str(count), str(niceness)], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(burner.pid, signal.SIGKILL)
        burner.wait()


def run(command: list[str], niceness: int, output: Path) -> tuple[int, float]:
    """Run a command at a niceness, what it prints going to a file; its status and the seconds that it took."""
    began = time.monotonic()
    with output.open("wb") as file:
        niced = ["nice", "-n", str(niceness), *command] if niceness else command
        done = subprocess.run(niced, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    return done.returncode, time.monotonic() - began


def describe(number: int, times: int, status: int, seconds: float, printed: str) -> str:
    """A run in one line, and a line for each test that failed."""
    counts = ", ".join(f"{count} {what}" for count, what in _COUNT.findall(printed[-400:])) or "no result"
    verdict = "passed" if status == 0 else f"failed with status {status}"
    head = f"run {number} of {times} {verdict} after {seconds / 60:.1f} min: {counts}"
    return "\n".join([head, *(f"  {line}" for line in dict.fromkeys(_FAILED.findall(printed)))])


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burners", type=int, default=4, help="processes that burn processors")
    parser.add_argument("--times", type=int, default=3, help="runs in a row")
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        help="niceness of the tests and of the burners; beside burners that are not nice, tests would get a hundredth",
    )
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "under-load" / "log")
    options, tests = parser.parse_known_args(arguments)
    command = [sys.executable, "-m", "pytest", "-q", *tests] if tests else ["make", "test"]
    options.log.parent.mkdir(parents=True, exist_ok=True)
    failed = False
    with options.log.open("a") as log, burning(options.burners, options.nice):
        begun = time.strftime("%Y-%m-%d %H:%M:%S")
        head = f"{begun}: {' '.join(command)}, beside {options.burners} burners, niceness {options.nice}"
        print(head, file=log, flush=True)
        print(head, flush=True)
        for number in range(1, options.times + 1):
            output = options.log.with_name(f"{options.log.name}.{number}")
            status, seconds = run(command, options.nice, output)
            told = describe(number, options.times, status, seconds, output.read_text(errors="replace"))
            print(told, file=log, flush=True)
            print(told, flush=True)
            failed = failed or status != 0
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
