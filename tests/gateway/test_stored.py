"""What one replica keeps is found through a gateway, by whom it belongs to and by no other."""

import asyncio
import contextlib
import functools
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock.access.keys import Keyring, entry, parse_keys
from penstock.core.errors import RequestError
from penstock.gateway.app import create_gateway
from penstock.gateway.dispatch import Dispatch, Wanted
from penstock.gateway.errors import NoReplica, ReplicaBroken
from penstock.gateway.headers import request_head
from penstock.gateway.members import Members
from penstock.gateway.options import FleetOptions, ReplicaOptions
from penstock.gateway.pool import Pool, address_of
from penstock.gateway.replicas import Replicas, State
from penstock.server.dialects import DIALECTS
from penstock.storage.quotas import StorageQuota
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from storage.test_owners import ASKING, Owners, keyring
from support.databases import named_database
from support.documented import described_client
from support.http_server import free_port, running
from support.postgres import PostgresServer
from support.stored_server import StoredServer, line, serving_shared, serving_stored
from support.tokenizers_made import add_bos, make_raw, save
from support.waiting import PATIENCE, until

SECRET = "penstock-the-secret-of-the-gateway"
VARIABLE = "GATEWAYS_KEY"


@functools.cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(save(add_bos(make_raw("byte_level")), Path(folder)))


@dataclass
class Fleet:
    """A gateway and its replicas."""

    replicas: list[StoredServer]
    http: httpx.Client
    dispatch: Dispatch

    def upload(self) -> httpx.Response:
        """A file for a batch."""
        form: dict[str, Any] = {"files": {"file": ("in.jsonl", line("a", max_tokens=1))}, "data": {"purpose": "batch"}}
        return self.http.post("/v1/files", **form)

    def respond(self, **fields: object) -> httpx.Response:
        """A response, which is stored."""
        return self.http.post("/v1/responses", json={"input": "hi", **fields})


@contextlib.contextmanager
def fleet(
    keys: Keyring | None = None,
    own: Keyring | None = None,
    unheard: tuple[str, ...] = (),
    database: str | None = None,
    **options: Any,
) -> Iterator[Fleet]:
    """A gateway with `keys` before two replicas, which take the keys of `own`, and keep things together or apart."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limits = StorageQuota(files=1000, unfinished_batches=1000)
        replicas = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            kept = (
                serving_stored(folder / name, tokenizer(), limits, own)
                if database is None
                else serving_shared(database, tokenizer(), limits, own)
            )
            replicas.append(stack.enter_context(kept))
        urls = [*(each.url for each in replicas), *unheard]
        variable = VARIABLE if own else None
        asked = FleetOptions(
            replica=tuple(ReplicaOptions(url=url) for url in urls),
            **{"policy": "round-robin", "key_variable": variable, **options},
        ).check()
        dispatch = Dispatch(asked, keyed=bool(keys))
        members = Members(dispatch, asked)
        app = create_gateway(dispatch, DIALECTS, keys=keys)
        url = stack.enter_context(running(app, beside=members.looked_after))
        until(lambda: all(each.state != State.UNKNOWN for each in dispatch.replicas.all))
        http = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))
        yield Fleet(replicas, http, dispatch)


def for_others(*, told: bool = True) -> Keyring:
    """Of replicas: the gateway's key."""
    return Keyring(parse_keys(entry("gateway", SECRET, for_others=told).encode(), Path("keys.toml")))


@pytest.fixture(autouse=True)
def gateways_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)


