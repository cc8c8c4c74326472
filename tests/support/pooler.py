"""A real PgBouncer before a PostgreSQL server, on a socket in a folder."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from support.postgres import PostgresServer
from support.waiting import until

_PORT = 6432


class Pooler:
    """Each transaction gets one of two connections to the server; what a client sets for longer is another's."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            if os.environ.get("CI"):
                pytest.fail("PgBouncer is not installed")
            pytest.skip("PgBouncer is not installed")
        self._folder, self._server = folder, server
        settings = {
            "unix_socket_dir": folder,
            "listen_port": _PORT,
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": 2,
        }
        lines = ["[databases]", f"* = host={server.folder} user={server.user}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        file = folder / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        if os.getuid() == 0:
            shutil.chown(folder, server.user)
            shutil.chown(file, server.user)
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen([program, str(file)], stdout=log, stderr=log, **server.as_user)
        until(self._answers)

    def url_of(self, url: str) -> str:
        """The way to a database of the server through here."""
        return url.replace(f"host={self._server.folder}", f"host={self._folder}&port={_PORT}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url_of(self._server.url)):
            return True
        return False
