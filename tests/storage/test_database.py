"""The database and the directory that hold a server's state."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.storage.database import Database
from penstock.storage.directory import DataDirectory, choose_folder
from penstock.storage.errors import StorageFailed, StorageFull
from penstock.storage.store import Store

FIRST = (("CREATE TABLE things (name TEXT UNIQUE)",),)
SECOND = (*FIRST, ("ALTER TABLE things ADD COLUMN size INTEGER DEFAULT 7",))


def names(database: Database) -> list[str]:
    return database.run_at_start(lambda c: [name for (name,) in c.execute("SELECT name FROM things ORDER BY name")])


def test_work_is_one_transaction_on_a_thread_of_its_own(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "x.sqlite", FIRST)

    def add(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO things VALUES ('a')")
        return threading.current_thread().name

    def add_and_fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO things VALUES ('b')")
        raise ValueError

    async def main() -> None:
        assert (await database.run(add)).startswith("x_")
        with pytest.raises(ValueError):
            await database.run(add_and_fail)
        with pytest.raises(StorageFailed):
            await database.run(add)

    asyncio.run(main())
    assert names(database) == ["a"]
    database.close()
    again = Database.open(tmp_path / "x.sqlite", FIRST)
    assert names(again) == ["a"]
    again.close()


def test_migrations_and_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    database = Database.open(path, FIRST)
    database.run_at_start(lambda connection: connection.execute("INSERT INTO things VALUES ('a')").rowcount)
    database.close()
    database = Database.open(path, SECOND)
    assert database.run_at_start(lambda c: c.execute("SELECT * FROM things").fetchall()) == [("a", 7)]
    database.close()
    with pytest.raises(ConfigurationError, match="newer Penstock.*version is 2, this one knows 1"):
        Database.open(path, FIRST)


def test_a_migration_that_is_cut_off_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with pytest.raises(ConfigurationError):
        Database.open(path, (("CREATE TABLE things (name TEXT UNIQUE)", "NONSENSE"),))
    database = Database.open(path, FIRST)
    assert names(database) == []
    database.close()


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Database.open(tmp_path / "x.sqlite", FIRST)
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Database.open(tmp_path / "nowhere" / "x.sqlite", FIRST)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "x.sqlite", FIRST)
    (pages,) = database.run_at_start(lambda connection: connection.execute("PRAGMA page_count").fetchone())
    database.run_at_start(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall())
    with pytest.raises(StorageFull, match="delete files"):
        database.run_at_start(lambda c: c.execute("INSERT INTO things VALUES (?)", ("a" * 100_000,)).rowcount)
    assert names(database) == []
    database.close()


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    store = Store.open(folder)
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    assert {"files", "incoming", "lock", "files.sqlite", "files.sqlite-wal"} <= set(found)
    for path in [folder, *found.values()]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    store.close()


def test_one_server_has_a_directory_at_a_time(tmp_path: Path) -> None:
    program = "import sys\nfrom pathlib import Path\nfrom penstock.storage.directory import DataDirectory\n"
    program += "held = DataDirectory.open(Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(ConfigurationError, match=rf"in use by another server \(process {other.pid}\)"):
            DataDirectory.open(tmp_path)
        other.kill()
    directory = DataDirectory.open(tmp_path)
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    directory.close()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        DataDirectory.open(tmp_path / "file" / "data")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        DataDirectory.open(tmp_path / "file")


def test_what_a_server_that_was_cut_off_has_left_goes(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    (tmp_path / "incoming" / "file-1").write_text("half")
    (tmp_path / "files" / "file-2").write_text("no row knows it")
    Store.open(tmp_path).close()
    assert not [*(tmp_path / "incoming").iterdir(), *(tmp_path / "files").iterdir()]


def test_where_the_data_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", "/data")
    assert choose_folder(None, "haiku")[0] == Path("/data/haiku")
    other, reason = choose_folder(None, "org/model")
    assert other is not None and other.parent == Path("/data") and other.name.startswith("org-model-")
    assert reason.value == str(other)
    assert choose_folder(None, "org-model")[0] != other
    assert choose_folder(None, "..")[0] != Path("/data/..")
    assert choose_folder("/x", "haiku")[0] == Path("/x")
    assert choose_folder("off", "haiku")[0] is None
    with pytest.raises(ConfigurationError):
        choose_folder("", "haiku")
    monkeypatch.delenv("PENSTOCK_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert choose_folder(None, "haiku")[0] == Path("/xdg/penstock/haiku")
