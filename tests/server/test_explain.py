"""Ids of requests on every answer, and explanations: of whose requests, and what they tell of prompts."""

import asyncio
import contextlib
import json
import logging
import queue
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.access.keys import Keyring, only_key
from penstock.core.config import Reason
from penstock.core.facts import PrefixFound
from penstock.observability.accounts import Accounts
from penstock.observability.monitor import Monitor
from penstock.observability.recent import Recent
from penstock.observability.request_ids import REQUEST_ID as REQUEST_ID_HERE
from penstock.server.admin import create_admin_app
from penstock.server.app import create_app
from penstock.text.chat_template import ChatTemplate
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.leaving import sent
from support.scripted_engine import ScriptedEngine
from support.stored_server import line, serving_stored
from support.waiting import PATIENCE, until

REQUEST_ID = re.compile(r"req_[0-9a-f]{24}")
KEY = "penstock-the-key-of-this-test-0123456789"


def explain(http: httpx.Client, request_id: str) -> dict[str, Any]:
    """What is told of a request that has ended."""
    while (told := http.get(f"/v1/requests/{request_id}/explain").json())["state"] != "ended":
        pass
    return told


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("GET", "/health/live", None),
        ("GET", "/nowhere", None),
        ("PATCH", "/v1/models", None),
        ("POST", "/v1/completions", {"prompt": "the fox"}),
        ("POST", "/v1/completions", {"prompt": "the fox", "stream": True}),
        ("POST", "/v1/completions", {"prompt": 7}),
        ("POST", "/v1/embeddings", {"input": "the fox"}),
        ("GET", "/metrics", None),
    ],
)
def test_every_answer_has_an_id_of_its_own(served: Any, method: str, path: str, body: Any) -> None:
    ids = {served.http.request(method, path, json=body).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2 and all(REQUEST_ID.fullmatch(each) for each in ids)


def test_so_has_one_to_what_is_no_request(served: Any) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        head = connection.makefile("rb").read().decode()
    assert REQUEST_ID.search(head)


def test_so_has_one_that_failed_and_the_log_says_why_under_it(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids: list[str] = []

    def fail(*arguments: object, **named: object) -> None:
        raise ValueError("of this test")

    def keep(record: logging.LogRecord) -> bool:
        ids.append(REQUEST_ID_HERE.get())
        return True

    monkeypatch.setattr(Monitor, "stats", fail)
    caplog.handler.addFilter(keep)
    with running(create_app(ScriptedEngine(tokenizer.table, [5]), tokenizer)) as url:
        answer = httpx.get(f"{url}/v1/stats")
    assert answer.status_code == 500 and "of this test" not in answer.text
    assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert "of this test" in caplog.text and set(ids) == {answer.headers["x-request-id"]}


def test_anthropic_s_clients_find_it_under_their_name(served: Any) -> None:
    body = {"model": "scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    answer = served.http.post("/v1/messages", json=body)
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    told = explain(served.http, answer.json()["id"])
    assert (told["endpoint"], told["response_id"]) == ("messages", answer.json()["id"])


def test_a_request_is_found_by_each_of_its_ids(served: Any) -> None:
    body = {"prompt": "the fox", "max_tokens": 5}
    answer = served.http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
    own = answer.headers["x-request-id"]
    assert REQUEST_ID.fullmatch(own)
    told = explain(served.http, own)
    assert (told["client_id"], told["response_id"], told["outcome"]) == ("mine-1", answer.json()["id"], "completed")
    assert (told["status"], told["error"], told["tenant"]) == (200, None, None)
    assert told["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    for name in (answer.json()["id"], "mine-1"):
        assert served.http.get(f"/v1/requests/{name}/explain").json()["id"] == own
    assert "the fox" not in json.dumps(told)


def test_an_id_of_a_client_s_may_have_slashes(served: Any) -> None:
    given = "a/b:7"
    answer = served.http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": given})
    for path in ("a%2Fb:7", given):
        told = served.http.get(f"/v1/requests/{path}/explain").json()
        assert (told["id"], told["client_id"]) == (answer.headers["x-request-id"], given)


def test_what_is_no_id_is_neither_kept_nor_repeated(served: Any) -> None:
    given = '{"x"}' + "y" * 200
    answer = served.http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": given})
    assert "yyy" not in str(answer.headers)
    assert explain(served.http, answer.headers["x-request-id"])["client_id"] is None


def test_refusals_are_explained_too(served: Any) -> None:
    answer = served.http.post("/v1/chat/completions", json={"messages": []})
    told = explain(served.http, answer.headers["x-request-id"])
    assert (told["outcome"], told["status"], told["prompts"]) == ("rejected", 400, 0)
    assert told["error"] == {"code": "invalid_parameter", "message": answer.json()["error"]["message"]}
    assert [phase["name"] for phase in told["timeline"]] == ["receive", "prepare"]


def test_whoever_leaves_before_the_answer_got_no_status(served: Any) -> None:
    served.engine.before = lambda call: call.closed.wait()
    body = {"prompt": "the fox", "max_tokens": 5}
    with sent(served.url, "/v1/completions", body, {"X-Request-Id": "left-1"}):
        until(lambda: served.engine.calls)
    told = explain(served.http, "left-1")
    assert (told["outcome"], told["status"], told["output_tokens"]) == ("cancelled", None, 0)


def test_what_runs_is_explained_as_far_as_it_got(served: Any) -> None:
    seen: list[dict[str, Any]] = []

    def look(call: Any) -> None:
        if call.outputs == 2:
            ids.put(True)
            assert done.get(timeout=PATIENCE)

    ids: queue.Queue[bool] = queue.Queue()
    done: queue.Queue[bool] = queue.Queue()

    async def before(call: Any) -> None:
        await asyncio.to_thread(look, call)

    served.engine.before = before
    with served.http.stream("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 5, "stream": True}) as answer:
        assert ids.get(timeout=PATIENCE)
        with described_client(served.url) as other:
            seen.append(other.get(f"/v1/requests/{answer.headers['x-request-id']}/explain").json())
        done.put(True)
        assert answer.read()
    (told,) = seen
    assert (told["outcome"], told["status"], told["output_tokens"]) == (None, None, 2)
    assert told["state"] != "ended"


def test_recent_requests_are_listed(served: Any) -> None:
    ids = [served.complete(max_tokens=2).headers["x-request-id"] for _ in range(3)]
    explain(served.http, ids[-1])
    listed = served.http.get("/v1/requests?limit=3").json()
    assert [each["id"] for each in listed["data"]] == ids[::-1]
    slowest = served.http.get("/v1/requests", params={"order": "slowest", "limit": 100}).json()["data"]
    seconds = [each["seconds"] for each in slowest if each["state"] == "ended"]
    assert seconds == sorted(seconds, reverse=True) and len(seconds) >= 3
    assert all(each["verdict"]["sentence"] for each in slowest)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=3", "limit=1&limit=2"])
def test_other_lists_are_refused_by_name(served: Any, query: str) -> None:
    answer = served.http.get(f"/v1/requests?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == query.partition("=")[0]


def test_a_line_of_a_batch_is_explained_too(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with serving_stored(tmp_path, tokenizer) as server:
        batch = server.wait(server.create(server.upload(line("mine", prompt="a"))["id"])["id"])
        result = json.loads(server.http.get(f"/v1/files/{batch['output_file_id']}/content").text)
        told = explain(server.http, result["response"]["request_id"])
    assert (told["endpoint"], told["client_id"], told["outcome"]) == ("completions", "mine", "completed")
    assert told["response_id"] == result["response"]["body"]["id"]


def test_a_request_that_nobody_knows_is_404(served: Any) -> None:
    answer = served.http.get("/v1/requests/req_none/explain")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    # Only what generates or embeds has an account.
    other = served.http.get("/v1/models").headers["x-request-id"]
    assert served.http.get(f"/v1/requests/{other}/explain").status_code == 404


class Differing(ScriptedEngine):
    """Its prefix cache had something else from the third token on."""

    missing: Any = "different"

    async def generate(self, prompt_token_ids: list[int], params: Any, **others: Any) -> Any:
        follow = others.pop("follow")

        def told(journal: Any) -> None:
            journal.prefix = PrefixFound(96, 2, self.missing, 2 if self.missing == "different" else None, 5)
            journal.admitted = journal.submitted
            follow(journal)

        async for output in super().generate(prompt_token_ids, params, **others, follow=told):
            yield output


@contextlib.contextmanager
def serving(tokenizer: Tokenizer, *, keep: bool, missing: str = "different") -> Iterator[tuple[str, str]]:
    """A server with keys, and its operator's application: their addresses."""
    engine = Differing(tokenizer.table, [5, 6])
    engine.missing = missing
    accounts = Accounts(engine, Recent(keep_prompts=keep), lambda tokens: tokenizer.decode(tokens, False))
    keys = Keyring([only_key(KEY)])
    app = create_app(engine, tokenizer, template=ChatTemplate("x"), keys=keys, accounts=accounts)
    admin = create_admin_app({"scripted": engine}, [Reason("a", "b", "c")], [accounts])  # type: ignore[dict-item]
    with running(app) as url, running(admin) as operator:
        yield url, operator


@pytest.mark.parametrize("keep", [False, True])
def test_the_token_that_differs_is_told_to_its_owner(tokenizer: Tokenizer, keep: bool) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with serving(tokenizer, keep=keep) as (url, operator), described_client(url) as http, httpx.Client() as other:
        answer = http.post("/v1/completions", json={"prompt": [9, 8, 7, 6], "max_tokens": 2}, headers=headers)
        http.headers.update(headers)
        told = explain(http, answer.headers["x-request-id"])
        prefix = told["prefix"]
        assert (prefix["position"], prefix["asked"]["id"], prefix["cached"]["id"]) == (2, 7, 5)
        assert prefix["asked"]["text"] == tokenizer.decode([7], False)
        assert told["tenant"] is None
        assert told["prompt_text"] == (tokenizer.decode([9, 8, 7, 6], False) if keep else None)
        # The operator sees whose it is, and of prompts what is kept with them only.
        seen = other.get(f"{operator}/v1/requests/{told['id']}/explain").json()
        assert seen["tenant"] == "default" and seen["prefix"]["position"] == 2
        assert (seen["prefix"]["asked"] is not None) == (seen["prefix"]["cached"] is not None) == keep
        assert [each["tenant"] for each in other.get(f"{operator}/v1/requests").json()["data"]] == ["default"]


def test_what_other_tenants_have_is_told_to_the_operator_only(tokenizer: Tokenizer) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with serving(tokenizer, keep=False, missing="other_tenant") as (url, operator), httpx.Client() as http:
        answer = http.post(f"{url}/v1/completions", json={"prompt": [9, 8, 7], "max_tokens": 2}, headers=headers)
        path = f"/v1/requests/{answer.headers['x-request-id']}/explain"
        assert http.get(url + path, headers=headers).json()["prefix"]["missing"] == "unseen"
        assert http.get(operator + path).json()["prefix"]["missing"] == "other_tenant"
        refused = http.get(url + path)
        assert refused.status_code == 401 and REQUEST_ID.fullmatch(refused.headers["x-request-id"])


def test_a_line_of_the_log_for_each_request(served: Any) -> None:
    records: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = logging.Handler()
    handler.emit = records.put  # type: ignore[method-assign]
    logger = logging.getLogger("penstock.server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        body = {"prompt": "a", "max_tokens": 3}
        answer = served.http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"}).json()
        first = records.get(timeout=PATIENCE)
        served.chat(messages=[])
        second = records.get(timeout=PATIENCE)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    fields = first.fields  # type: ignore[attr-defined]
    assert fields["endpoint"] == "completions" and fields["outcome"] == "completed" and fields["status"] == 200
    assert (fields["response_id"], fields["client_id"], fields["output_tokens"]) == (answer["id"], "mine", 3)
    assert fields["seconds"] >= fields["time_to_first_token"] > 0 and fields["cause"]
    assert first.getMessage().startswith(f"{answer['id']} completed: ") and "3 output tokens" in first.getMessage()
    fields = second.fields  # type: ignore[attr-defined]
    assert (fields["outcome"], fields["status"], fields["error"]) == ("rejected", 400, "invalid_parameter")
    assert second.getMessage().startswith("chat request rejected: 400 messages: is empty")
