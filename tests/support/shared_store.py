"""A real Valkey or Redis, on a socket in a folder, that tests start, stop and kill."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import redis

from support.waiting import until

PROGRAMS = ("valkey-server", "redis-server")


class SharedStore:
    """A server that keeps nothing on the disk.

    Attributes:
        url: of its socket.
    """

    def __init__(self, folder: Path) -> None:
        self._program = next((found for each in PROGRAMS if (found := shutil.which(each))), None)
        if self._program is None:
            if os.environ.get("CI"):
                pytest.fail("neither valkey-server nor redis-server is installed")
            pytest.skip("neither valkey-server nor redis-server is installed")
        # A socket's path is at most 107 bytes long.
        self._folder, self._socket = folder, folder / "s"
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Until it answers."""
        assert self._program is not None and self._process is None
        settings = ("--port", "0", "--unixsocket", str(self._socket), "--save", "", "--dir", str(self._folder))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([self._program, *settings], stdout=log, stderr=log)
        until(self._answers)

    def kill(self) -> None:
        """As the kernel does, without a word."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None
        self._socket.unlink(missing_ok=True)

    def close(self) -> None:
        """Where it still runs."""
        if self._process is not None:
            self.kill()

    def client(self) -> "redis.Redis":
        """A client that waits for answers."""
        return redis.Redis.from_url(self.url)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False