class Through(Owners):
    """The same as at a server, through a gateway that tells two replicas whose requests are."""

    def serve(self) -> StoredServer:
        """Both share the list of what was asked of them."""
        found = self._ended.enter_context(fleet(keyring(), for_others()))
        first, second = found.replicas
        second.engine.calls = first.engine.calls
        client = self._ended.enter_context(described_client(str(found.http.base_url)))
        return StoredServer(str(found.http.base_url), client, first.engine, first.store, first.folder)

    @rule(asking=ASKING, data=st.data())
    def page(self, asking: str, data: st.DataObject) -> None:
        """Within a second nothing says what was first at which replica: pages have all, each once."""
        for kind, things in (("files", self.files), ("batches", self.batches)):
            own, found, after = {thing for thing, owner in things.items() if owner == asking}, [], ""
            limit = data.draw(st.integers(1, 3))
            while True:
                page = self.ask(asking, "GET", f"/v1/{kind}?limit={limit}{after}").json()
                found += [each["id"] for each in page["data"]]
                if not page["has_more"]:
                    break
                after = f"&after={found[-1]}"
            assert len(found) == len(own) and set(found) == own
            for stranger in things.keys() - own:
                assert self.ask(asking, "GET", f"/v1/{kind}?after={stranger}").status_code == 404


TestThrough = Through.TestCase
TestThrough.settings = settings(max_examples=4, stateful_step_count=15, deadline=None)


def test_a_conversation_goes_on_where_it_is_kept() -> None:
    with fleet() as found:
        first = found.respond()
        keeper = first.headers["x-penstock-replica"]
        last = first.json()["id"]
        for _ in range(4):
            answer = found.respond(previous_response_id=last)
            assert answer.status_code == 200 and answer.headers["x-penstock-replica"] == keeper
            last = answer.json()["id"]
        assert found.http.get(f"/v1/responses/{last}").json()["id"] == last
        assert found.http.get(f"/v1/responses/{last}/input_items").status_code == 200
        assert found.http.delete(f"/v1/responses/{last}").json()["deleted"] is True
        assert found.http.get(f"/v1/responses/{last}").json()["error"]["code"] == "response_not_found"
        gone = found.respond(previous_response_id="resp_unknown")
        assert gone.status_code == 400 and gone.json()["error"]["code"] == "previous_response_not_found"


def test_a_batch_runs_where_its_file_is() -> None:
    with fleet() as found:
        at = set()
        for _ in range(3):
            file = found.upload()
            assert file.status_code == 200, file.text
            at.add(file.headers["x-penstock-replica"])
            body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
            made = found.http.post("/v1/batches", json=body)
            assert made.headers["x-penstock-replica"] == file.headers["x-penstock-replica"]
            batch = made.json()["id"]
            until(lambda batch=batch: found.http.get(f"/v1/batches/{batch}").json()["status"] == "completed")
            output = found.http.get(f"/v1/batches/{batch}").json()["output_file_id"]
            lines = found.http.get(f"/v1/files/{output}/content").text.splitlines()
            assert json.loads(lines[0])["custom_id"] == "a"
        assert len(found.http.get("/v1/batches").json()["data"]) == 3
        unknown = {"input_file_id": "file-unknown", "endpoint": "/v1/completions", "completion_window": "24h"}
        assert found.http.post("/v1/batches", json=unknown).json()["error"]["code"] == "file_not_found"


def test_an_upload_in_chunks_and_one_that_is_refused() -> None:
    with fleet() as found:

        def form() -> Iterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
            yield from [line("a", max_tokens=1)] * 2000
            yield b"\r\n--x--\r\n"

        headers = {"content-type": "multipart/form-data; boundary=x"}
        stored = found.http.post("/v1/files", content=form(), headers=headers)
        assert stored.json()["bytes"] == 2000 * len(line("a", max_tokens=1))
        refused = found.http.post("/v1/files", json={})
        assert refused.status_code == 415 and "must be a form" in refused.json()["error"]["message"]


def test_what_cannot_be_asked_is_told() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with fleet(unheard=(nobody,)) as found:
        kept = found.upload().json()["id"]
        assert found.http.get(f"/v1/files/{kept}").status_code == 200
        lost = found.http.get("/v1/files/file-unknown")
        assert lost.status_code == 503 and lost.json()["error"]["code"] == "no_replica"
        assert f"{nobody} cannot be asked now, and may have it" in lost.json()["error"]["message"]
        listed = found.http.get("/v1/files").json()
        assert [each["id"] for each in listed["data"]] == [kept] and listed["unasked"] == [nobody]
        strange = found.http.get("/v1/files/%2e%2e%2fmodels")
        assert strange.status_code == 404


