"""`penstock serve` in a process of its own, on a free port."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.http_server import free_port
from support.waiting import PATIENCE, SELDOM, until

_MAIN = "from penstock.cli.main import main; main()"


@dataclass(frozen=True)
class RunningServer:
    """Where it listens, and its process."""

    base: str
    process: "subprocess.Popen[bytes]"

    def wait_until_ready(self) -> None:
        """Until requests can be served; fails if the server ends before."""
        until(self._is_ready, lambda: "the server is not ready", pause=SELDOM)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, "the server ended while it started"
        try:
            with urllib.request.urlopen(self.base + "/health/ready", timeout=PATIENCE):
                return True
        except OSError:
            return False

    def get(self, path: str) -> str:
        """The body of an answer."""
        with urllib.request.urlopen(self.base + path, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def post(self, path: str, body: object) -> dict[str, object]:
        """The JSON answer to a JSON body."""
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def resident(self) -> int:
        """Bytes of memory that its process has."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]

    @contextlib.contextmanager
    def growth(self) -> Iterator[list[int]]:
        """How much more memory its process had at most than before the block, in a list that has it afterwards."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        before, grown = self.resident(), list[int]()
        yield grown
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        grown.append(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024 - before)  # type: ignore[index]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        text = self.get("/metrics")
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"there is no metric {name}"
        return sum(map(float, values))

    def wait_for(self, name: str, value: float) -> None:
        """Until a metric has a value."""
        until(lambda: self.metric(name) == value, lambda: f"{name} is {self.metric(name)} and not {value}")


@contextlib.contextmanager
def serving(
    model: Path | None, *options: str, log: Path | None = None, program: str | None = None
) -> Iterator[RunningServer]:
    """Serve `model`, or what is served without one, until the block ends, and see that the server ends in order.

    What it writes goes to `log`, and its data into a folder of its own, which only one server at a time can have.
    `program`: Python code that runs first, in the same process.
    """
    port = free_port()
    models = () if model is None else (str(model),)
    begin = ("-m", "penstock.cli.main") if program is None else ("-c", f"{program}\n{_MAIN}")
    command = [sys.executable, *begin, "serve", *models, "--port", str(port), *options]
    with tempfile.TemporaryDirectory() as data:
        with open(log or os.devnull, "wb") as out:
            environment = {**os.environ, "PENSTOCK_DATA": data}
            process = subprocess.Popen(command, stdout=None if log is None else out, stderr=out, env=environment)
        running = RunningServer(f"http://127.0.0.1:{port}", process)
        running.wait_until_ready()
        try:
            yield running
        finally:
            process.terminate()
            assert process.wait(timeout=PATIENCE) == 0
