"""Traces which functions of Penstock a request passes from HTTP to its first token, and a later token on its way back.

    python scripts/token_path.py [MODEL] [--list] [--requests 5] [-- OPTIONS OF SERVE]

A server is started with the bundled model, and both of its processes are traced while it answers one request at a time.
A function counts for the first token if it is called between the request and that token in each request, and for a
later token if it is called between most pairs of tokens; so what else goes on does not count. Printed are the numbers
of functions by room, and of calls, in which each resumption of a coroutine is one.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Runs in each process of the server: a line for each function that is new, and one for each call while the first byte
# of the file "on" is not 0.
TRACER = """
import mmap, os, sys, threading, time

_folder = os.environ["PENSTOCK_TOKEN_PATH"]
_file = os.open(os.path.join(_folder, f"{os.getpid()}.calls"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with open(os.path.join(_folder, "on"), "r+b") as _flag:
    _on = mmap.mmap(_flag.fileno(), 1)
_numbers = {}

def _note(frame, event, _argument):
    if event != "call" or not _on[0]:
        return
    code = frame.f_code
    number = _numbers.get(code)
    if number is None:
        at = code.co_filename.rfind("/penstock/")
        number = _numbers[code] = len(_numbers) if at >= 0 and code.co_name[0] != "<" else -1
        if number >= 0:
            line = f"f {number} {code.co_filename[at + 10:]} {code.co_qualname}\\n"
            os.write(_file, line.encode())
    if number >= 0:
        os.write(_file, b"c %d %d\\n" % (number, time.monotonic_ns()))

threading.setprofile(_note)
sys.setprofile(_note)
"""
TOKENS = 12


class Function(NamedTuple):
    """A function of ours, in the process that calls it."""

    process: str
    file: str
    name: str

    @property
    def room(self) -> str:
        """The package that it is in."""
        return self.file.split("/")[0] if "/" in self.file else "llm"


class Calls:
    """The calls of all processes, in the order of time."""

    def __init__(self, folder: Path) -> None:
        found: list[tuple[int, Function]] = []
        for path in sorted(folder.glob("*.calls")):
            functions: dict[str, Function] = {}
            for line in path.read_text().splitlines():
                kind, number, *rest = line.split(" ")
                if kind == "f":
                    functions[number] = Function(path.stem, rest[0], rest[1])
                else:
                    found.append((int(rest[0]), functions[number]))
        found.sort(key=lambda call: call[0])
        self._times = [at for at, _ in found]
        self._functions = [function for _, function in found]

    def between(self, first: int, last: int) -> Counter[Function]:
        """How often each function was called from one time to another, in nanoseconds on the monotonic clock."""
        return Counter(self._functions[bisect_left(self._times, first) : bisect_left(self._times, last)])


def common(windows: Sequence[Counter[Function]], share: float) -> dict[Function, float]:
    """The functions that are called in at least this share of the windows, with the mean of their calls."""
    seen = Counter(function for window in windows for function in window)
    return {
        function: sum(window[function] for window in windows) / len(windows)
        for function, count in seen.items()
        if count >= share * len(windows)
    }


def ask(port: int, model: str) -> list[int]:
    """Send a request; the times at which it was sent and at which each of its tokens came."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a haiku about rain."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.connect()
        times = [time.monotonic_ns()]
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(answer.read().decode())
        for line in answer:
            if line.startswith(b'data: {"id"'):
                times.append(time.monotonic_ns())
    return times


@contextlib.contextmanager
def serving(model: str, options: Sequence[str], folder: Path) -> Iterator[int]:
    """A traced server; yields its port."""
    (folder / "sitecustomize.py").write_text(TRACER)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path, "PENSTOCK_TOKEN_PATH": str(folder)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    start = [sys.executable, "-c", "from penstock.cli.main import main; main()", "serve", model, "--port", str(port)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*start, *options], env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not is_ready(port):
                if server.poll() is not None:
                    raise SystemExit((folder / "log").read_text())
                time.sleep(0.1)
            yield port
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def is_ready(port: int) -> bool:
    """Whether a server that is there can serve requests."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False


def trace(model: str, options: Sequence[str], requests: int) -> tuple[dict[Function, float], dict[Function, float]]:
    """What a request passes to its first token, and a later token."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "on").write_bytes(b"\0")
        with (
            (folder / "on").open("r+b") as file,
            mmap.mmap(file.fileno(), 1) as tracing,
            serving(model, options, folder) as port,
        ):
            # What is made ready once is not a part of each request's way.
            for _ in range(2):
                ask(port, model)
            tracing[0] = 1
            answers = [ask(port, model) for _ in range(requests)]
            tracing[0] = 0
        calls = Calls(folder)
    first = [calls.between(times[0], times[1]) for times in answers]
    # The last event says how the answer ended.
    pairs = [pair for times in answers for pair in zip(times[1:-2], times[2:-1], strict=True)]
    return common(first, 1.0), common([calls.between(*pair) for pair in pairs], 0.5)


def tell(title: str, functions: dict[Function, float], *, each: bool) -> None:
    """Print how many functions there are in each room, and how often they are called."""
    print(f"{title}: {len(functions)} functions, {sum(functions.values()):.0f} calls")
    rooms: dict[str, dict[Function, float]] = {}
    for function, count in functions.items():
        rooms.setdefault(function.room, {})[function] = count
    for room, members in sorted(rooms.items(), key=lambda item: -len(item[1])):
        print(f"  {room:<14} {len(members):>4} functions {sum(members.values()):>7.1f} calls")
        for function in sorted(members) if each else ():
            print(f"      {function.file}: {function.name} ({members[function]:.1f})")


def main() -> None:
    """Trace both, and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="haiku")
    parser.add_argument("--list", action="store_true", help="print each function")
    parser.add_argument("--requests", type=int, default=5, help="requests that are traced (default 5)")
    parser.add_argument("options", nargs="*", help="of penstock serve, behind --")
    asked = parser.parse_args()
    first, later = trace(asked.model, asked.options or ["--speculative", "off"], asked.requests)
    tell("from a request to its first token", first, each=asked.list)
    tell("from a token to the next", later, each=asked.list)


if __name__ == "__main__":
    main()
