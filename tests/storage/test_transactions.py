"""The transactions and the directory that hold a server's state."""

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select

from penstock.core.errors import ConfigurationError
from penstock.database.tables import state
from penstock.storage import former
from penstock.storage.condition import StorageCondition
from penstock.storage.directory import DataDirectory, choose_folder
from penstock.storage.errors import StorageFailed, StorageFull
from penstock.storage.store import Store
from penstock.storage.transactions import Transactions


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Transactions]:
    with (
        contextlib.closing(former.open_file(path, ())) as database,
        contextlib.closing(Transactions(database, StorageCondition(), "x")) as transactions,
    ):
        yield transactions


def names(transactions: Transactions) -> set[str]:
    return transactions.wait(lambda connection: set(connection.scalars(select(state.c.name)))) - {"revision", "store"}


def test_work_is_one_transaction_on_a_thread_of_its_own(tmp_path: Path) -> None:
    def add(connection: Connection) -> str:
        connection.execute(insert(state).values(name="a", value=1))
        return threading.current_thread().name

    def add_and_fail(connection: Connection) -> None:
        connection.execute(insert(state).values(name="b", value=1))
        raise ValueError

    async def main(transactions: Transactions) -> None:
        assert (await transactions.run(add)).startswith("x_")
        with pytest.raises(ValueError):
            await transactions.run(add_and_fail)
        with pytest.raises(StorageFailed):
            await transactions.run(add)

    with opened(tmp_path / "x.sqlite") as transactions:
        asyncio.run(main(transactions))
        assert names(transactions) == {"a"}
    with opened(tmp_path / "x.sqlite") as transactions:
        assert names(transactions) == {"a"}


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(ConfigurationError, match="cannot be used .file is not a database.; move it away"):
        former.open_file(tmp_path / "x.sqlite", ())
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        former.open_file(tmp_path / "nowhere" / "x.sqlite", ())


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "x.sqlite") as transactions:
        pages = transactions.wait(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar_one())
        transactions.wait(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all())
        with pytest.raises(StorageFull, match="delete files"):
            transactions.wait(lambda connection: connection.execute(insert(state).values(name="a" * 100_000, value=1)))
        assert names(transactions) == set()


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
