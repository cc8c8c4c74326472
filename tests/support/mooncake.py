"""A real cluster of Mooncake Store on this machine: a master, and a process that lends it memory."""

import importlib.util
import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from penstock.runtime.mooncake_client import MooncakeClient
from penstock.runtime.mooncake_process import GET, REPLACE, Setup
from support.http_server import free_port
from support.waiting import SELDOM, until

# Of a value, at most.
_MOST = 16 << 20
# However slow this machine is, no client is given up, and nothing is evicted while it is read.
_PATIENT = ("--client_ttl=3600", "--default_kv_lease_ttl=1h")
# What is lent.
LENT = 256 << 20


class Mooncake:
    """One that can go away.

    Attributes:
        url: as `--kv-store` takes it.
        address: of the master.
        metrics_port: of the master's HTTP server.
        master: its process, while it runs.
        memory: the process that lends some, while it runs.
    """

    def __init__(self, folder: Path, *settings: str, lent: int = LENT) -> None:
        """`settings` are those of the master, and `lent` bytes its memory; 0: none."""
        self._programs = programs()
        self._folder, self._settings, self._lent = folder, settings, lent
        self._ports = [free_port() for _ in range(3)]
        self.metrics_port = self._ports[1]
        self.address = f"127.0.0.1:{self._ports[0]}"
        self.url = f"mooncake://{self.address}?metrics_port={self.metrics_port}"
        self.master: subprocess.Popen[bytes] | None = None
        self.memory: subprocess.Popen[bytes] | None = None
        self._client = MooncakeClient(Setup("127.0.0.1", self._ports[0], "P2PHANDSHAKE", "tcp", "", 0, 4 * _MOST))
        self.start()

    def start(self) -> None:
        """What does not run, until the master has its memory."""
        rpc, metrics, lending = map(str, self._ports)
        if self.master is None:
            here = ("--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1")
            ports = (f"--rpc_port={rpc}", f"--metrics_port={metrics}")
            self.master = self._run("mooncake_master", *ports, *here, *_PATIENT, *self._settings)
            until(lambda: self.told("role") is not None, pause=SELDOM)
        if self.memory is None and self._lent:
            clients = (f"--master_server_address={self.address}", "--metadata_server=P2PHANDSHAKE", "--protocol=tcp")
            size = f"--global_segment_size={self._lent}"
            self.memory = self._run("mooncake_client", "--host=127.0.0.1", f"--port={lending}", size, *clients)
            until(lambda: self.told("get_all_segments"), pause=SELDOM)

    def told(self, path: str) -> str | None:
        """What the master tells by HTTP; None where it does not answer."""
        running = (each for each in (self.master, self.memory) if each is not None)
        assert all(each.poll() is None for each in running), self._log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/{path}") as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def values(self) -> dict[str, bytes]:
        keys = (self.told("get_all_keys") or "").split()
        values = {key: self._client.call(GET, key, _MOST) for key in keys}
        return {key: value for key, value in values.items() if value is not None}

    def put(self, name: str, value: bytes) -> None:
        # It takes no value of 0 bytes.
        content = value or b"\0"
        self._client.call(REPLACE, name, len(content), content)

    def kill(self) -> None:
        """The master, and the memory with all that it had."""
        self.kill_master()
        self.kill_memory()

    def kill_master(self) -> None:
        """As the kernel does."""
        self.master = _killed(self.master)

    def kill_memory(self) -> None:
        """As the kernel does."""
        self.memory = _killed(self.memory)

    def stop(self) -> None:
        """The master answers nothing until it is killed."""
        assert self.master is not None
        self.master.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """Where it still runs."""
        self._client.close()
        self.kill()

    @property
    def _log(self) -> Path:
        return self._folder / "mooncake.log"

    def _run(self, program: str, *options: str) -> "subprocess.Popen[bytes]":
        command = [self._programs / program, *options]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)


def _killed(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None:
        process.send_signal(signal.SIGKILL)
        process.wait()


def programs() -> Path:
    """The folder of Mooncake's programs; skips the test where they are not installed or lack libraries."""
    found = importlib.util.find_spec("mooncake")
    lacking = "mooncake-transfer-engine-non-cuda is not installed"
    if found is not None:
        assert found.submodule_search_locations is not None
        folder = Path(next(iter(found.submodule_search_locations)))
        tried = subprocess.run([folder / "mooncake_master", "--version"], capture_output=True, text=True)
        if tried.returncode == 0:
            return folder
        lacking = tried.stderr.strip()
    if os.environ.get("CI"):
        pytest.fail(f"Mooncake cannot be run: {lacking}")
    pytest.skip(f"Mooncake cannot be run: {lacking}")
