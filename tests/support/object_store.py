"""A real server of S3's API on a port of this machine, that tests start, stop and kill."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.waiting import until

PROGRAM = "moto_server"


class ObjectStore:
    """A server that keeps objects in memory, with one bucket.

    Its program has requirements that go against ours, so that it comes from an environment of its own.

    Attributes:
        endpoint: its URL.
        url: as `--kv-store` takes it.
    """

    bucket = "kept"

    def __init__(self, folder: Path) -> None:
        self._program = shutil.which(PROGRAM)
        if self._program is None:
            if os.environ.get("CI"):
                pytest.fail(f"{PROGRAM} is not installed")
            pytest.skip(f"{PROGRAM} is not installed: pipx install 'moto[s3]' and inject flask and flask-cors")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._log = folder / "objects.log"
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.url = f"s3://{self.bucket}/some/prefix?endpoint={self.endpoint}&region=us-east-1"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Until it has its bucket."""
        assert self._program is not None and self._process is None
        with self._log.open("ab") as log:
            command = [self._program, "-H", "127.0.0.1", "-p", str(self._port)]
            # It is another Python's.
            surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=surroundings)
        until(self._answers)
        assert httpx.put(f"{self.endpoint}/{self.bucket}").status_code == 200

    def client(self) -> Any:
        """A client of the bucket."""
        from obstore.store import S3Store

        keys = {"access_key_id": "id", "secret_access_key": "key", "region": "us-east-1"}
        return S3Store(self.bucket, endpoint=self.endpoint, client_options={"allow_http": True}, **keys)

    def kill(self) -> None:
        """As the kernel does, without a word."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """It answers nothing until it is killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """Where it still runs."""
        if self._process is not None:
            self.kill()

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self._port)).close()
        except OSError:
            return False
        return True
