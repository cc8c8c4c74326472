"""`/v1/batches` over HTTP: what lines come to, what is refused, cancelling, expiry, limits, restarts."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from penstock.batches.lines import LINES_AT_A_TIME
from penstock.core.errors import EngineUnavailable
from penstock.core.request import BACKGROUND, BACKGROUND_PRIORITY
from penstock.storage.quotas import StorageQuota
from penstock.text.tokenizer import Tokenizer
from support.stored_server import StoredServer, line, serving_stored
from support.waiting import PATIENCE, until

LIMITS = StorageQuota(lines=50_000, unfinished_batches=3, batches=30, line_bytes=20_000)


@pytest.fixture(scope="module")
def _stored(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[StoredServer]:
    with serving_stored(tmp_path_factory.mktemp("stored"), tokenizer, LIMITS, aliases=("alias",)) as server:
        yield server


@pytest.fixture
def stored(_stored: StoredServer) -> StoredServer:
    """The module's server, its engine's script as at first."""
    engine = _stored.engine
    engine.calls.clear()
    engine.finish, engine.error, engine.unavailable, engine.before = "stop", None, None, None
    return _stored


@pytest.fixture
def client(stored: StoredServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stored.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def run(stored: StoredServer, contents: bytes, **fields: object) -> dict[str, Any]:
    """A batch at its end."""
    return stored.wait(stored.create(stored.upload(contents)["id"], **fields)["id"])


def test_a_byte_order_mark_is_no_part_of_the_first_line(stored: StoredServer) -> None:
    batch = run(stored, b"\xef\xbb\xbf" + line("a", prompt="the") + line("b", prompt="the"))
    assert batch["status"] == "completed" and batch["request_counts"]["completed"] == 2
    assert {each["custom_id"] for each in stored.lines(batch["output_file_id"])} == {"a", "b"}


def test_ranks_scores_and_comparisons(stored: StoredServer) -> None:
    for endpoint, body, name in (
        ("/v1/rerank", {"query": "the", "documents": ["a", "the quick fox"]}, "results"),
        ("/v1/score", {"text_1": "the", "text_2": ["a", "the quick fox"]}, "data"),
    ):
        contents = json.dumps({"custom_id": "a", "method": "POST", "url": endpoint, "body": body}).encode()
        batch = run(stored, contents, endpoint=endpoint)
        (answered,) = stored.lines(batch["output_file_id"])
        direct = stored.http.post(endpoint, json=body).json()
        assert answered["response"]["body"][name] == direct[name] and len(direct[name]) == 2


def block(stored: StoredServer) -> threading.Event:
    """Have every line wait for the event."""
    released = threading.Event()

    async def wait(call: Any) -> None:
        while not released.is_set():
            await asyncio.sleep(0.005)

    stored.engine.before = wait
    return released


def wait_for_lines(stored: StoredServer, batch_id: str, count: int) -> None:
    until(lambda: stored.batch(batch_id)["request_counts"]["completed"] >= count)


def test_the_openai_client(client: OpenAI, stored: StoredServer) -> None:
    chats = [
        {"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": "scripted", "messages": [{"role": "user", "content": f"hi {number}"}], "max_tokens": 3,
        }}
        for number in range(40)
    ]  # fmt: skip
    contents = "\n".join(map(json.dumps, chats)).encode()
    file = client.files.create(file=("in.jsonl", contents), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"job": "nightly"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert batch.status == "validating" and batch.expires_at == batch.created_at + 24 * 3600
    assert client.batches.list(limit=1).data[0].id == batch.id
    stored.wait(batch.id)
    batch = client.batches.retrieve(batch.id)
    counts = batch.request_counts
    assert batch.status == "completed" and counts is not None and batch.metadata == {"job": "nightly"}
    assert (counts.total, counts.completed, counts.failed) == (40, 40, 0)
    assert batch.error_file_id is None and batch.errors is None and batch.output_file_id is not None
    assert batch.in_progress_at is not None and batch.finalizing_at is not None and batch.completed_at is not None
    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert output.expires_at == output.created_at + 7200
    lines = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    assert [each["custom_id"] for each in lines] == [f"n{number}" for number in range(40)]
    assert len({each["id"] for each in lines}) == 40
    for each in lines:
        body = each["response"]["body"]
        assert each["error"] is None and each["response"]["status_code"] == 200 and each["response"]["request_id"]
        assert body["object"] == "chat.completion" and body["usage"]["completion_tokens"] == 3
    assert all(call.standing.priority >= BACKGROUND_PRIORITY for call in stored.engine.calls)
    with pytest.raises(openai.ConflictError, match="completed"):
        client.batches.cancel(batch.id)
    with pytest.raises(openai.NotFoundError, match="no batch"):
        client.batches.retrieve("batch_x")


def test_a_line_that_is_refused_fails_alone(stored: StoredServer) -> None:
    contents = line("a") + line("b", temperature=-1) + line("c", model="other") + line("d", stream=True)
    contents += line("e", prompt="") + line("f", priority=-5, model="alias") + line("g", colour="red")
    batch = run(stored, contents)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 7, "completed": 2, "failed": 5}
    assert [each["custom_id"] for each in stored.lines(batch["output_file_id"])] == ["a", "f"]
    errors = {each["custom_id"]: each["response"] for each in stored.lines(batch["error_file_id"])}
    assert {name: response["status_code"] for name, response in errors.items()} == {
        "b": 400, "c": 404, "d": 400, "e": 400, "g": 400,
    }  # fmt: skip
    assert errors["b"]["body"]["error"]["param"] == "temperature"
    assert errors["d"]["body"]["error"]["param"] == "stream"
    assert {call.standing.priority for call in stored.engine.calls} == {
        BACKGROUND_PRIORITY + 2**31,
        BACKGROUND_PRIORITY + 2**31 - 5,
    }


def test_vectors(stored: StoredServer) -> None:
    texts = [["one"], ["two", "three"]]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/embeddings", "body": {"input": text}}
        for number, text in enumerate(texts)
    ]
    contents = "\n".join(map(json.dumps, lines)).encode()
    batch = run(stored, contents, endpoint="/v1/embeddings")
    answers = [answer["response"]["body"] for answer in stored.lines(batch["output_file_id"])]
    assert [len(answer["data"]) for answer in answers] == [1, 2] and answers[0]["object"] == "list"
    direct = stored.http.post("/v1/embeddings", json={"input": texts[1]}).json()
    assert direct["data"] == answers[1]["data"]


def test_a_failed_row_is_a_failed_line(stored: StoredServer) -> None:
    stored.engine.finish, stored.engine.error = "error", "The logits are not numbers."
    batch = run(stored, line("a", max_tokens=4))
    (error,) = stored.lines(batch["error_file_id"])
    assert error["response"]["status_code"] == 500 and "not numbers" in error["response"]["body"]["error"]["message"]
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1} and batch["output_file_id"] is None


def test_without_an_engine_lines_wait(stored: StoredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.engine.unavailable = "The engine is starting."
    asked, check_ready = threading.Semaphore(0), stored.engine.check_ready

    def count() -> None:
        asked.release()
        check_ready()

    monkeypatch.setattr(stored.engine, "check_ready", count)
    batch = stored.create(stored.upload(line("a"))["id"])
    for _ in range(3):
        assert asked.acquire(timeout=PATIENCE)
    assert stored.batch(batch["id"])["status"] == "in_progress" and stored.engine.calls == []
    failures = iter([True, True, False])

    def fail_twice(call: Any) -> None:
        if next(failures, False):
            raise EngineUnavailable("The engine is restarting.")

    stored.engine.before, stored.engine.unavailable = fail_twice, None
    assert stored.wait(batch["id"])["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_request_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b'{"custom_id": "a"', "invalid_json_line", None),
        (b"[" * 100_000, "line_too_long", None),
        (line("a").replace(b"[5]", b"[" * 19_000), "invalid_json_line", None),
        (line("a", temperature=1).replace(b"1}", b"NaN}"), "invalid_json_line", None),
        (line("a").replace(b"custom_id", b"id"), "invalid_request_line", None),
        (line("a").replace(b'"a"', b"7"), "invalid_request_line", "custom_id"),
        (line("a").replace(b'"a"', b'"\\ud800"'), None, None),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("x" * 600), "invalid_custom_id", "custom_id"),
        (line("a").replace(b"POST", b"GET"), "invalid_method", "method"),
        (line("a", url="/v1/chat/completions"), "mismatched_url", "url"),
        (line("a").replace(b'{"prompt": [5]}', b"[]"), "invalid_body", "body"),
        (line("a").replace(b'{"prompt": [5]}', b'"\\""'), "invalid_body", "body"),
        (line("a", prompt="x" * 30_000), "line_too_long", None),
        (line("one"), "duplicate_custom_id", "custom_id"),
    ],
)
def test_a_broken_line_fails_the_batch(stored: StoredServer, text: bytes, code: str | None, param: str | None) -> None:
    batch = run(stored, line("one") + b"\r\n  \n" + text.strip(b"\n") + b"\n" + line("last"))
    assert batch["status"] == "failed" and batch["failed_at"] is not None and batch["output_file_id"] is None
    (problem,) = batch["errors"]["data"]
    assert problem["line"] == 4 and problem["message"]
    if code is not None:
        assert (problem["code"], problem["param"]) == (code, param)
    assert stored.engine.calls == []


def test_many_problems_are_cut_short_and_an_empty_file_is_one(stored: StoredServer) -> None:
    batch = run(stored, b"{\n" * 1000)
    assert batch["status"] == "failed" and len(batch["errors"]["data"]) == 50
    for contents in (b"", b"\n\n \n"):
        assert [each["code"] for each in run(stored, contents)["errors"]["data"]] == ["empty_file"]


def test_a_hundred_thousand_lines_are_refused_soon(stored: StoredServer) -> None:
    contents = b"".join(
        b'{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{}}\n' % n for n in range(10**5)
    )
    batch = run(stored, contents)
    (problem,) = batch["errors"]["data"]
    assert (batch["status"], problem["code"], problem["line"]) == ("failed", "too_many_requests", 50_001)


def test_what_a_batch_may_not_be(stored: StoredServer) -> None:
    file_id = stored.upload(line("a"))["id"]
    good: dict[str, object] = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    for change, status, param in (
        ({"input_file_id": "file-x"}, 404, "input_file_id"),
        ({"input_file_id": 7}, 400, "input_file_id"),
        ({"input_file_id": "\ud800"}, 400, None),
        ({"endpoint": "/v1/moderations"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"colour": "red"}, 400, "colour"),
        ({"metadata": {"a": 1}}, 400, None),
        ({"metadata": {"a" * 65: "b"}}, 400, "metadata"),
        ({"metadata": {"a": "b" * 513}}, 400, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, 400, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 2**63}}, 400, None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": -1}}, 400, "output_expires_after.seconds"),
    ):
        body = json.dumps({**good, **change})
        response = stored.http.post("/v1/batches", content=body, headers={"content-type": "application/json"})
        assert response.status_code == status, change
        if param is not None:
            assert response.json()["error"]["param"] == param
    output = run(stored, line("a"))["output_file_id"]
    response = stored.http.post("/v1/batches", json={**good, "input_file_id": output})
    assert response.status_code == 400 and "batch_output" in response.json()["error"]["message"]
    for query in ("limit=0", "limit=101", "order=asc", "after=x"):
        assert stored.http.get(f"/v1/batches?{query}").status_code in (400, 404)


def test_cancelling_keeps_what_is_done(client: OpenAI, stored: StoredServer) -> None:
    started = threading.Semaphore(0)

    async def only_ten(call: Any) -> None:
        started.release()
        if stored.engine.calls.index(call) >= 10:
            await asyncio.Event().wait()

    stored.engine.before = only_ten
    batch_id = stored.create(stored.upload(b"".join(line(f"n{n}") for n in range(200)))["id"])["id"]
    wait_for_lines(stored, batch_id, 10)
    assert client.batches.cancel(batch_id).status == "cancelling"
    batch = stored.wait(batch_id)
    assert batch["status"] == "cancelled" and batch["cancelling_at"] and batch["cancelled_at"]
    assert batch["request_counts"] == {"total": 200, "completed": 10, "failed": 0}
    assert [each["custom_id"] for each in stored.lines(batch["output_file_id"])] == [f"n{n}" for n in range(10)]
    assert batch["error_file_id"] is None
    # What was running has been aborted.
    assert all(call.closed.is_set() for call in stored.engine.calls)
    assert len(stored.engine.calls) <= 10 + LINES_AT_A_TIME


def test_a_batch_that_waits_can_be_cancelled_or_fail_meanwhile(stored: StoredServer) -> None:
    released = block(stored)
    first = stored.create(stored.upload(line("a"))["id"])["id"]
    second = stored.create(stored.upload(line("b"))["id"])["id"]
    broken = stored.create(stored.upload(b"{")["id"])["id"]
    assert stored.wait(broken)["status"] == "failed"
    stored.http.post(f"/v1/batches/{second}/cancel")
    assert stored.wait(second)["request_counts"] == {"total": 1, "completed": 0, "failed": 0}
    assert stored.batch(first)["status"] == "in_progress"
    released.set()
    assert stored.wait(first)["status"] == "completed"


def test_unfinished_batches_are_bounded_and_old_ones_forgotten(stored: StoredServer) -> None:
    released = block(stored)
    file_id = stored.upload(line("a"))["id"]
    batches = [stored.create(file_id) for _ in range(LIMITS.unfinished_batches)]
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    response = stored.http.post("/v1/batches", json=body)
    assert response.status_code == 429 and "cancel one" in response.json()["error"]["message"]
    response = stored.http.delete(f"/v1/files/{file_id}")
    assert response.status_code == 409 and batches[0]["id"] in response.json()["error"]["message"]
    released.set()
    for batch in batches:
        stored.wait(batch["id"])
    assert stored.http.delete(f"/v1/files/{file_id}").status_code == 200
    file_id = stored.upload(b"{")["id"]
    for _ in range(LIMITS.batches):
        newest = stored.wait(stored.create(file_id)["id"])["id"]
    listed = stored.http.get("/v1/batches?limit=100").json()
    assert len(listed["data"]) == LIMITS.batches and not listed["has_more"]
    assert listed["first_id"] == newest
    assert stored.http.get(f"/v1/batches/{batches[0]['id']}").status_code == 404


def test_expiry_says_which_lines_were_not_run(stored: StoredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_five(call: Any) -> Any:
        return asyncio.Event().wait() if stored.engine.calls.index(call) >= 5 else None

    stored.engine.before = only_five
    batch_id = stored.create(stored.upload(b"".join(line(f"n{n}") for n in range(60)))["id"])["id"]
    wait_for_lines(stored, batch_id, 5)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 24 * 3600 + 1)
    # Something else to look at wakes the runner; else it looks at the clock now and then.
    stored.create(stored.upload(b"{")["id"])
    batch = stored.wait(batch_id)
    assert batch["status"] == "expired" and batch["expired_at"] is not None
    assert batch["request_counts"] == {"total": 60, "completed": 5, "failed": 0}
    assert len(stored.lines(batch["output_file_id"])) == 5
    rest = stored.lines(batch["error_file_id"])
    assert [each["custom_id"] for each in rest] == [f"n{n}" for n in range(5, 60)]
    assert all(each["response"] is None and each["error"]["code"] == "batch_expired" for each in rest)


def test_an_expired_batch_whose_input_is_lost_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_stored(tmp_path) as stored:
        stored.engine.unavailable = "The engine is starting."
        file_id = stored.upload(line("a"))["id"]
        batch_id = stored.create(file_id)["id"]
        stored.wait(batch_id, ["in_progress"])
    (tmp_path / "files" / file_id).unlink()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 24 * 3600 + 1)
    with serving_stored(tmp_path) as stored:
        assert stored.wait(batch_id)["status"] == "expired"
        assert stored.wait(stored.create(stored.upload(line("a"))["id"])["id"])["status"] == "completed"


def test_no_more_lines_run_than_a_step_can_use(stored: StoredServer) -> None:
    running = most = 0
    full = asyncio.Event()

    async def count(call: Any) -> None:
        nonlocal running, most
        if call.outputs == 0:
            running += 1
            most = max(most, running)
            if running == LINES_AT_A_TIME and not full.is_set():
                # One more, if it were begun, would come meanwhile.
                await asyncio.sleep(0.1)
                full.set()
            await full.wait()
            running -= 1

    stored.engine.before = count
    batch = run(stored, b"".join(line(f"n{n}") for n in range(300)))
    assert batch["request_counts"]["completed"] == 300 and len(stored.engine.calls) == 300
    assert most == LINES_AT_A_TIME
    metrics = stored.http.get("/metrics").text
    assert "penstock_batch_lines_running 0.0" in metrics
    assert 'penstock_batch_lines_total{outcome="completed"}' in metrics


def test_a_batch_whose_results_do_not_fit_fails_with_what_it_has(tmp_path: Path) -> None:
    limits = StorageQuota(total_bytes=30_000)
    with serving_stored(tmp_path, limits=limits) as stored:
        batch = run(stored, b"".join(line(f"n{n}", return_token_ids=True) for n in range(100)))
        assert batch["status"] == "failed"
        assert [each["code"] for each in batch["errors"]["data"]] == ["storage_limit_reached"]
        done = batch["request_counts"]["completed"]
        assert 0 < done < 100 and len(stored.lines(batch["output_file_id"])) == done


def test_what_was_not_finished_goes_on_at_the_next_start(tmp_path: Path) -> None:
    with serving_stored(tmp_path) as stored:

        def first_half(call: Any) -> Any:
            return asyncio.Event().wait() if call.prompt[0] >= 20 else None

        stored.engine.before = first_half
        contents = b"".join(line(f"n{n}", prompt=[n]) for n in range(40))
        batch_id = stored.create(stored.upload(contents)["id"])["id"]
        waiting = stored.create(stored.upload(line("last"))["id"])["id"]
        wait_for_lines(stored, batch_id, 20)
    with serving_stored(tmp_path) as stored:
        batch = stored.wait(batch_id)
        assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        assert [each["custom_id"] for each in stored.lines(batch["output_file_id"])] == [f"n{n}" for n in range(40)]
        assert stored.wait(waiting)["status"] == "completed"
        assert sorted(call.prompt[0] for call in stored.engine.calls) == [5, *range(20, 40)]
        lost = stored.create(stored.upload(line("a"))["id"])
        stored.wait(lost["id"])


def test_a_gateway_has_its_lines_in_the_background(stored: StoredServer) -> None:
    """As those of the server's own batches: behind all that is no line, in the order of the priorities they ask for."""
    for priority in (0, 3):
        body = {"prompt": [5], "max_tokens": 1, "priority": priority}
        answer = stored.http.post("/v1/completions", json=body, headers={BACKGROUND.decode(): "1"})
        assert answer.status_code == 200
    assert stored.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 1}).status_code == 200
    first, second, other = [call.standing.priority for call in stored.engine.calls]
    assert other == 0 and BACKGROUND_PRIORITY <= first == second - 3
    refused = stored.http.post("/v1/completions", json={"prompt": [5]}, headers={BACKGROUND.decode(): "yes"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == BACKGROUND.decode()


def test_an_input_that_is_lost_fails_its_batch(tmp_path: Path) -> None:
    with serving_stored(tmp_path) as stored:
        stored.engine.unavailable = "The engine is starting."
        file_id = stored.upload(line("a"))["id"]
        batch_id = stored.create(file_id)["id"]
        stored.wait(batch_id, ["in_progress"])
    (tmp_path / "files" / file_id).unlink()
    with serving_stored(tmp_path) as stored:
        assert [each["code"] for each in stored.wait(batch_id)["errors"]["data"]] == ["input_file_lost"]
        assert stored.wait(stored.create(stored.upload(line("a"))["id"])["id"])["status"] == "completed"
