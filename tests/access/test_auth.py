"""Who may ask: every route refuses whoever has no key, and what a tenant has is nobody else's. All over HTTP."""

import asyncio
import contextlib
import hashlib
import http.client
import itertools
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.routing import Route

from penstock.access.auth import KeysRequired
from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Bounds, Level, Tenant
from penstock.core.request import EVERYBODY
from penstock.http.error_bodies import Dialects
from penstock.server.app import create_app
from penstock.server.endpoints import ENDPOINTS
from penstock.server.page.files import PAGE_FILES
from penstock.server.paths import OPEN_PATHS
from penstock.text.tokenizer import Tokenizer
from support.documented import described_client
from support.http_server import running
from support.leaving import sent
from support.scripted_engine import Call
from support.stored_server import StoredServer, line, serving_stored
from support.waiting import PATIENCE, until

ALICE, BOB = "penstock-the-key-of-alice-0123456789", "penstock-the-key-of-bob-9876543210"
TWO = Level("key/alice", Bounds(max_concurrent_requests=2))
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")


def key_of(name: str, secret: str, **fields: Any) -> Key:
    return Key(Tenant(name=name, **fields), hashlib.sha256(secret.encode()).digest())


KEYS = Keyring([key_of("alice", ALICE, weight=2.0, levels=(TWO,)), key_of("bob", BOB)])


