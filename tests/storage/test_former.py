"""What servers of former versions have kept goes on, with all its rows."""

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path

import httpx
import pytest

from penstock.access.keys import Keyring, entry, parse_keys
from penstock.core.errors import ConfigurationError
from penstock.storage import former
from penstock.storage.store import Store
from support.former_data import first_version, last_version
from support.stored_server import line, serving_stored

SECRETS = {name: f"penstock-the-secret-of-{name}" for name in ("alice", "bob")}
OLD = ("/v1/files/file-old", "/v1/files/file-old/content", "/v1/batches/batch_old", "/v1/responses/resp_old")
LINES = 30


def keyring() -> Keyring:
    return Keyring(parse_keys("".join(entry(*each) for each in SECRETS.items()).encode(), Path("keys.toml")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory of the last version before these."""
    data = tmp_path / "data"
    data.mkdir()
    contents = b"".join(line(f"n{n}", prompt=[n], max_tokens=2) for n in range(LINES))
    last_version(data, contents, done=10)
    return data


def rows(path: Path, table: str, columns: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2").fetchall()


KEPT = (
    ("files", "files", "files", "sequence, id, owner, purpose, filename, bytes, created_at, expires_at"),
    (
        *("files", "batches", "batches"),
        "sequence, id, owner, status, input_file_id, created_at, completed, failed, result_bytes, record",
    ),
    ("files", "results", "batch_results", "batch, line, ok, output"),
    ("responses", "responses", "responses", "sequence, id, owner, previous, used_at, bytes, input, response"),
    ("responses", "response_items", "response_items", "owner, id, response_sequence"),
)


def test_every_row_goes_on_and_no_number_is_given_twice(folder: Path) -> None:
    before = [rows(folder / f"{file}.sqlite", old, columns) for file, old, _, columns in KEPT]
    assert [len(each) for each in before] == [1, 1, 10, 4, 8]
    Store.open(folder).close()
    assert [rows(folder / f"{file}.sqlite", new, columns) for file, _, new, columns in KEPT] == before
    assert rows(folder / "responses.sqlite", "response_totals", "owner, responses, bytes") == [
        ("alice", 3, 300),
        ("bob", 1, 100),
    ]
    numbers = dict(rows(folder / "files.sqlite", "sqlite_sequence", "name, seq"))
    assert numbers == {"files": 2, "batches": 1}
    assert dict(rows(folder / "responses.sqlite", "sqlite_sequence", "name, seq")) == {"responses": 5}
    left = [name for name, _ in rows(folder / "files.sqlite", "sqlite_schema", "name, type")]
    assert not [name for name in left if "former" in name or name == "results"]


def test_a_batch_and_a_conversation_go_on(folder: Path) -> None:
    with serving_stored(folder, keys=keyring()) as server:
        server.http.headers["x-api-key"] = SECRETS["alice"]
        batch = server.wait("batch_half")
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        output = server.http.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
        # What was done is as it was, and was not computed again.
        assert output[:10] == [str(number) for number in range(1, 11)]
        assert sorted(call.prompt[0] for call in server.engine.calls) == list(range(10, LINES))
    store = Store.open(folder)

    async def conversation() -> list[str]:
        return [item["id"] for turn in await store.responses.conversation("c", "alice") for item in turn.items()]

    with contextlib.closing(store):
        assert asyncio.run(conversation()) == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]


def test_what_had_no_owner_is_of_the_server_without_keys(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    first_version(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    with serving_stored(copy, keys=keyring()) as server:
        server.http.headers["x-api-key"] = SECRETS["alice"]
        assert [server.http.get(path).status_code for path in OLD] == [404] * 4
        assert server.http.get("/v1/files").json()["data"] == [] == server.http.get("/v1/batches").json()["data"]
    for where in (copy, folder):
        with serving_stored(where) as server:
            # The answer is less than the API says of responses, so no client that looks at that reads it.
            assert [httpx.get(server.url + path).status_code for path in OLD] == [200] * 4


def test_one_that_is_cut_off_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [rows(folder / f"{file}.sqlite", old, columns) for file, old, _, columns in KEPT]

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cut, pytest.raises(KeyboardInterrupt):
        cut.setattr(former, "_take_over", fails)
        Store.open(folder)
    assert [rows(folder / f"{file}.sqlite", old, columns) for file, old, _, columns in KEPT] == before
    Store.open(folder).close()
    assert [rows(folder / f"{file}.sqlite", new, columns) for file, _, new, columns in KEPT] == before


def test_one_of_a_version_that_is_not_known_is_told(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "files.sqlite", isolation_level=None)) as database:
        database.execute("PRAGMA user_version = 3")
    with pytest.raises(ConfigurationError, match="newer Penstock.*version is 3, this one knows 2"):
        Store.open(folder)


def test_it_is_taken_over_once(folder: Path) -> None:
    states = []
    for _ in range(2):
        Store.open(folder).close()
        states.append([rows(folder / f"{name}.sqlite", "state", "name, value") for name in ("files", "responses")])
    assert states[0] == states[1]
    assert [rows(folder / f"{name}.sqlite", "pragma_user_version", "1, *") for name in ("files", "responses")] == [
        [(1, former.TAKEN_OVER)]
    ] * 2
