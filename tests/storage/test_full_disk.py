"""A disk that is full or fails, under a server over HTTP: generation goes on, nothing acknowledged is lost."""

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection

from penstock.storage import contents as stored_contents
from penstock.storage.condition import StorageCondition
from penstock.text.tokenizer import Tokenizer
from support.small_disk import SmallDisk, small_disk
from support.stored_server import StoredServer, line, serving_stored
from support.waiting import PATIENCE, until

LINES = 200


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def impatient() -> StorageCondition:
    return StorageCondition(0.02, 0.1)


@contextlib.contextmanager
def serving(folder: Path, tokenizer: Tokenizer | None = None) -> Iterator[StoredServer]:
    with serving_stored(folder, tokenizer, condition=impatient()) as server:
        yield server


def storage(server: StoredServer) -> str:
    answer = server.http.get("/health/ready")
    assert answer.status_code == 200
    return str(answer.json()["storage"])


def try_upload(server: StoredServer, contents: bytes) -> httpx.Response:
    return server.http.post("/v1/files", files={"file": ("in.jsonl", contents)}, data={"purpose": "batch"})


def left(server: StoredServer) -> list[str]:
    return [path.name for path in (server.folder / "incoming").iterdir()]


def check_generates(server: StoredServer) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 4, "return_token_ids": True})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4


def test_uploads_are_refused_and_leave_nothing_until_there_is_room(disk: SmallDisk) -> None:
    with serving(disk.path / "data") as server:
        kept = server.upload(line("a") * 1000)
        assert storage(server) == "working"
        disk.fill()
        before = disk.used()
        for size in (10, 3_000_000):
            answer = try_upload(server, b"x" * size)
            assert answer.status_code == 507, answer.text
            error = answer.json()["error"]
            assert error["code"] == "storage_full" and "DELETE /v1/files/{id}" in error["message"]
        assert left(server) == [] and disk.used() <= before
        check_generates(server)
        # Readiness stays; that the disk is full can be seen.
        assert storage(server) == "full"
        metrics = server.http.get("/metrics").text
        assert "penstock_storage_failing 1.0" in metrics
        assert 'penstock_storage_failures_total{reason="full"}' in metrics
        assert server.http.get(f"/v1/files/{kept['id']}/content").content == line("a") * 1000
        disk.empty()
        until(lambda: storage(server) == "working")
        assert "penstock_storage_failing 0.0" in server.http.get("/metrics").text
        again = server.upload(b"y" * 100_000)
        assert server.http.get(f"/v1/files/{again['id']}/content").content == b"y" * 100_000