@pytest.fixture(scope="module")
def _keyed(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[StoredServer]:
    with serving_stored(tmp_path_factory.mktemp("keyed"), tokenizer, keys=KEYS) as server:
        yield server


@pytest.fixture
def keyed(_keyed: StoredServer) -> StoredServer:
    """The module's server, its engine's script as at first. Its client has no key."""
    _keyed.engine.calls.clear()
    _keyed.engine.before = None
    return _keyed


@contextlib.contextmanager
def client(server: StoredServer, key: str) -> Iterator[httpx.Client]:
    with described_client(server.url) as made:
        made.headers["authorization"] = f"Bearer {key}"
        yield made


@pytest.fixture
def alice(keyed: StoredServer) -> Iterator[httpx.Client]:
    with client(keyed, ALICE) as made:
        yield made


@pytest.fixture
def bob(keyed: StoredServer) -> Iterator[httpx.Client]:
    with client(keyed, BOB) as made:
        yield made


@dataclass
class Answer:
    """To a request whose target went out as it was written."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(server: StoredServer, method: str, target: str, **headers: str) -> Answer:
    """Send a request, whose target goes out as it is written."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.putrequest(method, target, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def routes(server: StoredServer) -> list[Route]:
    app = create_app(server.engine, None, keys=KEYS)
    assert all(isinstance(route, Route) for route in app.routes), "another kind of route needs a test of its own"
    return [route for route in app.routes if isinstance(route, Route)]


WRONG = (
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Bearer {ALICE[:-1]}"},
    {"authorization": f"Bearer {ALICE}x"},
    {"authorization": f"Bearer {ALICE.upper()}"},
    {"authorization": f"Bearer {hashlib.sha256(ALICE.encode()).hexdigest()}"},
    {"authorization": f"Basic {ALICE}"},
    {"authorization": ALICE},
    {"authorization": f"Bearer {ALICE}, Bearer {BOB}"},
    {"authorization": "Bearer " + "x" * 20_000},
    {"x-api-key": "wrong"},
    {"x-api-key": ""},
    {"x-api-key": f"Bearer {ALICE}"},
    # Where both are there, it is the first that counts.
    {"authorization": "Bearer wrong", "x-api-key": ALICE},
    {"cookie": f"authorization=Bearer {ALICE}"},
    {"proxy-authorization": f"Bearer {ALICE}"},
)


def test_every_route_refuses_every_method_without_a_key(keyed: StoredServer) -> None:
    seen = set()
    for route in routes(keyed):
        path = re.sub(r"\{[a-z:]+\}", "x", route.path)
        for method, headers in itertools.product(METHODS, WRONG[:4]):
            answer = ask(keyed, method, path, **headers)
            if path in OPEN_PATHS:
                assert answer.status == (200 if method in ("GET", "HEAD") else 405), (method, path)
            else:
                assert answer.status == 401, (method, path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    check_form(path, answer.body)
            seen.add(path)
    assert len(seen) == len({endpoint.path for endpoint in ENDPOINTS} | PAGE_FILES.keys())
    assert keyed.engine.calls == []


def check_form(path: str, body: bytes) -> None:
    answer = json.loads(body)
    if path in ("/translate", "/languages", "/embed", "/predict"):
        assert "API key" in answer["error"]
        assert answer.get("error_type") == ("Validation" if path in ("/embed", "/predict") else None)
        return
    assert "API key" in answer["error"]["message"]
    if path.startswith("/v1/messages"):
        assert answer["type"] == "error" and answer["error"]["type"] == "authentication_error"
    else:
        assert answer["error"]["code"] == "invalid_api_key" and answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("headers", WRONG)
def test_what_is_no_key(keyed: StoredServer, headers: dict[str, str]) -> None:
    answer = keyed.http.get("/v1/models", headers=headers)
    assert answer.status_code == 401
    for secret in (*headers.values(), ALICE, BOB):
        assert len(secret) < 8 or secret not in answer.text


def test_two_keys_in_one_request(keyed: StoredServer) -> None:
    for name, value in (("authorization", f"Bearer {ALICE}"), ("x-api-key", ALICE)):
        assert keyed.http.get("/v1/models", headers=[(name, value)]).status_code == 200
        assert keyed.http.get("/v1/models", headers=[(name, value), (name, value)]).status_code == 401


def test_only_the_open_paths_are_described_as_open() -> None:
    parts = {path for path in PAGE_FILES if path != "/"}
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.open} | parts == OPEN_PATHS


ODD = (
    *("//v1/models", "/v1//models", "/v1/models/", "/v1/./models", "/v1/x/../models", "/V1/MODELS", "/v1/models;x=1"),
    *("/v1/%6dodels", "/v1%2fmodels", "/%2e/v1/models", "/v1/models%00", "/v1/models%2f", "/v1/models?/health/live"),
    *("/health/live/", "//health/live", "/health//live", "/health/live/.", "/health/./live", "/health/live/.."),
    *("/Health/live", "/HEALTH/LIVE", "/health/live;", "/health/live%00", "/health/live%20", "/health/live%2f", "/x"),
    *("/health/live/../../v1/models", "/health/live%2f..%2f..%2fv1/models", "/health/live/%2e%2e/%2e%2e/v1/models"),
    *("//", "/.", "/index.html", "/page", "/page/", "/page/x", "/page/app.js/", "//page/app.js", "/page/../v1/models"),
    *("/page/%2e%2e/v1/models", "/page/..%2fv1/models", "/page/index.html", "/page/endpoints.py", "/PAGE/app.js"),
    *(
        "/health/",
        "//health",
        "/health/x",
        "/health/live/v1/models",
        "/v1/models%23/health/live",
        "/docs/",
        "/metrics/",
    ),
    *(
        "http://x/v1/models",
        "http://x/health/live/../../v1/models",
        "/v1/messages/../../health/live",
        "/%68ealth/ready/",
    ),
)


@pytest.mark.parametrize("target", ODD)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_odd_spellings_of_paths(keyed: StoredServer, target: str, method: str) -> None:
    assert ask(keyed, method, target).status == 401
    assert ask(keyed, method, target, authorization="Bearer wrong").status == 401


def test_spellings_that_are_the_open_paths_lead_there(keyed: StoredServer) -> None:
    for target in ("/health/live", "/health/%6cive", "/health/live?x=1", "http://x/health/live", "/%68ealth%2flive"):
        answer = ask(keyed, "GET", target)
        assert answer.status == 200, target


@pytest.mark.parametrize("host", ["x/health/live?", "x/health/live#", "health/live", "/health/live", "x@y/health/live"])
def test_the_host_header_changes_nothing(keyed: StoredServer, host: str) -> None:
    # They are no hosts, so nothing comes of them, with a key or without.
    assert ask(keyed, "GET", "/v1/models", host=host).status == 400
    assert ask(keyed, "GET", "/v1/models", host=host, authorization=f"Bearer {ALICE}").status == 400
    assert ask(keyed, "GET", "/v1/models", host="health").status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {ALICE}"},
        {"authorization": f"bearer {ALICE}"},
        {"authorization": f"BEARER  {ALICE} "},
        {"x-api-key": ALICE},
        {"authorization": f"Bearer {ALICE}", "x-api-key": "unused"},
    ],
)
def test_a_key_lets_in(keyed: StoredServer, headers: dict[str, str]) -> None:
    assert ask(keyed, "GET", "/v1/models", **headers).status == 200


