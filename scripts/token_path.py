"""Traces which functions of Penstock a request passes from HTTP to its first token, and each later token.

    python scripts/token_path.py [MODEL] [--list] [--requests 5] [-- OPTIONS OF SERVE]

A server is started with the bundled model, and both of its processes are traced while it answers one request at a time.
On the way to the first token is what is called between each request and that token. What a later token passes is what
a long answer calls more often than a short one, divided by the tokens that it has more. Printed are the numbers of
functions by room, and for a later token those of calls, in which each resumption of a coroutine is one.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
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
# Tokens of a short answer, and of a long one.
SHORT, LONG = 8, 72
# What is called less often for a token is called for something else: a block of tokens, a second, a message that waits.
LEAST_CALLS = 0.25


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


def ask(port: int, model: str, tokens: int) -> tuple[int, int]:
    """Send a request for an answer of this length, and read it; when it was sent, and when its first token came."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a haiku about rain."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        sent, first = time.monotonic_ns(), 0
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(answer.read().decode())
        for line in answer:
            if not first and line.startswith(b"data: "):
                first = time.monotonic_ns()
    # What is done when an answer has ended is no part of the next request's way.
    time.sleep(0.2)
    return sent, first


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
    """How often each function is called on the way to the first token, at least once; and for each later token."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "on").write_bytes(b"\0")
        with (
            (folder / "on").open("r+b") as file,
            mmap.mmap(file.fileno(), 1) as tracing,
            serving(model, options, folder) as port,
        ):
            # What is made ready once is not a part of each request's way.
            for tokens in (LONG, SHORT):
                ask(port, model, tokens)
            tracing[0] = 1
            answers = [ask(port, model, tokens) for _ in range(requests) for tokens in (SHORT, LONG)]
            end, _ = ask(port, model, SHORT)
            tracing[0] = 0
        calls = Calls(folder)
    ways = [calls.between(sent, first) for sent, first in answers]
    times = [*(sent for sent, _ in answers), end]
    whole = [calls.between(sent, after) for sent, after in itertools.pairwise(times)]
    short, long = (sum(whole[place::2], Counter[Function]()) for place in (0, 1))
    later = {function: (long[function] - short[function]) / requests / (LONG - SHORT) for function in long}
    first = {function: 1.0 for function in ways[0] if all(function in way for way in ways)}
    return first, {function: count for function, count in later.items() if count >= LEAST_CALLS}


def tell(functions: dict[Function, float], *, calls: bool, each: bool) -> None:
    """Print how many functions there are in each room, and how often they are called."""
    rooms: dict[str, dict[Function, float]] = {}
    for function, count in functions.items():
        rooms.setdefault(function.room, {})[function] = count
    for room, members in sorted(rooms.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"  {room:<14} {len(members):>4} functions" + f" {sum(members.values()):>6.1f} calls" * calls)
        for function in sorted(members, key=lambda each: each[1:]) if each else ():
            print(f"      {function.file}: {function.name}" + f" ({members[function]:.1f})" * calls)


def main() -> None:
    """Trace both, and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="haiku")
    parser.add_argument("--list", action="store_true", help="print each function")
    parser.add_argument("--requests", type=int, default=5, help="requests that are traced (default 5)")
    parser.add_argument("options", nargs="*", help="of penstock serve, behind --")
    asked = parser.parse_args()
    first, later = trace(asked.model, asked.options or ["--speculative", "off"], asked.requests)
    print(f"from a request to its first token: {len(first)} functions")
    tell(first, calls=False, each=asked.list)
    print(f"for each later token: {len(later)} functions, {sum(later.values()):.0f} calls")
    tell(later, calls=True, each=asked.list)


if __name__ == "__main__":
    main()