def test_a_look_at_a_full_disk_takes_none_of_the_room_that_is_left(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = stored_contents._write_all

    def noted(descriptor: int, contents: bytes) -> None:
        written.append(len(contents))
        write(descriptor, contents)

    with serving(disk.path / "data") as server:
        file = server.upload(b"x" * 100_000)
        disk.fill()
        assert server.http.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
        contents = server.store.files._contents
    # The server's own looks, which would be beside these, have ended.
    monkeypatch.setattr(stored_contents, "_write_all", noted)
    with pytest.raises(OSError) as failed:
        contents.probe()
    assert failed.value.errno == errno.ENOSPC and not written
    disk.empty()
    contents.probe()
    assert written


def test_deleting_makes_room_on_a_full_disk(disk: SmallDisk) -> None:
    with serving(disk.path / "data") as server:
        kept = [server.upload(b"x" * 100_000) for _ in range(3)]
        disk.fill()
        assert try_upload(server, b"x" * 100_000).status_code == 507
        for file in kept[:2]:
            assert server.http.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
        assert server.http.get(f"/v1/files/{kept[0]['id']}").status_code == 404
        server.upload(b"y" * 50_000)
        assert {each["id"] for each in server.http.get("/v1/files").json()["data"]} >= {kept[2]["id"]}


def test_a_batch_waits_for_room_and_computes_nothing_twice(disk: SmallDisk) -> None:
    with serving(disk.path / "data") as server:
        contents = b"".join(line(f"n{n}", prompt=[n % 200], max_tokens=4, return_token_ids=True) for n in range(LINES))
        file_id = server.upload(contents)["id"]

        def fill_after_some(call: Any) -> None:
            if len(server.engine.calls) >= 60 and not full:
                disk.fill()
                full.append(True)

        full: list[bool] = []
        server.engine.before = fill_after_some
        batch_id = server.create(file_id)["id"]
        # What was seen is what counts: a little room may be found again, and lost, before another look.
        looks: list[dict[str, Any]] = []

        def tells() -> bool:
            looks.append(server.batch(batch_id))
            return looks[-1]["status_details"] is not None

        until(tells)
        waiting = looks[-1]
        assert waiting["status"] == "in_progress" and "disk is full" in waiting["status_details"]
        assert waiting["request_counts"]["completed"] < LINES
        check_generates(server)
        # No more is begun than can be held: what was is done, and waits for room.
        until(lambda: all(call.closed.is_set() for call in server.engine.calls))
        failures = server.store.condition.failures
        looked = failures["full"]
        until(lambda: failures["full"] >= looked + 3)
        assert len(server.engine.calls) < LINES
        disk.empty()
        batch = server.wait(batch_id)
        assert batch["status"] == "completed" and batch["status_details"] is None
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert [each["custom_id"] for each in server.lines(batch["output_file_id"])] == [f"n{n}" for n in range(LINES)]
        # One call was made by the request above; every line was computed once.
        assert len(server.engine.calls) == LINES + 1


def test_responses_of_a_full_disk_are_in_memory_or_not_promised(disk: SmallDisk, tokenizer: Tokenizer) -> None:
    with serving(disk.path / "data", tokenizer) as server:

        def respond(**fields: object) -> httpx.Response:
            return server.http.post("/v1/responses", json={"input": "hi", **fields})

        first = respond().json()
        until(lambda: not server.store.responses.waiting)
        disk.fill()
        # Nobody knows yet that the disk is full: what was promised is kept in memory.
        promised = respond(store=True, previous_response_id=first["id"]).json()
        assert promised["store"] is True
        until(lambda: storage(server) == "full")
        assert server.http.get(f"/v1/responses/{promised['id']}").json()["id"] == promised["id"]
        refused = respond(store=True)
        assert refused.status_code == 507 and refused.json()["error"]["code"] == "storage_full"
        # Whoever has not asked for it is served, and going on needs no room.
        more = respond(previous_response_id=promised["id"]).json()
        assert more["status"] == "completed" and more["store"] is False
        disk.empty()
        until(lambda: storage(server) == "working")
        later = respond(previous_response_id=promised["id"]).json()
        assert later["store"] is True
        until(lambda: not server.store.responses.waiting)
    with serving(disk.path / "data", tokenizer) as server:
        for response in (first, promised, later):
            assert server.http.get(f"/v1/responses/{response['id']}").status_code == 200


def test_a_start_on_a_full_disk_has_what_was_kept(disk: SmallDisk) -> None:
    with serving(disk.path / "data") as server:
        file = server.upload(b"x" * 1000)
    disk.fill()
    with serving(disk.path / "data") as server:
        assert server.http.get(f"/v1/files/{file['id']}/content").content == b"x" * 1000
        assert try_upload(server, b"y").status_code == 507
        disk.empty()
        until(lambda: storage(server) == "working")
        server.upload(b"y")


def test_a_disk_that_becomes_read_only_is_told(disk: SmallDisk) -> None:
    with serving(disk.path / "data") as server:
        file = server.upload(b"x" * 1000)
        folder = server.folder / "incoming"
        # Descriptors that are open keep the whole disk from it; a folder of its own can be.
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
            answer = try_upload(server, b"y")
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "storage_failed"
            assert "Read-only file system" in answer.json()["error"]["message"]
            assert str(folder) not in answer.text
            assert storage(server) == "failing"
            check_generates(server)
            assert server.http.get(f"/v1/files/{file['id']}").status_code == 200
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        until(lambda: storage(server) == "working")
        server.upload(b"y")


def test_a_database_without_room_is_told_anywhere(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """As on a full disk, where none can be mounted."""

    def bound(connection: Connection, pages: int) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all()

    with serving(tmp_path, tokenizer) as server:
        database = server.store.files._database
        contents = b"".join(line(f"n{n}", prompt=[n % 200], return_token_ids=True) for n in range(LINES))
        file_id = server.upload(contents)["id"]
        database.wait(lambda connection: bound(connection, 1))
        batch_id = None
        for _ in range(50):
            answer = server.http.post(
                "/v1/batches",
                json={"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"},
            )
            if answer.status_code != 200:
                break
            batch_id = answer.json()["id"]
        assert answer.status_code == 507 and answer.json()["error"]["code"] == "storage_full"
        assert batch_id is not None
        check_generates(server)
        # What was accepted before is done after.
        database.wait(lambda connection: bound(connection, 2**30))
        for batch in server.http.get("/v1/batches?limit=100").json()["data"]:
            ended = server.wait(batch["id"])
            assert ended["status"] == "completed" and ended["request_counts"]["completed"] == LINES


# Files cannot grow beyond a size: a process of its own, since the limit is of the whole process.
PROGRAM = """
import json, os, resource, sys, tempfile
from pathlib import Path
from penstock.storage.condition import StorageCondition
from support.stored_server import serving_stored, line
folder = Path(sys.argv[1])
with serving_stored(folder, condition=StorageCondition(0.02, 0.1)) as server:
    kept = server.upload(b"x" * 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    answers = [server.http.post("/v1/files", files={"file": ("a", b"x" * size)}, data={"purpose": "batch"})
               for size in (3_000_000, 200_001)]
    left = os.listdir(folder / "incoming")
    content = len(server.http.get(f"/v1/files/{kept['id']}/content").content)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    after = len(server.http.get(f"/v1/files/{server.upload(b'y' * 300_000)['id']}/content").content)
print(json.dumps({"answers": [(a.status_code, a.json()["error"]["code"]) for a in answers], "left": left,
                  "content": content, "after": after}))
"""


def test_files_that_cannot_grow_leave_nothing(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "answers": [[507, "storage_full"]] * 2, "left": [], "content": 1000, "after": 300_000,
    }  # fmt: skip


def test_one_line_says_that_the_disk_fails_and_one_that_it_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as server:
        database = server.store.files._database
        server.upload(b"x")
        (pages,) = database.wait(lambda connection: connection.exec_driver_sql("PRAGMA page_count").one())
        folder = tmp_path / "incoming"
        folder.rename(tmp_path / "gone")
        for _ in range(20):
            assert try_upload(server, b"y").json()["error"]["code"] == "storage_failed"
        assert storage(server) == "failing"
        (tmp_path / "gone").rename(folder)
        until(lambda: storage(server) == "working")
        server.upload(b"y")
    told = [record.getMessage() for record in caplog.records if record.name == "penstock.server"]
    assert len([text for text in told if "until it works again" in text]) == 1
    assert len([text for text in told if "can be written again" in text]) == 1