def test_the_clients_of_openai_and_anthropic(keyed: StoredServer) -> None:
    def openai_of(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=key, max_retries=0)

    def anthropic_of(key: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=keyed.url, api_key=key, max_retries=0)

    with openai_of(ALICE) as good, openai_of("wrong") as bad:
        assert [model.id for model in good.models.list()] == ["scripted"]
        with pytest.raises(openai.AuthenticationError, match="API key"):
            bad.models.list()
    question: Any = {"model": "scripted", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    with anthropic_of(BOB) as good_too, anthropic_of("wrong") as bad_too:
        assert good_too.messages.count_tokens(model="scripted", messages=question["messages"]).input_tokens > 0
        with pytest.raises(anthropic.AuthenticationError, match="API key"):
            bad_too.messages.create(**question)


def test_a_body_is_not_read_for_nothing(keyed: StoredServer) -> None:
    host, port = keyed.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")


def test_a_tenant_reaches_the_engine(keyed: StoredServer, alice: httpx.Client, bob: httpx.Client) -> None:
    embedding = {"input": [[5, 6]]}
    salts = set()
    for asking, name, weight in ((alice, "alice", 2.0), (bob, "bob", 1.0)):
        for path, body in (
            ("/v1/completions", {"prompt": [5], "max_tokens": 1}),
            ("/v1/completions", {"prompt": [5], "max_tokens": 1, "cache_salt": "x", "priority": 3}),
            ("/v1/embeddings", embedding),
            ("/v1/embeddings", {**embedding, "cache_salt": "x"}),
        ):
            assert asking.post(path, json=body).status_code == 200
            standing = keyed.engine.calls[-1].standing
            assert (standing.tenant, standing.weight) == (name, weight)
            assert standing.priority == body.get("priority", 0)
            salts.add((name, body.get("cache_salt"), standing.cache_salt))
    assert len({salt for _, _, salt in salts}) == 4, "of each tenant, with and without a salt of its own"
    assert len(salts) == 4, "and always the same one"


def test_salts_are_checked_as_without_keys(alice: httpx.Client) -> None:
    for salt in ("", "x" * 257):
        answer = alice.post("/v1/completions", json={"prompt": [5], "cache_salt": salt})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "cache_salt", salt


def test_without_keys_everything_is_as_it_was(tmp_path: Path) -> None:
    with serving_stored(tmp_path) as server:
        for headers in ({}, {"authorization": f"Bearer {ALICE}"}, {"x-api-key": "unused"}):
            answer = server.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 1}, headers=headers)
            assert answer.status_code == 200
            assert server.engine.calls[-1].standing == EVERYBODY
        assert "security" not in server.http.get("/openapi.json").json()


