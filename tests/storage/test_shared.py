"""Several servers with one database: what one keeps, all have."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from penstock.core.errors import ConfigurationError
from penstock.database.tables import file_parts, incoming
from penstock.storage.condition import StorageCondition
from penstock.storage.quotas import StorageQuota
from penstock.storage.store import Store
from penstock.text.tokenizer import Tokenizer
from support.databases import named_database
from support.postgres import PostgresServer
from support.stored_server import StoredServer, line, serving_shared
from support.waiting import PATIENCE, until

MEGABYTE = 1 << 20


@contextlib.contextmanager
def both(url: str, tokenizer: Tokenizer | None = None, **options: Any) -> Iterator[tuple[StoredServer, StoredServer]]:
    with serving_shared(url, tokenizer, **options) as one, serving_shared(url, tokenizer, **options) as two:
        yield one, two


def count(server: StoredServer, table: Any) -> int:
    query = select(func.count()).select_from(table)
    return int(server.store.files._database.wait(lambda connection: connection.execute(query).scalar_one()))


def content(server: StoredServer, file_id: str) -> bytes:
    answer = server.http.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("size", [0, 1, MEGABYTE, 3 * MEGABYTE + 5])
def test_a_file_is_at_all_of_them(database_url: str, size: int) -> None:
    contents = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with both(database_url) as (one, two):
        assert one.store.id == two.store.id
        file = one.upload(contents)
        assert file["bytes"] == size and content(two, file["id"]) == contents
        assert two.http.get("/v1/files").json()["data"] == [file]
        assert count(one, incoming) == 0 and count(one, file_parts) > 0
        assert two.http.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
        assert one.http.get(f"/v1/files/{file['id']}").status_code == 404
        assert count(one, file_parts) == 0


def test_what_is_uploaded_in_part_leaves_nothing(database_url: str) -> None:
    def half() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 3 * MEGABYTE
        raise InterruptedError

    with serving_shared(database_url) as server:
        with pytest.raises(InterruptedError):
            headers = {"content-type": "multipart/form-data; boundary=b"}
            httpx.post(f"{server.url}/v1/files", content=half(), headers=headers)
        until(lambda: not server.store.files.incoming.total())
        until(lambda: count(server, incoming) == count(server, file_parts) == 0)


def test_a_reader_of_a_file_that_is_deleted_is_cut_off(database_url: str) -> None:
    with both(database_url) as (one, two):
        file_id = one.upload(b"x" * 24 * MEGABYTE)["id"]
        path = f"{one.url}/v1/files/{file_id}/content"
        with pytest.raises(httpx.RemoteProtocolError), httpx.stream("GET", path) as read:
            pieces = read.iter_raw()
            next(pieces)
            assert two.http.delete(f"/v1/files/{file_id}").json()["deleted"] is True
            for _ in pieces:
                pass


def test_names_have_no_character_that_a_database_does_not_take(database_url: str) -> None:
    with serving_shared(database_url) as server:
        files = {"file": ("a\0b", b"x")}
        answer = server.http.post("/v1/files", files=files, data={"purpose": "batch"})
        assert answer.status_code == 200 and "\0" not in answer.json()["filename"] or answer.status_code == 400
        assert server.http.get("/v1/files/a%00b").status_code == 404
        assert server.http.get("/v1/batches/a%00b").status_code == 404


def test_they_have_one_quota(database_url: str) -> None:
    with both(database_url, limits=StorageQuota(files=3, total_bytes=1000)) as (one, two):
        one.upload(b"x" * 400)
        two.upload(b"x" * 400)
        refused = one.http.post("/v1/files", files={"file": ("a", b"x" * 300)}, data={"purpose": "batch"})
        assert refused.status_code == 413 and refused.json()["error"]["code"] == "storage_limit_reached"
        assert count(one, incoming) == 0
        two.upload(b"x" * 100)
        refused = one.http.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch"})
        assert refused.status_code == 413


def test_a_conversation_goes_on_at_another(database_url: str, tokenizer: Tokenizer) -> None:
    def respond(server: StoredServer, **fields: object) -> dict[str, Any]:
        answer = server.http.post("/v1/responses", json={"input": "hi", **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    with both(database_url, tokenizer) as (one, two):
        first = respond(one)
        until(lambda: not one.store.responses.waiting)
        second = respond(two, previous_response_id=first["id"])
        until(lambda: not two.store.responses.waiting)
        third = respond(one, previous_response_id=second["id"])
        assert third["previous_response_id"] == second["id"]
        assert two.http.get(f"/v1/responses/{first['id']}").json() == first
        items = one.http.get(f"/v1/responses/{second['id']}/input_items").json()["data"]
        assert [item["type"] for item in items] == ["message"]
        assert two.http.delete(f"/v1/responses/{first['id']}").json()["deleted"] is True
        lost = one.http.post("/v1/responses", json={"input": "hi", "previous_response_id": second["id"]})
        assert lost.status_code == 400 and lost.json()["error"]["code"] == "previous_response_not_found"


def test_a_batch_goes_on_at_another_when_its_server_ends(database_url: str) -> None:
    """One server has it at a time, and leaves it when it ends: at once, not when its time is over."""
    lines = 40
    holds = threading.Event()

    async def hold(call: Any) -> None:
        if sum(len(server.engine.calls) for server in servers) >= 20:
            holds.set()
            await call.closed.wait()

    ends = [contextlib.ExitStack(), contextlib.ExitStack()]
    with ends[0], ends[1]:
        servers = [end.enter_context(serving_shared(database_url)) for end in ends]
        for server in servers:
            server.engine.before = hold
        file_id = servers[0].upload(b"".join(line(f"n{n}", prompt=[n], max_tokens=2) for n in range(lines)))["id"]
        batch_id = servers[0].create(file_id)["id"]
        assert holds.wait(PATIENCE)
        # The one that looked first has it.
        first = next(number for number, server in enumerate(servers) if server.engine.calls)
        other = servers[1 - first]
        done = other.batch(batch_id)["request_counts"]["completed"]
        assert other.batch(batch_id)["status"] == "in_progress" and not other.engine.calls
        other.engine.before = None
        ends[first].close()
        batch = other.wait(batch_id)
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": lines, "completed": lines, "failed": 0}
        assert [each["custom_id"] for each in other.lines(batch["output_file_id"])] == [f"n{n}" for n in range(lines)]
        assert len(other.engine.calls) <= lines - done


def test_a_batch_is_cancelled_at_another(database_url: str) -> None:
    async def hold(call: Any) -> None:
        await call.closed.wait()

    with both(database_url) as servers:
        for server in servers:
            server.engine.before = hold
        batch_id = servers[0].create(servers[0].upload(line("a"))["id"])["id"]
        until(lambda: any(server.engine.calls for server in servers))
        other = next(server for server in servers if not server.engine.calls)
        assert other.http.post(f"/v1/batches/{batch_id}/cancel").json()["status"] == "cancelling"
        assert other.wait(batch_id)["status"] == "cancelled" and not other.engine.calls


def test_a_database_that_goes_away_is_told_and_nothing_is_lost(postgres: PostgresServer, tokenizer: Tokenizer) -> None:
    url = named_database(postgres)
    with serving_shared(url, tokenizer, condition=StorageCondition(0.02, 0.1)) as server:
        goes_on = threading.Event()

        async def hold(call: Any) -> None:
            await asyncio.to_thread(goes_on.wait, PATIENCE)

        def respond(**fields: object) -> httpx.Response:
            return server.http.post("/v1/responses", json={"input": "hi", **fields})

        first = respond().json()
        until(lambda: not server.store.responses.waiting)
        server.engine.before = hold
        with ThreadPoolExecutor(1) as beside:
            under_way = beside.submit(lambda: respond(store=True).json())
            until(lambda: len(server.engine.calls) == 2)
            postgres.kill()
            goes_on.set()
            promised = under_way.result()
        try:
            # What was promised before is kept in memory.
            until(lambda: server.http.get("/health/ready").json()["storage"] == "failing")
            assert list(server.store.responses.waiting) == [promised["id"]]
            refused = respond(previous_response_id=first["id"])
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "storage_away"
            assert "does not answer" in refused.json()["error"]["message"] and "postgres@" not in refused.text
            assert respond(store=True).status_code == 503
            assert respond().json()["store"] is False
        finally:
            postgres.start()
        until(lambda: server.http.get("/health/ready").json()["storage"] == "working")
        until(lambda: not server.store.responses.waiting)
        for response in (first, promised):
            assert respond(previous_response_id=response["id"]).status_code == 200


def test_a_batch_goes_on_when_its_database_is_back(postgres: PostgresServer) -> None:
    """Results wait in memory meanwhile, and no line is computed twice."""
    url, lines = named_database(postgres), 60
    halfway = threading.Event()

    async def note(call: Any) -> None:
        if len(server.engine.calls) >= lines // 2:
            halfway.set()

    with serving_shared(url, condition=StorageCondition(0.02, 0.1)) as server:
        server.engine.before = note
        file_id = server.upload(b"".join(line(f"n{n}", prompt=[n], max_tokens=2) for n in range(lines)))["id"]
        batch_id = server.create(file_id)["id"]
        assert halfway.wait(PATIENCE)
        postgres.kill()
        try:
            until(lambda: server.store.condition.failure is not None)
        finally:
            postgres.start()
        until(lambda: server.http.get(f"/v1/batches/{batch_id}").json().get("status") == "completed")
        batch = server.batch(batch_id)
        assert batch["request_counts"] == {"total": lines, "completed": lines, "failed": 0}
        assert [each["custom_id"] for each in server.lines(batch["output_file_id"])] == [f"n{n}" for n in range(lines)]
        assert sorted(call.prompt[0] for call in server.engine.calls) == list(range(lines))


def test_what_an_upload_has_left_goes_after_an_hour(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with both(database_url) as (one, two):
        for each in (one, two):
            contents = each.store.files._contents
            contents.begin(f"file-of-{each.url}").write(b"x")
        assert count(one, incoming) == 2
        one.store.files._contents.give_up()
        assert count(one, incoming) == count(one, file_parts) == 2
        monkeypatch.setattr("penstock.storage.contents.clock", lambda _: time.time() + 3601)
        one.store.files._contents.give_up()
        assert count(one, incoming) == count(one, file_parts) == 0


def test_one_that_does_not_answer_at_the_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used|does not answer"):
        Store.share(f"postgresql://me:secret@/name?host={tmp_path}", "model m")
