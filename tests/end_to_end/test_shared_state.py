"""What replicas keep in one database outlives each of them: real processes, PostgreSQL, and a gateway before them."""

import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from end_to_end.test_gateway import gateway, started
from penstock.database.connection import Database
from penstock.database.tables import ledger
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings
from support.databases import named_database
from support.postgres import PostgresServer
from support.waiting import PATIENCE, SELDOM, until

LINES = 1000


def ask_for_batch(http: httpx.Client) -> httpx.Response:
    lines = [
        {"custom_id": f"n{n}", "method": "POST", "url": "/v1/completions", "body": {
            "model": "tiny-llama", "prompt": f"say {n}", "max_tokens": 4, "temperature": 0, "ignore_eos": True,
        }}
        for n in range(LINES)
    ]  # fmt: skip
    contents = "\n".join(map(json.dumps, lines)).encode()
    file = http.post("/v1/files", files={"file": ("in.jsonl", contents)}, data={"purpose": "batch"}).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return http.post("/v1/batches", json=body)


def check(http: httpx.Client, ended: dict[str, Any]) -> None:
    """Each line has one answer, in order."""
    assert ended["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    output = http.get(f"/v1/files/{ended['output_file_id']}/content").text.splitlines()
    answers = [json.loads(line) for line in output]
    assert [answer["custom_id"] for answer in answers] == [f"n{n}" for n in range(LINES)]
    assert {answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers} == {4}


def test_a_conversation_and_a_batch_go_on_when_their_replica_is_killed(
    served_checkpoint: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    options = ("--threads", "1", "--speculative", "off", "--database", named_database(postgres))
    with (
        started(tmp_path, "serve", str(served_checkpoint), *options) as one,
        started(tmp_path, "serve", str(served_checkpoint), *options) as two,
        gateway(tmp_path, [one, two]) as passing,
        httpx.Client(base_url=passing.base, timeout=PATIENCE) as http,
    ):

        def respond(**fields: object) -> httpx.Response:
            body = {"model": "tiny-llama", "input": "say something", "max_output_tokens": 3, **fields}
            answer = http.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            return answer

        def batch() -> dict[str, Any]:
            return http.get(f"/v1/batches/{batch_id}").json()

        made = ask_for_batch(http)
        batch_id, runs = made.json()["id"], made.headers["x-penstock-replica"]
        victim = one if one.base == runs else two
        # A conversation whose last turn was at the replica that is killed.
        turns = [respond()]
        while len(turns) < 3 or turns[-1].headers["x-penstock-replica"] != victim.base:
            turns.append(respond(previous_response_id=turns[-1].json()["id"]))
        until(lambda: batch()["request_counts"]["completed"] >= 100, batch)
        victim.process.kill()
        victim.process.wait()
        further = respond(previous_response_id=turns[-1].json()["id"])
        assert further.headers["x-penstock-replica"] != victim.base
        assert further.json()["usage"]["input_tokens"] > turns[-1].json()["usage"]["input_tokens"]
        assert batch()["status"] == "in_progress"
        until(lambda: batch()["status"] == "completed", batch, pause=SELDOM)
        check(http, batch())
        assert [each["id"] for each in http.get("/v1/batches").json()["data"]] == [batch_id]


def test_a_batch_of_a_gateway_goes_on_when_a_replica_and_the_gateway_are_killed(
    served_checkpoint: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = named_database(postgres)
    with contextlib.closing(Database.open(url)) as database, contextlib.ExitStack() as stack:
        database.upgrade()
        registry = Registry(database)
        registry.create_organisation("test", "acme", Settings())
        registry.create_project("test", "acme.web", Settings())
        _, secret = registry.create_key("test", "k", "acme.web", Settings())
        options = ("--threads", "1", "--speculative", "off")
        replicas = [stack.enter_context(started(tmp_path, "serve", str(served_checkpoint), *options)) for _ in range(2)]
        named = [part for each in replicas for part in ("--replica", each.base)]
        first, second = (stack.enter_context(started(tmp_path, "gateway", "--database", url, *named)) for _ in range(2))
        clients = [
            stack.enter_context(
                httpx.Client(base_url=each.base, headers={"authorization": f"Bearer {secret}"}, timeout=PATIENCE)
            )
            for each in (first, second)
        ]

        def batch(http: httpx.Client) -> dict[str, Any]:
            return http.get(f"/v1/batches/{batch_id}").json()

        def completed(http: httpx.Client) -> int:
            return int(batch(http)["request_counts"]["completed"])

        batch_id = ask_for_batch(clients[0]).json()["id"]
        until(lambda: completed(clients[0]) >= 100)
        replicas[0].process.kill()
        replicas[0].process.wait()
        seen = completed(clients[0])
        until(lambda: completed(clients[0]) >= seen + 100, lambda: batch(clients[0]))
        first.process.kill()
        first.process.wait()
        # What is kept is seen at the other one, which goes on once the time of the first is over.
        assert completed(clients[1]) >= seen + 100
        until(lambda: batch(clients[1])["status"] == "completed", lambda: batch(clients[1]), pause=SELDOM)
        check(clients[1], batch(clients[1]))
        # The first one's journal has what it could not enter any more.
        stack.enter_context(started(tmp_path, "gateway", "--database", url, *named, port=first.port))

        def entered() -> int:
            with database.begin() as connection:
                return connection.execute(select(func.count()).where(ledger.c.is_batch)).scalar_one()

        until(lambda: entered() >= LINES, entered, pause=SELDOM)
