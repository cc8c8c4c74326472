"""Databases for tests: files of SQLite, and those of one PostgreSQL server that a test process starts."""

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.database.connection import Database
from support.pooler import Pooler
from support.postgres import PostgresServer

KINDS = ("sqlite", "postgresql")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a process."""
    # A socket's path is at most 107 bytes long.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        server = PostgresServer(folder)
        with contextlib.closing(server):
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pooled_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database of the server, behind a pooler that gives each transaction any connection."""
    folder = Path(tempfile.mkdtemp(prefix="pb"))
    try:
        with contextlib.closing(Pooler(folder, postgres)) as pooler:
            yield pooler.url_of(named_database(postgres))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def named_database(server: PostgresServer) -> str:
    """The URL of an empty database of a server."""
    name = f"test_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    return server.url.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tenants.sqlite'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return named_database(server)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """With the tables of this version."""
    opened = Database.open(database_url)
    opened.upgrade()
    yield opened
    opened.close()
