"""Starts `penstock serve` for a benchmark and ends it."""

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

HOST = "127.0.0.1"
# The command of the interpreter that runs the benchmark, whatever is first on the path.
PENSTOCK = (sys.executable, "-c", "from penstock.cli.main import main; main()")


@dataclass(frozen=True)
class Server:
    """A server that was launched at `launched` (time.monotonic, in seconds)."""

    port: int
    launched: float
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET request."""
        with closing(http.client.HTTPConnection(HOST, self.port, timeout=30)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        _, text = self.get("/metrics")
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
        if not values:
            raise SystemExit(f"The server has no metric {name}.")
        return sum(map(float, values))

    def wait_until_ready(self, timeout: float = 300.0, path: str = "/health/ready") -> None:
        """Return once requests can be served, which a path says."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"The server ended with status {self.process.returncode}; its output is above.")
            try:
                if self.get(path)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise SystemExit(f"The server was not ready after {timeout:.0f} s.")


def free_port() -> int:
    """A port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def serving(model: str, options: Sequence[str] = ()) -> AbstractContextManager[Server]:
    """Run `penstock serve MODEL OPTIONS…` on a free port of the loopback interface."""
    return running("serve", model, *options)


@contextmanager
def running(name: str, *options: str) -> Iterator[Server]:
    """Run a command of `penstock` that serves, on a free port of the loopback interface."""
    port = free_port()
    command = [*PENSTOCK, name, "--host", HOST, "--port", str(port), *options]
    launched = time.monotonic()
    # What it prints belongs to the user, but not into the table.
    process = subprocess.Popen(command, stdout=sys.stderr.fileno())
    try:
        yield Server(port, launched, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
