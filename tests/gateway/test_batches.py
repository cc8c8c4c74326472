"""Files and batches that a gateway keeps itself: lines of tenants, behind all others, at half the price."""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.conftest import ANSWER, COST, PRICE, Gateway, Start, World, bearer, knows, month
from penstock.core.request import BACKGROUND
from penstock.database.connection import Database
from penstock.database.tables import ledger
from penstock.gateway.tenants import Tenants
from penstock.tenancy.settings import Settings
from penstock.tenancy.statement import statement
from support.providers import provider, says
from support.scripted_http import CLOSE, Received, Script, Step, answer, stream, text_chunk, whole_answer
from support.waiting import until

ENDED = ("failed", "completed", "expired", "cancelled")


class Keeping(World):
    """Gateways that keep files and batches in the database of tenants."""

    def gateway(self, *scripts: Script, **options: Any) -> Gateway:
        """One more, before a replica for each script."""
        tenants = Tenants(Database.open(self.url), self._folder / f"journal-{next(self._gateways)}")
        scripts = scripts or (lambda _request: answer(ANSWER),)
        return self._start(*scripts, tenants=tenants, database=self.url, **{"price": (PRICE,), **options})

    def entries(self) -> list[Any]:
        """Those of the ledger."""
        with self.database.begin() as connection:
            return list(connection.execute(select(ledger)).all())


@pytest.fixture
def world(gateway: Start, database_url: str, tmp_path: Path) -> Iterator[Keeping]:
    made = Keeping(gateway, database_url, tmp_path)
    yield made
    made.database.close()


def line(number: int, **body: object) -> str:
    fields = {"model": "scripted", "prompt": f"say {number}".ljust(32), "max_tokens": 5, **body}
    return json.dumps({"custom_id": f"n{number}", "method": "POST", "url": "/v1/completions", "body": fields})


def create(gateway: Gateway, secret: str, lines: list[str]) -> str:
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", "\n".join(lines).encode())}, "data": {"purpose": "batch"}}
    file = gateway.http.post("/v1/files", headers=bearer(secret), **form)
    assert file.status_code == 200, file.text
    body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    made = gateway.http.post("/v1/batches", json=body, headers=bearer(secret))
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


def batch(gateway: Gateway, secret: str, batch_id: str) -> dict[str, Any]:
    return gateway.http.get(f"/v1/batches/{batch_id}", headers=bearer(secret)).json()


def wait(gateway: Gateway, secret: str, batch_id: str) -> dict[str, Any]:
    until(lambda: batch(gateway, secret, batch_id)["status"] in ENDED, lambda: batch(gateway, secret, batch_id))
    return batch(gateway, secret, batch_id)


