"""Names that a server is reached by, and pages that use it through somebody's browser."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from penstock.access.keys import Keyring, only_key
from penstock.http.cross_origin import is_private
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE

KEY = "sk-0123456789abcdef0123456789abcdef"
HTTP = httpx.Client(timeout=PATIENCE)
PROMPT = {"prompt": [5], "max_tokens": 1}


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    with HTTP:
        yield


@pytest.fixture(scope="module")
def local(tokenizer: Tokenizer) -> Iterator[str]:
    with running(create_app(ScriptedEngine(tokenizer.table, [5]), tokenizer, local=True)) as url:
        yield url


@pytest.fixture(scope="module")
def open_to_all(tokenizer: Tokenizer) -> Iterator[str]:
    with running(create_app(ScriptedEngine(tokenizer.table, [5]), tokenizer)) as url:
        yield url


@pytest.fixture(scope="module")
def keyed(tokenizer: Tokenizer) -> Iterator[str]:
    with running(create_app(ScriptedEngine(tokenizer.table, [5]), tokenizer, keys=Keyring([only_key(KEY)]))) as url:
        yield url


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1",
        "127.0.0.1:8000",
        "[::1]",
        "[::1]:8000",
        "[fe80::1]",
        "192.168.1.5:80",
        "localhost",
        "LOCALHOST:1",
    ]
    + ["localhost.", "app.localhost", "penstock", "penstock:8000", "nas.local", "host.docker.internal:8000"]
    + [socket.gethostname()],
)
def test_names_that_no_stranger_can_have(local: str, host: str) -> None:
    assert is_private(host, {socket.gethostname().lower()})
    assert HTTP.get(f"{local}/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil.local.example"]
    + ["0x7f.1", "evil.example.", "eviLLOCALHOST.com", "internal.evil"],
)
def test_a_page_that_makes_its_name_mean_this_machine_gets_nothing(
    local: str, open_to_all: str, keyed: str, host: str
) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/messages"), ("GET", "/health/live"), ("GET", "/x")):
        answer = HTTP.request(method, local + path, headers={"host": host})
        assert answer.status_code == 403 and "--no-auth" in answer.text
    assert HTTP.get(f"{open_to_all}/v1/models", headers={"host": host}).status_code == 200
    headers = {"host": host, "authorization": f"Bearer {KEY}"}
    assert HTTP.get(f"{keyed}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "https://behind-a-proxy.example"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "null"}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://HOST"}, 200),
        ({"origin": "http://HOST.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "chrome-extension://abcdef", "sec-fetch-site": "cross-site"}, 200),
        ({"origin": "app://."}, 200),
    ],
)
def test_pages_of_other_sites_compute_nothing(
    local: str, open_to_all: str, headers: dict[str, str], status: int
) -> None:
    for url in (local, open_to_all):
        host = url.removeprefix("http://")
        sent = {name: value.replace("HOST", host) for name, value in headers.items()}
        answer = HTTP.post(f"{url}/v1/completions", json=PROMPT, headers=sent)
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "foreign_page"
        # They may ask for what they cannot read.
        read = HTTP.get(f"{url}/v1/models", headers=sent)
        assert read.status_code == 200
        assert not any(name.startswith("access-control-") for name in (*answer.headers, *read.headers))
        asked = HTTP.options(f"{url}/v1/completions", headers={**sent, "access-control-request-method": "POST"})
        assert asked.status_code == 405 and not any(name.startswith("access-control-") for name in asked.headers)


def test_with_keys_a_page_has_none(keyed: str) -> None:
    sent = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert HTTP.post(f"{keyed}/v1/completions", json=PROMPT, headers=sent).status_code == 401
    sent["authorization"] = f"Bearer {KEY}"
    assert HTTP.post(f"{keyed}/v1/completions", json=PROMPT, headers=sent).status_code == 200


def test_nothing_is_made_of_the_host_or_of_what_proxies_add(open_to_all: str) -> None:
    names = {"host": "evil.example", "x-forwarded-for": "192.0.2.77", "forwarded": "for=192.0.2.77;host=evil.example"}
    names |= {"x-forwarded-host": "evil.example", "x-forwarded-proto": "https", "x-forwarded-prefix": "/evil"}
    names |= {"x-original-url": "/metrics", "x-rewrite-url": "/metrics", "x-http-method-override": "DELETE"}
    for method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS"):
        for path in (
            "/v1/models",
            "/v1/models/",
            "/health/live/",
            "/docs",
            "/docs/",
            "/openapi.json",
            "/x",
            "/v1/messages/",
        ):
            answer = HTTP.request(method, open_to_all + path, headers=names)
            assert answer.status_code in (200, 404, 405, 415), (method, path)
            for trace in (str(answer.headers), answer.text):
                assert "evil" not in trace and "192.0.2.77" not in trace
