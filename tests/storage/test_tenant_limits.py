"""What each tenant may store: refused with the limit and what helps, and without disturbing another one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.access.keys import Keyring, entry, parse_keys
from penstock.access.tenants import Tenant
from penstock.storage.quotas import StorageQuota, share_of
from penstock.storage.responses import ResponseQuota
from support.stored_responses import response_store
from support.stored_server import StoredServer, line, serving_stored
from support.waiting import until

SECRETS = {name: f"penstock-the-secret-of-{name}" for name in ("alice", "bob", "carol", "dave", "erin")}
LIMITS = StorageQuota(total_bytes=100_000, files=20, unfinished_batches=12)


def keyring(**bytes_of: int) -> Keyring:
    text = "".join(entry(name, secret, max_stored_bytes=bytes_of.get(name)) for name, secret in SECRETS.items())
    return Keyring(parse_keys(text.encode(), Path("keys.toml")))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoredServer]:
    with serving_stored(tmp_path, limits=LIMITS, keys=keyring(alice=5_000)) as server:
        yield server


def be(server: StoredServer, name: str) -> None:
    server.http.headers["x-api-key"] = SECRETS[name]


def upload(server: StoredServer, contents: bytes) -> httpx.Response:
    return server.http.post("/v1/files", files={"file": ("in.jsonl", contents)}, data={"purpose": "batch"})


def create(server: StoredServer, file_id: str) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return server.http.post("/v1/batches", json=body)


def check_refused(answer: httpx.Response, status: int, code: str, *says: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    for text in says:
        assert text in error["message"]


def test_bytes_as_the_key_says(server: StoredServer) -> None:
    be(server, "alice")
    first = upload(server, b"x" * 4_000).json()
    refused = upload(server, b"x" * 2_000)
    check_refused(refused, 413, "storage_limit_reached", "This API key", "5000 bytes", "DELETE /v1/files/{id}")
    assert upload(server, b"x" * 1_000).status_code == 200
    check_refused(upload(server, b"x"), 413, "storage_limit_reached")
    be(server, "bob")
    assert upload(server, b"x" * 20_000).status_code == 200
    be(server, "alice")
    assert server.http.delete(f"/v1/files/{first['id']}").status_code == 200
    assert upload(server, b"x" * 4_000).status_code == 200


def test_a_share_where_the_key_says_nothing(server: StoredServer) -> None:
    be(server, "bob")
    check_refused(upload(server, b"x" * 25_001), 413, "storage_limit_reached", "25000 bytes")
    for _ in range(5):
        assert upload(server, b"x").status_code == 200
    check_refused(upload(server, b"x"), 413, "storage_limit_reached", "5 files")
    be(server, "carol")
    assert upload(server, b"x" * 25_000).status_code == 200


def test_shares_are_of_the_whole() -> None:
    shares = [share_of([Tenant(name=str(number)) for number in range(count)]) for count in (0, 1, 2, 4, 100)]
    assert shares == [1, 1, 0.5, 0.25, 0.25]
    # How many are behind a gateway is not known.
    assert share_of([Tenant(name="gateway", for_others=True)]) == 0.25
    assert StorageQuota(tenant_share=0.25, tenant_bytes={"a": 7}).of("a").bytes == 7
    assert StorageQuota(files=2, tenant_share=0.25).of("a").files == 1


def test_where_all_together_have_filled_the_server_nobody_is_blamed(server: StoredServer) -> None:
    for name in ("bob", "carol", "dave", "erin"):
        be(server, name)
        assert upload(server, b"x" * 25_000).status_code == 200
    be(server, "alice")
    check_refused(upload(server, b"x"), 507, "storage_full", "100000 bytes", "try again later")
    be(server, "bob")
    server.http.delete(f"/v1/files/{server.http.get('/v1/files').json()['data'][0]['id']}")
    be(server, "alice")
    assert upload(server, b"x").status_code == 200


def test_batches_that_have_not_ended(server: StoredServer) -> None:
    async def wait(call: object) -> None:
        while not released:
            await asyncio.sleep(0.005)

    released: list[bool] = []
    server.engine.before = wait
    be(server, "alice")
    file_id = upload(server, line("a")).json()["id"]
    batches = [create(server, file_id).json()["id"] for _ in range(3)]
    check_refused(create(server, file_id), 429, "too_many_batches", "3 of this API key's", "/cancel")
    be(server, "bob")
    others = [create(server, upload(server, line("b")).json()["id"])]
    assert others[0].status_code == 200
    released.append(True)
    server.wait(others[0].json()["id"])
    be(server, "alice")
    for batch in batches:
        assert server.wait(batch)["status"] == "completed"
    assert create(server, file_id).status_code == 200


def test_results_that_do_not_fit_end_their_own_batch_only(tmp_path: Path) -> None:
    contents = b"".join(line(f"n{n}") for n in range(150))
    assert len(contents) < 20_000
    with serving_stored(tmp_path, limits=StorageQuota(total_bytes=1_000_000), keys=keyring(alice=20_000)) as server:
        be(server, "alice")
        mine = create(server, upload(server, contents).json()["id"]).json()["id"]
        be(server, "bob")
        other = create(server, upload(server, contents).json()["id"]).json()["id"]
        assert server.wait(other)["request_counts"] == {"total": 150, "completed": 150, "failed": 0}
        be(server, "alice")
        batch = server.wait(mine)
        assert batch["status"] == "failed"
        (problem,) = batch["errors"]["data"]
        assert problem["code"] == "storage_limit_reached" and "20000 bytes" in problem["message"]
        # All that was computed is there.
        assert len(server.lines(batch["output_file_id"])) == batch["request_counts"]["completed"] > 0


def test_a_batch_whose_last_results_pass_the_limit_is_complete(server: StoredServer) -> None:
    be(server, "alice")
    contents = b"".join(line(f"n{n}") for n in range(10)).ljust(4_900)
    batch = server.wait(create(server, upload(server, contents).json()["id"]).json()["id"])
    assert batch["status"] == "completed" and len(server.lines(batch["output_file_id"])) == 10
    check_refused(upload(server, b"x"), 413, "storage_limit_reached")


def test_a_batch_that_waits_for_room_can_be_cancelled(server: StoredServer) -> None:
    for name, size in (("alice", 5_000), ("carol", 25_000), ("dave", 25_000), ("erin", 25_000)):
        be(server, name)
        assert upload(server, b"x" * size).status_code == 200
    be(server, "bob")
    batch = create(server, upload(server, line("a").ljust(20_000)).json()["id"]).json()["id"]
    until(lambda: "100000 bytes" in str(server.batch(batch)["status_details"]), lambda: server.batch(batch))
    assert server.http.post(f"/v1/batches/{batch}/cancel").status_code == 200
    assert server.wait(batch)["status"] == "cancelled"
    assert not server.engine.calls


def test_stored_responses_may_have_the_bytes_that_the_key_says(tmp_path: Path) -> None:
    async def main() -> None:
        limits = ResponseQuota(responses=100, total_bytes=12_000, tenant_share=0.25, tenant_bytes={"large": 9_000})
        with response_store(tmp_path / "responses.sqlite", limits) as store:
            for owner in ("large", "other"):
                for number in range(10):
                    store.keep(
                        {
                            "id": f"{owner}{number}",
                            "previous_response_id": None,
                            "output": [{"id": "i", "text": "x" * 700}],
                        },
                        [],
                        owner,
                    )
            kept = {}
            for owner in ("large", "other"):
                kept[owner] = [await store.get(f"{owner}{number}", owner) is not None for number in range(10)].count(
                    True
                )
            assert kept == {"large": 10, "other": 3}

    asyncio.run(main())


def test_stored_responses_of_one_tenant_do_not_push_out_those_of_another(tmp_path: Path) -> None:
    async def main() -> None:
        limits = ResponseQuota(responses=12, total_bytes=12_000, tenant_share=0.25, tenant_bytes={"small": 700})
        with response_store(tmp_path / "responses.sqlite", limits) as store:
            for owner, count in (("quiet", 3), ("loud", 50), ("small", 5), ("other", 3), ("another", 3)):
                for number in range(count):
                    text = "x" * (500 if owner == "loud" else 300)
                    output = [{"id": "i", "text": text}]
                    store.keep({"id": f"{owner}{number}", "previous_response_id": None, "output": output}, [], owner)
            await asyncio.sleep(0)
            kept: dict[str, list[int]] = {}
            for owner, count in (("quiet", 3), ("loud", 50), ("small", 5), ("other", 3), ("another", 3)):
                found = [number for number in range(count) if await store.get(f"{owner}{number}", owner) is not None]
                kept[owner] = found
            assert kept["quiet"] == [0, 1, 2] and kept["other"] == [0, 1, 2] and kept["another"] == [0, 1, 2]
            # One's own oldest went, and where all together had too many, that of whoever had the most.
            assert kept["small"] == [4] and kept["loud"] == [48, 49]

    asyncio.run(main())
