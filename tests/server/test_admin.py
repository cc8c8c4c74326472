"""The operator's socket: whose it is, what it tells, and what it makes happen to a real engine."""

import os
import socket
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from penstock.core.errors import AddressInUse, ConfigurationError
from penstock.server.admin import admin_socket
from support.checkpoints import make
from support.live_server import RunningServer, serving
from support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("admin") / "socket"


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = make("llama", tmp_path_factory.mktemp("models") / "tiny-llama", max_position_embeddings=2048)
    with serving(model, "--threads", "1", "--admin-socket", str(place)) as running:
        yield running
    assert not place.exists()


@pytest.fixture
def admin(server: RunningServer, place: Path) -> Iterator[httpx.Client]:
    until(place.exists)
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(place)), base_url="http://admin", timeout=PATIENCE
    ) as client:
        yield client


def test_only_this_user_can_open_it(admin: httpx.Client, place: Path) -> None:
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert place.stat().st_uid == os.getuid()


def test_settings_and_invariants(admin: httpx.Client) -> None:
    settings = {each["setting"]: each for each in admin.get("/config").json()}
    assert settings["threads"]["value"] == "1" and settings["threads"]["why"] == "as asked"
    found = admin.get("/invariants").json()
    assert found["sound"] is True and found["problem"] is None and found["load"]["blocks_total"] > 0


def test_a_paused_engine_lets_requests_wait_and_is_not_taken_for_stuck(
    admin: httpx.Client, server: RunningServer
) -> None:
    request = {"model": "tiny-llama", "prompt": "x", "max_tokens": 3}
    assert admin.post("/pause", json={"paused": True}).json() == {"paused": True, "after_steps": 0}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.post, "/v1/completions", request)
        server.wait_for("penstock_requests_waiting", 1)
        # For longer than an engine may stand still, as its own looks count.
        time.sleep(4.0)
        server.wait_until_ready()
        assert not waiting.done() and server.metric("penstock_engine_restarts_total") == 0
        assert admin.get("/invariants").json()["load"]["waiting"] == 1
        admin.post("/pause", json={"paused": False})
        assert waiting.result(timeout=PATIENCE)["choices"]


def test_an_engine_is_paused_after_as_many_steps_as_it_is_told(admin: httpx.Client, server: RunningServer) -> None:
    request = {"model": "tiny-llama", "prompt": "x", "max_tokens": 6, "seed": 1, "ignore_eos": True}
    before = server.metric("penstock_generation_tokens_total")
    admin.post("/pause", json={"paused": True})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.post, "/v1/completions", request)
        server.wait_for("penstock_requests_waiting", 1)
        for after_steps, tokens in ((2, 2), (1, 3), (0, 3)):
            answer = admin.post("/pause", json={"paused": True, "after_steps": after_steps})
            assert answer.json() == {"paused": True, "after_steps": after_steps}
            server.wait_for("penstock_generation_tokens_total", before + tokens)
            # The engine has looked for something to do since, and found that it is paused.
            assert admin.get("/invariants").json()["load"]["running"] == 1
            assert server.metric("penstock_generation_tokens_total") == before + tokens
        admin.post("/pause", json={"paused": False})
        assert waiting.result(timeout=PATIENCE)["usage"]["completion_tokens"] == 6


def test_an_engine_that_is_made_to_fail_is_replaced(admin: httpx.Client, server: RunningServer) -> None:
    request = {"model": "tiny-llama", "prompt": "x", "max_tokens": 20, "seed": 1, "ignore_eos": True}
    expected = server.post("/v1/completions", request)["choices"]
    points = admin.get("/fail-points").json()
    assert "engine.step" in points
    armed = admin.post("/fail-points", json={"point": "engine.step", "action": "exit", "passes": 5})
    assert armed.json() == {"armed": "engine.step", "action": "exit", "passes": 5, "rank": 0}
    assert server.post("/v1/completions", request)["choices"] == expected
    assert server.metric("penstock_engine_restarts_total") == 1
    assert admin.get("/invariants").json()["sound"] is True


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/fail-points", {"point": "nowhere", "action": "exit"}, "'nowhere' is not one of engine.step, engine.send"),
        ("/fail-points", {"point": "engine.step", "action": "explode"}, "action: "),
        ("/fail-points", {"point": "engine.step"}, "action: is missing"),
        ("/fail-points", {"point": "engine.step", "action": "exit", "rank": 1}, "rank 0 of 1"),
        ("/fail-points", {"point": "rank.step", "action": "kill"}, "is not one of engine.step, engine.send"),
        ("/pause", {"paused": "yes"}, "paused: "),
        ("/pause", {}, "paused: is missing"),
        ("/pause", {"paused": True, "after_steps": -1}, "after_steps: "),
        ("/pause", {"paused": False, "after_steps": 1}, "steps are counted until a pause"),
    ],
)
def test_refusals_say_what_is_wrong(admin: httpx.Client, path: str, body: object, message: str) -> None:
    answer = admin.post(path, json=body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_nothing_of_it_is_on_the_network(admin: httpx.Client, server: RunningServer) -> None:
    for path in ("/config", "/invariants", "/fail-points", "/pause"):
        assert httpx.get(server.base + path).status_code == 404


def test_a_path_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigurationError, match="no socket"), admin_socket(file):
        pass
    assert file.read_text() == "mine"
    with pytest.raises(ConfigurationError, match="cannot be used"), admin_socket(tmp_path / "no" / "folder"):
        pass
    place = tmp_path / "socket"
    with admin_socket(place), pytest.raises(AddressInUse), admin_socket(place):
        pass
    # One that a killed server has left behind is no obstacle.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(place))
    with admin_socket(place):
        assert place.exists()
    assert not place.exists()
