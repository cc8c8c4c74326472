"""A real PostgreSQL server, on a socket in a folder, that tests start, stop and kill."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from support.waiting import until

# Debian's packages put the server's programs where no path leads.
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
# What is committed is with the kernel, so that a kill of the server loses nothing of it.
_SETTINGS = ("fsync=off", "full_page_writes=off", "max_connections=40", "shared_buffers=16MB")


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, _FOLDERS)]))


class PostgresServer:
    """One that keeps what it has over a kill.

    Attributes:
        url: of its one database.
        folder: with its socket.
        user: as whom it runs, and who may do everything in it.
    """

    def __init__(self, folder: Path) -> None:
        server, initdb = _program("postgres"), _program("initdb")
        if server is None or initdb is None:
            if os.environ.get("CI"):
                pytest.fail("PostgreSQL's server is not installed")
            pytest.skip("PostgreSQL's server is not installed")
        self._server, self.folder = server, folder
        self._data = folder / "data"
        # It does not run as root.
        self.user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
            for above in folder.parents:
                with contextlib.suppress(PermissionError):
                    above.chmod(above.stat().st_mode | 0o011)
        arguments = [initdb, "-D", str(self._data), "-U", self.user, "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, cwd=folder, **self.as_user)
        self.url = f"postgresql://{self.user}@/postgres?host={folder}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def as_user(self) -> dict[str, str]:
        """Who starts a process beside it."""
        return {"user": self.user} if os.getuid() == 0 else {}

    def start(self) -> None:
        """Until it answers."""
        assert self._process is None
        arguments = [self._server, "-D", str(self._data), "-k", str(self.folder), "-c", "listen_addresses="]
        for each in _SETTINGS:
            arguments += ["-c", each]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=self.folder, **self.as_user)
        until(self._answers)

    def kill(self) -> None:
        """As an administrator does who is in a hurry: open connections end, and no child is left."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Where it still runs."""
        if self._process is not None:
            self.kill()

    def execute(self, statement: str) -> None:
        """As its administrator, by itself."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self.folder / "log").read_text()
        try:
            with psycopg.connect(self.url):
                return True
        except psycopg.OperationalError:
            return False
