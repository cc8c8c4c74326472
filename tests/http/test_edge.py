"""What stands between a server and its clients: proxies, and browsers with pages of other origins."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from penstock.access.keys import Keyring, only_key
from penstock.core.errors import ConfigurationError
from penstock.http.edge import EdgeOptions
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine

KEY = "sk-0123456789abcdef0123456789abcdef"
PAGE = "https://chat.example.org"
PROMPT = {"prompt": [5], "max_tokens": 1, "prompt_cache_key": "x"}
Server = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[Server]:
    with ExitStack() as stack:

        def start(*, keyed: bool = False, **options: object) -> httpx.Client:
            edge = EdgeOptions(**options).check()  # type: ignore[arg-type]
            keys = Keyring([only_key(KEY)]) if keyed else None
            app = create_app(
                ScriptedEngine(tokenizer.table, [5]),
                tokenizer,
                allowed_origins=edge.allowed_origins,
                keys=keys,
                local=True,
            )
            return stack.enter_context(httpx.Client(base_url=stack.enter_context(running(app, edge=edge))))

        yield start


def preflight(http: httpx.Client, origin: str) -> httpx.Response:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    return http.options("/v1/completions", headers={"origin": origin, **asked})


@pytest.mark.parametrize("keyed", [False, True])
def test_pages_of_allowed_origins_may_use_it(server: Server, keyed: bool) -> None:
    http = server(keyed=keyed, allowed_origins=(PAGE,))
    headers = {"origin": PAGE, **({"authorization": f"Bearer {KEY}"} if keyed else {})}
    # Browsers send no key with the question whether they may send one.
    allowed = preflight(http, PAGE)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
    for path, status in (("/v1/completions", 200), ("/v1/nowhere", 404)):
        answer = http.post(path, json=PROMPT, headers={**headers, "sec-fetch-site": "cross-site"})
        assert answer.status_code == status, answer.text
        assert answer.headers["access-control-allow-origin"] == PAGE
        exposed = answer.headers["access-control-expose-headers"]
        assert "x-request-id" in exposed and "x-penstock-ignored" in exposed
    other = "https://other.example.org"
    assert "access-control-allow-origin" not in preflight(http, other).headers
    answer = http.post("/v1/completions", json=PROMPT, headers={**headers, "origin": other})
    assert answer.status_code == (200 if keyed else 403)
    assert "access-control-allow-origin" not in answer.headers


def test_all_pages_may_use_it_where_that_is_asked_for(server: Server) -> None:
    http = server(allowed_origins=("*",))
    answer = http.post("/v1/completions", json=PROMPT, headers={"origin": PAGE, "sec-fetch-site": "cross-site"})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "*"


def test_without_allowed_origins_nothing_is_said_to_pages(server: Server) -> None:
    http = server()
    assert "access-control-allow-origin" not in preflight(http, PAGE).headers
    assert http.post("/v1/completions", json=PROMPT, headers={"origin": PAGE}).status_code == 403


def test_a_proxy_has_it_below_a_path(server: Server) -> None:
    http = server(root_path="/llm")
    # Proxies leave the path's beginning out, or pass it on.
    for root in ("", "/llm"):
        assert http.get(f"{root}/health/live").status_code == 200
        assert http.get(f"{root}/page/app.js").status_code == 200
        assert http.get(f"{root}/v1/models/scripted").json()["id"] == "scripted"
        assert http.post(f"{root}/v1/completions", json=PROMPT).status_code == 200
        # Errors have the form of their API.
        assert http.post(f"{root}/v1/messages", json={}).json()["type"] == "error"
    assert http.get("/llmx/health/live").status_code == 404
    # What the page and the documents refer to is beside them, wherever that is.
    for path in ("/", "/docs"):
        text = http.get(path).text
        assert 'href="/' not in text and 'src="/' not in text


def test_connections_without_a_request_are_closed_after_their_time(server: Server) -> None:
    address = urlsplit(str(server(keep_alive_timeout=0.05).base_url))
    with socket.create_connection((address.hostname, address.port), timeout=600) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allowed_origins": ("chat.example.org",)}, "--allowed-origin 'chat.example.org' is not an origin"),
        ({"allowed_origins": ("https://chat.example.org/",)}, "without a path"),
        ({"allowed_origins": ("https://Chat.Example.org",)}, "is sent by browsers as https://chat.example.org; write"),
        ({"allowed_origins": ("https://chat.example.org:443",)}, "browsers as https://chat.example.org; write"),
        ({"root_path": "llm"}, "--root-path 'llm' is not a path like /llm"),
        ({"root_path": "/llm/"}, "without a / at its end"),
        ({"keep_alive_timeout": 0.0}, "--keep-alive-timeout is 0"),
        ({"keep_alive_timeout": float("nan")}, "--keep-alive-timeout is nan"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        EdgeOptions(**options).check()  # type: ignore[arg-type]
    assert words in error.value.message


def test_each_setting_has_its_reason() -> None:
    told = {reason.setting: (reason.value, reason.why) for reason in EdgeOptions(root_path="/llm").reasons}
    assert told["root path"] == ("/llm", "as asked")
    assert told["keep alive timeout"][0] == "75 s" and "60 s" in told["keep alive timeout"][1]
    assert all(why != "as asked" for setting, (_, why) in told.items() if setting != "root path")