def test_the_description_says_that_keys_are_needed(alice: httpx.Client) -> None:
    document = alice.get("/openapi.json").json()
    assert document["security"] == [{"bearer": []}, {"header": []}]
    assert document["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert document["paths"]["/health/live"]["get"]["security"] == []
    assert {"401", "429"} <= document["paths"]["/v1/completions"]["post"]["responses"].keys()


class Held:
    """Has the engine wait with each request, after so many outputs, until it is let go."""

    def __init__(self, server: StoredServer, after: int = 0) -> None:
        self._open = threading.Event()
        self._after = after
        self._engine = server.engine
        self._engine.before = self._wait

    async def _wait(self, call: Call) -> None:
        while call.outputs >= self._after and not self._open.is_set():
            await asyncio.sleep(0.005)

    def wait_for(self, calls: int) -> None:
        until(lambda: len(self._engine.calls) == calls, lambda: f"{len(self._engine.calls)} calls, and not {calls}")

    def let_go(self) -> None:
        self._open.set()


def start(asking: httpx.Client, **fields: object) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    body = {"prompt": [5], "max_tokens": 2, **fields}
    thread = threading.Thread(target=lambda: answers.append(asking.post("/v1/completions", json=body)))
    thread.start()
    return thread, answers


def test_requests_at_a_time_are_bounded(keyed: StoredServer, alice: httpx.Client, bob: httpx.Client) -> None:
    held = Held(keyed)
    running = [start(alice, stream=stream) for stream in (False, True)]
    held.wait_for(2)
    refused = alice.post("/v1/completions", json={"prompt": [5]})
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    question = {"model": "scripted", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    refused = alice.post("/v1/messages", json=question)
    assert refused.status_code == 429 and refused.json()["error"]["type"] == "rate_limit_error"
    # Looking is no work, nor is cancelling; and another tenant has its own limits.
    assert alice.get("/v1/models").status_code == 200
    assert alice.post("/v1/responses/resp_x/cancel").status_code == 404
    others = [start(bob) for _ in range(4)]
    held.wait_for(6)
    held.let_go()
    for thread, answers in (*running, *others):
        thread.join(PATIENCE)
        assert answers[0].status_code == 200
    # A client has all of an answer a moment before the server is done with it.
    until(lambda: alice.post("/v1/completions", json={"prompt": [5]}).status_code == 200)


def test_whoever_goes_away_or_fails_frees_a_place(keyed: StoredServer, alice: httpx.Client) -> None:
    for _ in range(5):
        assert alice.post("/v1/completions", json={"prompt": []}).status_code == 400
    held = Held(keyed)
    body = {"prompt": [5], "max_tokens": 2}
    for calls in (1, 2):
        with sent(keyed.url, "/v1/completions", body, {"Authorization": f"Bearer {ALICE}"}):
            held.wait_for(calls)
    held.let_go()
    until(lambda: alice.post("/v1/completions", json=body).status_code == 200)


def test_no_key_is_ever_written_down(
    keyed: StoredServer, alice: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = "penstock-some-other-secret"
    with caplog.at_level(logging.DEBUG):
        texts = [
            alice.post("/v1/completions", json={"prompt": [5], "max_tokens": 1}).text,
            alice.post("/v1/completions", json={"nonsense": 1}).text,
            keyed.http.get("/v1/models", headers={"authorization": f"Bearer {wrong}"}).text,
            keyed.http.get("/v1/models", headers={"authorization": wrong}).text,
            alice.get("/metrics").text,
            alice.get("/openapi.json").text,
            alice.get("/nowhere").text,
        ]
    written = caplog.text + "".join(texts)
    assert "tenant 'alice'" in caplog.text and "refused a request from 127.0.0.1" in caplog.text
    for secret in (ALICE, BOB, wrong):
        for form in (secret, hashlib.sha256(secret.encode()).hexdigest()):
            assert form not in written
    assert "alice" not in texts[4], "names are no labels"
    assert ALICE not in repr(KEYS) + repr(KEYS.find(ALICE.encode())) + repr(vars(KEYS))


def test_batches_run_as_their_owner(keyed: StoredServer, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving_stored(folder, keys=KEYS) as server, client(server, ALICE) as alice, client(server, BOB) as bob:
        server.http = alice
        file = server.upload(line("a") + line("b"))
        batch = server.wait(server.create(file["id"])["id"])
        assert batch["request_counts"]["completed"] == 2
        assert {(call.standing.tenant, call.standing.weight) for call in server.engine.calls} == {("alice", 2.0)}
        assert len(server.lines(batch["output_file_id"])) == 2
        for target in (file["id"], batch["output_file_id"]):
            assert bob.get(f"/v1/files/{target}/content").status_code == 404
        assert bob.get("/v1/files").json()["data"] == [] == bob.get("/v1/batches").json()["data"]
        refused = bob.post(
            "/v1/batches",
            json={"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"},
        )
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "file_not_found"


def test_a_batch_whose_key_is_gone_waits(tmp_path: Path) -> None:
    with serving_stored(tmp_path, keys=KEYS) as server, client(server, ALICE) as alice:
        server.http = alice
        server.engine.unavailable = "It is starting."
        batch = server.create(server.upload(line("a"))["id"])["id"]
        server.wait(batch, ("in_progress",))
    for keys in (None, Keyring([key_of("bob", BOB)])):
        with serving_stored(tmp_path, keys=keys) as server, client(server, BOB) as bob:
            server.http = bob
            own = server.wait(server.create(server.upload(line("a"))["id"])["id"])
            assert own["status"] == "completed", "others are not held up"
            assert len(server.engine.calls) == 1
            assert bob.get(f"/v1/batches/{batch}").status_code == 404
    with serving_stored(tmp_path, keys=KEYS) as server, client(server, ALICE) as alice:
        server.http = alice
        assert server.wait(batch)["status"] == "completed"
        assert [call.standing.tenant for call in server.engine.calls] == ["alice"]


def test_a_response_that_is_computed_is_its_owners(keyed: StoredServer, alice: httpx.Client, bob: httpx.Client) -> None:
    def check_hidden() -> None:
        for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            answer = bob.request(method, f"/v1/responses/{response_id}{path}")
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "response_not_found"
        assert alice.get(f"/v1/responses/{response_id}").json()["id"] == response_id
        again = bob.post("/v1/responses", json={"input": "hi", "previous_response_id": response_id})
        assert again.status_code == 400 and again.json()["error"]["code"] == "previous_response_not_found"

    held = Held(keyed, after=1)
    with alice.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as stream:
        pieces = stream.iter_text()
        found = re.search(r"resp_[0-9a-f]{32}", next(pieces))
        assert found is not None
        response_id = found[0]
        assert alice.get(f"/v1/responses/{response_id}").json()["status"] == "in_progress"
        check_hidden()
        held.let_go()
        assert "response.completed" in "".join(pieces)
    check_hidden()
    assert alice.delete(f"/v1/responses/{response_id}").status_code == 200


def test_other_connections_are_refused() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        for kind in ("lifespan", "websocket", "something"):
            await layer({"type": kind, "path": "/health/live", "headers": []}, None, send)  # type: ignore[arg-type]

    passed: list[str] = []
    sent: list[Any] = []
    layer = KeysRequired(app, Dialects(), KEYS, OPEN_PATHS)
    asyncio.run(main())
    assert passed == ["lifespan"] and {message["type"] for message in sent} == {"websocket.close"}


def test_an_app_without_keys_has_no_such_layer(keyed: StoredServer) -> None:
    assert all(each.cls is not KeysRequired for each in create_app(keyed.engine, None).user_middleware)
    with running(create_app(keyed.engine, None, keys=Keyring())) as url:
        assert httpx.get(f"{url}/v1/models").status_code == 200