def test_tenants_that_replicas_cannot_tell_apart_reach_nothing_that_is_kept() -> None:
    alice = {"x-api-key": "penstock-the-secret-of-alice"}
    with fleet(keyring(), for_others(told=False)) as found:
        for path in ("/v1/files", "/v1/files/file-1", "/v1/responses/resp_1"):
            refused = found.http.get(path, headers=alice)
            assert refused.status_code == 404 and refused.json()["error"]["code"] == "storage_off"
            assert "penstock key --for-others" in refused.json()["error"]["message"]


def test_only_the_gateway_says_whose_a_request_is() -> None:
    """A client's own word for it is refused, or goes no further where all clients are the same tenant."""
    claims = {"x-api-key": "penstock-the-secret-of-alice", "x-penstock-tenant": "bob", "x-penstock-weight": "9"}
    with fleet(keyring(), for_others()) as found:
        answer = found.http.post("/v1/responses", json={"input": "hi"}, headers=claims)
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "not_for_others"
    with fleet(None, for_others()) as found:
        assert found.http.post("/v1/responses", json={"input": "hi"}, headers=claims).status_code == 200
        [call] = [call for each in found.replicas for call in each.engine.calls]
        assert call.standing.tenant == "gateway"


@pytest.mark.parametrize(
    "purpose", ["x HTTP/1.1\r\nhost: a\r\n\r\nGET /v1/files HTTP/1.1\r\nfoo:", "batch&limit=1", "b#"]
)
def test_a_query_is_no_way_into_a_connection(purpose: str) -> None:
    with fleet() as found:
        found.upload()
        refused = found.http.get("/v1/files", params={"purpose": purpose})
        assert refused.status_code == 400 and "no file is for" in refused.json()["error"]["message"]
        listed = found.http.get("/v1/files", params={"purpose": "batch", "order": "asc"}).json()["data"]
        assert len(listed) == 1
        assert found.http.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []


def test_a_head_ends_where_it_should() -> None:
    replica = Replicas().add(Pool(address_of("http://127.0.0.1:1")))
    scope = {"method": "GET", "raw_path": b"/v1/files", "headers": []}
    for query in (b"a b", b"a\r\nb: c", b"a\x7f"):
        with pytest.raises(RequestError, match="must have no spaces or control characters"):
            request_head({**scope, "query_string": query}, replica, 0, keyed=False)


def test_one_that_is_known_to_keep_it_and_is_away_is_named() -> None:
    with fleet() as found:
        kept = found.respond()
        response, keeper = kept.json()["id"], kept.headers["x-penstock-replica"]
        assert found.http.get(f"/v1/responses/{response}").status_code == 200
        [replica] = [each for each in found.dispatch.replicas.all if each.name == keeper]
        for state in (State.DRAINING, State.UNREACHABLE):
            # Nothing looks after it any more.
            found.dispatch.told = lambda *_told: None
            replica.is_not(state, "it is away")
            replica.is_ready = lambda _models: None
            for asked in (
                found.http.get(f"/v1/responses/{response}"),
                found.respond(previous_response_id=response),
            ):
                assert asked.status_code == 503 and asked.json()["error"]["code"] == "no_replica"
                assert f"kept by {keeper}, which cannot be asked now (it is away)" in asked.json()["error"]["message"]


def test_one_that_has_come_back_as_another_of_the_fleet_is_found_again() -> None:
    with fleet() as found:
        response = found.respond().json()["id"]
        assert found.http.get(f"/v1/responses/{response}").status_code == 200
        known = found.dispatch.kept._found
        # What is remembered is no replica of the fleet any more.
        known[response] = Replicas().add(known[response][0].pool), ""
        assert found.http.get(f"/v1/responses/{response}").status_code == 200
        assert known[response][0] in found.dispatch.replicas.all