def lines_of(gateway: Gateway, secret: str, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    text = gateway.http.get(f"/v1/files/{file_id}/content", headers=bearer(secret)).text
    return [json.loads(each) for each in text.splitlines()]


def test_lines_go_to_all_replicas_in_the_background_and_cost_half(world: Keeping) -> None:
    _, secret = world.key(budget_per_month="1.00", models=["scripted"])
    gateway = world.gateway(*[lambda _request: answer(ANSWER)] * 2)
    knows(gateway, secret)
    ended = wait(gateway, secret, create(gateway, secret, [line(n) for n in range(40)]))
    assert ended["status"] == "completed"
    assert ended["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    found = lines_of(gateway, secret, ended["output_file_id"])
    assert [each["custom_id"] for each in found] == [f"n{n}" for n in range(40)]
    assert {each["response"]["status_code"] for each in found} == {200}
    assert len({each["response"]["request_id"] for each in found}) == 40
    # Both replicas have had some, each in the class that waits for all others.
    asked = [server.asked for server in gateway.servers]
    assert sum(map(len, asked)) == 40 and min(map(len, asked)) > 5
    assert {each.headers[BACKGROUND.decode()] for some in asked for each in some} == {"1"}
    until(lambda: len(world.entries()) == 40)
    assert {(each.is_batch, each.key == "") for each in world.entries()} == {(True, False)}
    told = statement(world.database, month())
    assert told.cost == 20 * COST and told.requests == 40
    metrics = gateway.http.get("/metrics", headers=bearer(secret)).text
    assert 'penstock_gateway_batch_lines_total{line="completed"} 40' in metrics
    # What others ask is at the whole price, and has no such header.
    body = {"model": "scripted", "prompt": "x"}
    assert gateway.http.post("/v1/completions", json=body, headers=bearer(secret)).status_code == 200
    until(lambda: statement(world.database, month()).cost == 21 * COST)
    sent = [each for server in gateway.servers for each in server.asked]
    assert len(sent) == 41 and sum(BACKGROUND.decode() in each.headers for each in sent) == 40


def test_requests_of_a_key_can_be_in_the_background(world: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come last, at the whole price, and wait for machines."""
    _, last = world.key(priority_class="background")
    _, first = world.key()
    going = list[bool]()
    script: Script = lambda request: (  # noqa: E731
        stream(text_chunk("a"), lambda: bool(going)) if request.body.get("stream") else answer(ANSWER)
    )
    with provider(monkeypatch, says("a")) as (offered, server), ThreadPoolExecutor(2) as threads:
        gateway = world.gateway(script, provider=(offered,), most_requests=1)

        def ask(secret: str, prompt: str) -> int:
            body = {"model": "scripted", "prompt": prompt, "max_tokens": 5}
            return gateway.http.post("/v1/completions", json=body, headers=bearer(secret)).status_code

        fields = {"model": "scripted", "prompt": "x", "stream": True}
        with gateway.http.stream("POST", "/v1/completions", json=fields, headers=bearer(first)):
            until(lambda: gateway.asked == [1])
            later = threads.submit(ask, last, "later")
            until(lambda: gateway.dispatch.hold.waiting == 1)
            sooner = threads.submit(ask, first, "sooner")
            until(lambda: gateway.dispatch.hold.waiting == 2)
            going.append(True)
        assert (later.result(), sooner.result()) == (200, 200) and not server.asked
        asked = [(each.body["prompt"], BACKGROUND.decode() in each.headers) for each in gateway.servers[0].asked[1:]]
        assert asked == [("sooner", False), ("later", True)]
        until(lambda: len(world.entries()) == 3)
        assert not any(each.is_batch for each in world.entries())


def test_lines_wait_for_machines_where_other_requests_go_out(world: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only machine takes on one request at a time."""
    _, secret = world.key()
    with provider(monkeypatch, says("a")) as (offered, server):
        gateway = world.gateway(whole_answer, provider=(offered,), most_requests=1)
        chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
        asked = {"method": "POST", "url": "/v1/chat/completions", "body": chat}
        lines = [json.dumps({"custom_id": f"n{number}", **asked}) for number in range(12)]
        form: dict[str, Any] = {
            "files": {"file": ("in.jsonl", "\n".join(lines).encode())},
            "data": {"purpose": "batch"},
        }
        file = gateway.http.post("/v1/files", headers=bearer(secret), **form).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = gateway.http.post("/v1/batches", json=body, headers=bearer(secret)).json()["id"]
        done = lambda: gateway.http.get(f"/v1/batches/{batch}", headers=bearer(secret)).json()  # noqa: E731
        until(lambda: done()["status"] == "completed")
        assert done()["request_counts"]["completed"] == 12 == gateway.asked[0] and not server.asked


def test_a_line_may_do_what_its_key_may(world: Keeping) -> None:
    _, secret = world.key(models=["scripted"], max_output_tokens=10)
    gateway = world.gateway()
    knows(gateway, secret)
    wrong = [line(1, model="other"), line(2, max_tokens=11), line(3, stream=True), line(4, timeout=3), line(5)]
    ended = wait(gateway, secret, create(gateway, secret, wrong))
    assert ended["request_counts"] == {"total": 5, "completed": 1, "failed": 4}
    errors = lines_of(gateway, secret, ended["error_file_id"])
    codes = [(each["response"]["status_code"], each["response"]["body"]["error"]["param"]) for each in errors]
    assert codes == [(403, "model"), (400, "max_tokens"), (400, "stream"), (400, "timeout")]


def test_a_budget_ends_the_lines_that_have_no_room_in_it(world: Keeping) -> None:
    # A line reserves 8 tokens of its prompt and 5 of its answer, 9 millionths at half the price, and uses 8.5.
    _, secret = world.key(budget_per_day="0.000050")
    gateway = world.gateway()
    knows(gateway, secret)
    ended = wait(gateway, secret, create(gateway, secret, [line(n) for n in range(30)]))
    assert ended["status"] == "completed" and 0 < ended["request_counts"]["completed"] < 30
    errors = lines_of(gateway, secret, ended["error_file_id"])
    assert {each["response"]["body"]["error"]["code"] for each in errors} == {"budget_exceeded"}
    until(lambda: len(world.entries()) == ended["request_counts"]["completed"])
    assert statement(world.database, month()).cost <= Decimal("0.000050")


def test_files_and_batches_are_their_projects(world: Keeping) -> None:
    world.registry.create_project("test", "acme.other", Settings())
    (_, one), (_, same), (_, other) = world.key(), world.key(), world.key("acme.other")
    gateway = world.gateway()
    for secret in (one, same, other):
        knows(gateway, secret)
    ended = wait(gateway, one, batch_id := create(gateway, one, [line(1)]))
    for path in (f"/v1/batches/{batch_id}", f"/v1/files/{ended['output_file_id']}"):
        assert gateway.http.get(path, headers=bearer(same)).status_code == 200
        assert gateway.http.get(path, headers=bearer(other)).status_code == 404
    for kind, count in (("files", 2), ("batches", 1)):
        counts = [len(gateway.http.get(f"/v1/{kind}", headers=bearer(each)).json()["data"]) for each in (one, other)]
        assert counts == [count, 0]


def test_lines_are_sent_again_where_replicas_are_busy_or_break(world: Keeping) -> None:
    _, secret = world.key()
    busy = itertools.count()

    def script(_request: Received) -> list[Step]:
        match next(busy) % 4:
            case 0:
                return answer(b'{"error": {"message": "busy", "code": "queue_full"}}', status=503)
            case 1:
                return [CLOSE]
        return answer(ANSWER)

    gateway = world.gateway(script)
    knows(gateway, secret)
    ended = wait(gateway, secret, create(gateway, secret, [line(n) for n in range(12)]))
    assert ended["request_counts"] == {"total": 12, "completed": 12, "failed": 0}


def test_lines_wait_for_the_limits_of_their_project(world: Keeping) -> None:
    """Three requests in a minute: what is beyond them waits, and is cancelled here."""
    _, secret = world.key(requests_per_minute=3)
    gateway = world.gateway()
    knows(gateway, secret)
    batch_id = create(gateway, secret, [line(n) for n in range(10)])
    until(lambda: batch(gateway, secret, batch_id)["request_counts"]["completed"] == 3)
    assert batch(gateway, secret, batch_id)["status"] == "in_progress"
    assert gateway.http.post(f"/v1/batches/{batch_id}/cancel", headers=bearer(secret)).status_code == 200
    ended = wait(gateway, secret, batch_id)
    assert ended["status"] == "cancelled" and ended["request_counts"]["failed"] == 0
    assert len(lines_of(gateway, secret, ended["output_file_id"])) == 3


def test_a_batch_goes_on_when_its_key_is_replaced_and_not_when_all_of_it_is_to_end(world: Keeping) -> None:
    (rotated, one), (ended, two) = world.key(), world.key()
    going = list[bool]()
    gateway = world.gateway(lambda _request: [lambda: bool(going), *answer(ANSWER)])
    knows(gateway, one)
    knows(gateway, two)
    # Of both, lines are under way.
    made = {secret: create(gateway, secret, [line(n) for n in range(20)]) for secret in (one, two)}
    until(lambda: gateway.servers[0].asked)
    _, new = world.registry.rotate_key("test", rotated, 0.0)
    world.registry.revoke_key("test", ended, ends_streams=True)
    knows(gateway, new)
    until(lambda: gateway.http.get("/v1/models", headers=bearer(two)).status_code == 401)
    going.append(True)
    assert wait(gateway, new, made[one])["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert batch(gateway, new, made[two])["status"] == "in_progress"
    assert batch(gateway, new, made[two])["request_counts"]["completed"] == 0