def test_a_keeper_that_goes_while_a_request_waits_is_not_mistaken_for_the_next_in_its_place() -> None:
    with fleet() as found:
        [gone, _] = found.dispatch.replicas.all
        wanted = Wanted(None, 5, keepers=[gone])
        found.dispatch.replicas.all[0] = Replicas().add(gone.pool)

        async def send() -> None:
            found.dispatch.send(wanted, [0, 1])

        with pytest.raises(NoReplica, match="which cannot be asked now"):
            asyncio.run(send())
        found.dispatch.replicas.all[0] = gone


def stop(found: Fleet, name: str) -> None:
    """A replica is away, and nothing looks after it any more."""
    [replica] = [each for each in found.dispatch.replicas.all if each.name == name]
    found.dispatch.told = lambda *_told: None
    replica.is_not(State.UNREACHABLE, "it is away")
    replica.is_ready = lambda _models: None


def test_what_replicas_keep_together_is_there_as_long_as_one_of_them_is(database_url: str) -> None:
    with fleet(database=database_url) as found:
        kept = found.respond()
        response, keeper = kept.json()["id"], kept.headers["x-penstock-replica"]
        file = found.upload().json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = found.http.post("/v1/batches", json=body).json()["id"]
        until(lambda: found.http.get(f"/v1/batches/{batch}").json()["status"] == "completed")
        # It goes on at any of them, and is listed once.
        at = {found.respond(previous_response_id=response).headers["x-penstock-replica"] for _ in range(4)}
        assert len(at) == 2
        stop(found, keeper)
        for path in (f"/v1/responses/{response}", f"/v1/files/{file}/content", f"/v1/batches/{batch}"):
            answer = found.http.get(path)
            assert answer.status_code == 200 and answer.headers["x-penstock-replica"] != keeper
        answer = found.respond(previous_response_id=response)
        assert answer.status_code == 200 and answer.headers["x-penstock-replica"] != keeper
        for kind, count in (("files", 2), ("batches", 1)):
            listed = found.http.get(f"/v1/{kind}").json()
            assert len(listed["data"]) == count and "unasked" not in listed
        # One that is away keeps nothing that the other has not.
        unknown = found.http.get("/v1/files/file-unknown")
        assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "file_not_found"
        again = found.http.post("/v1/batches", json=body)
        assert again.status_code == 200 and again.headers["x-penstock-replica"] != keeper
        assert found.http.delete(f"/v1/responses/{response}").json()["deleted"] is True


def test_what_a_replica_does_not_answer_another_is_asked_that_keeps_it(database_url: str) -> None:
    with fleet(database=database_url) as found:
        file = found.upload()
        [replica] = [each for each in found.dispatch.replicas.all if each.name == file.headers["x-penstock-replica"]]
        path = f"/v1/files/{file.json()['id']}/content"
        assert found.http.get(path).headers["x-penstock-replica"] == replica.name

        @contextlib.asynccontextmanager
        async def breaks(*_: bytes) -> AsyncIterator[Any]:
            raise ReplicaBroken("it has gone")
            yield

        # It is not noticed yet that it has gone.
        replica.ask = breaks
        answer = found.http.get(path)
        assert answer.content == line("a", max_tokens=1)
        assert answer.headers["x-penstock-replica"] != replica.name


def test_a_response_that_is_computed_is_found_where_it_is(postgres: PostgresServer) -> None:
    with fleet(database=named_database(postgres)) as found:
        begins = threading.Event()

        async def hold(call: Any) -> None:
            if call.outputs:
                begins.set()
                await asyncio.Event().wait()

        for each in found.replicas:
            each.engine.before = hold
        with found.http.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as streamed:
            lines = streamed.iter_lines()
            data = next(each for each in lines if each.startswith("data: "))
            response = json.loads(data.removeprefix("data: "))["response"]["id"]
            assert begins.wait(PATIENCE)
            for _ in range(4):
                assert found.http.get(f"/v1/responses/{response}").json()["status"] == "in_progress"
            assert found.http.post(f"/v1/responses/{response}/cancel").json()["status"] == "cancelled"


def test_a_large_body_of_a_cancel_is_not_kept() -> None:
    with fleet() as found:
        missing = found.http.post("/v1/batches/batch_unknown/cancel", content=b"x" * 1_000_000)
        assert missing.status_code == 404
