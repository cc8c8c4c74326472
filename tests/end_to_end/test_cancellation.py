"""Whatever ends a request, and at whatever stage: the engine stops, its blocks are free, and it ends once."""

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.leaving import sent
from support.live_server import RunningServer, serving
from support.operator import Operator
from support.waiting import PATIENCE, until

PROMPT = [7] * 40
LONG_PROMPT = [9] * 1900
OUTCOMES = "penstock_requests_total"
# For a test that stops the engine, and lets it go on when it likes.
STOPS_ARE_PASSED_OVER = "from penstock.engine import stops; stops.MOST_STOPPED = 1 << 60"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("admin")


@pytest.fixture(scope="module")
def narrow(served_checkpoint: Path, folder: Path) -> Iterator[RunningServer]:
    """Two sequences at a time, and prompts in small steps."""
    options = ("--threads", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--stall-timeout", "1")
    with serving(served_checkpoint, *options, "--admin-socket", str(folder / "socket")) as server:
        yield server


@pytest.fixture
def operator(narrow: RunningServer, folder: Path) -> Operator:
    return Operator(folder / "socket")


@pytest.fixture
def idle(narrow: RunningServer) -> Iterator[RunningServer]:
    """The same, with nothing left of the test at its end."""
    yield narrow
    is_idle(narrow)


def is_idle(server: RunningServer) -> None:
    server.wait_for("penstock_requests_in_flight", 0)
    for name in ("penstock_requests_running", "penstock_requests_waiting", "penstock_kv_blocks_used"):
        server.wait_for(name, 0)
    # It does nothing any more, instead of computing what nobody waits for.
    steps = server.metric("penstock_engine_steps_total")
    time.sleep(0.1)
    assert server.metric("penstock_engine_steps_total") - steps <= 1


def body_of(stage: str, **fields: Any) -> dict[str, Any]:
    prompt = LONG_PROMPT if stage == "prefill" else PROMPT
    return {
        "prompt": prompt,
        "max_tokens": 2040 - len(prompt),
        "ignore_eos": True,
        "temperature": 0,
        "cache_salt": str(time.monotonic_ns()),
        **fields,
    }


@contextlib.contextmanager
def occupied(server: RunningServer, operator: Operator, stage: str) -> Iterator[None]:
    """Where a request is to wait in the queue, others have both places; the engine is paused."""
    with operator.paused(), contextlib.ExitStack() as stack:
        if stage == "queued":
            for _ in range(2):
                stack.enter_context(sent(server.base, "/v1/completions", body_of("decode", stream=True)))
            operator.step_until(lambda: server.metric("penstock_requests_running") == 2)
        yield


def reach(server: RunningServer, operator: Operator, stage: str, answered: Callable[[], bool] = lambda: False) -> bool:
    """Until the request is where it is to end; whether it was there before it was answered."""
    before = server.metric("penstock_decode_tokens_total")
    until(lambda: answered() or server.metric("penstock_requests_waiting") == 1)
    if stage == "prefill":
        operator.step_until(lambda: answered() or server.metric("penstock_requests_running") == 1)
        assert server.metric("penstock_decode_tokens_total") == before
    elif stage == "decode":
        operator.step_until(lambda: answered() or server.metric("penstock_decode_tokens_total") > before + 3)
    return not answered()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["queued", "prefill", "decode"])
def test_a_client_that_goes(idle: RunningServer, operator: Operator, stage: str, stream: bool) -> None:
    ended = idle.metric(OUTCOMES)
    with occupied(idle, operator, stage):
        with sent(idle.base, "/v1/completions", body_of(stage, stream=stream)):
            reach(idle, operator, stage)
        idle.wait_for(OUTCOMES, ended + 1)
    is_idle(idle)
    assert idle.metric(OUTCOMES) == ended + (3 if stage == "queued" else 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["queued", "prefill", "decode"])
def test_a_deadline(idle: RunningServer, operator: Operator, stage: str, stream: bool) -> None:
    ended = idle.metric(OUTCOMES)
    with occupied(idle, operator, stage):
        answer, tries = late(idle, operator, stage, stream)
        assert answer.text.count("deadline_exceeded") == 1
        if stream and stage == "decode":
            assert answer.status_code == 200
            assert answer.text.count("[DONE]") == 1 and '"finish_reason":"length"' not in answer.text
        else:
            assert answer.status_code == 504
        # The answer comes when the engine has been told; it hears of it before its next step.
        assert idle.metric(OUTCOMES) == ended + tries
    is_idle(idle)


def late(server: RunningServer, operator: Operator, stage: str, stream: bool) -> tuple[httpx.Response, int]:
    """The answer to a request whose time runs out in a stage, while the engine is paused, and how many were sent.

    On a slow machine time can run out before the stage is reached; another one has twice as much then.
    """
    with ThreadPoolExecutor(1) as pool:
        for tries in itertools.count(1):
            body = body_of(stage, stream=stream, timeout=0.1 * 2**tries)
            answer = pool.submit(httpx.post, server.base + "/v1/completions", json=body, timeout=PATIENCE)
            if reach(server, operator, stage, answer.done):
                break
        return answer.result(PATIENCE), tries


def test_a_response_that_is_cancelled(idle: RunningServer) -> None:
    # Only what has begun has an id that a client knows, and a chance end of turn could come before the cancellation.
    body = {"input": "hello", "max_output_tokens": 1900, "ignore_eos": True, "stream": True}
    ended = idle.metric(OUTCOMES)
    host, port = idle.base.removeprefix("http://").split(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/responses", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        begun = b""
        while b"response.created" not in begun or not begun.endswith(b"\n\n"):
            begun += answer.read1(4096)
        name = json.loads(begun.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
        cancelled = idle.post(f"/v1/responses/{name}/cancel", {})
        assert cancelled["status"] == "cancelled"
        rest = (begun + answer.read()).decode()
    terminal = [word for word in ("response.completed", "response.failed", "response.incomplete") if word in rest]
    assert rest.count("event: response.cancelled") + len(terminal) == 1
    idle.wait_for(OUTCOMES, ended + 1)
    is_idle(idle)


def test_a_batch_that_is_cancelled(idle: RunningServer, operator: Operator) -> None:
    """While some of its lines are computed, and others wait."""
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body_of("decode")}
        for number in range(6)
    ]
    contents = "\n".join(map(json.dumps, lines)).encode()
    with operator.paused(), httpx.Client(base_url=idle.base, timeout=PATIENCE) as http:
        file = http.post("/v1/files", files={"file": ("in.jsonl", contents)}, data={"purpose": "batch"}).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = http.post("/v1/batches", json=body).json()
        operator.step_until(lambda: idle.metric("penstock_requests_running") == 2)
        assert http.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
        until(lambda: http.get(f"/v1/batches/{batch['id']}").json()["status"] == "cancelled")
        batch = http.get(f"/v1/batches/{batch['id']}").json()
        assert batch["request_counts"] == {"total": 6, "completed": 0, "failed": 0}
        assert http.post(f"/v1/batches/{batch['id']}/cancel").status_code == 409
    is_idle(idle)


def test_an_answer_that_is_finished_and_not_read_holds_nothing(idle: RunningServer) -> None:
    ended = idle.metric(OUTCOMES)
    with sent(idle.base, "/v1/completions", body_of("decode", max_tokens=20, stream=True)):
        idle.wait_for(OUTCOMES, ended + 1)
        is_idle(idle)


def test_a_reader_that_stops_is_cut_off_with_the_engines_work_on_it(idle: RunningServer) -> None:
    before = idle.metric("penstock_generation_tokens_total")
    cancelled = 'penstock_requests_total{endpoint="completions",outcome="cancelled"}'
    was = float(httpx.get(idle.base + "/metrics").text.split(cancelled)[1].split("\n")[0])
    with sent(idle.base, "/v1/completions", body_of("decode", n=8, logprobs=20, stream=True, return_token_ids=True)):
        until(lambda: float(httpx.get(idle.base + "/metrics").text.split(cancelled)[1].split("\n")[0]) != was)
        is_idle(idle)
    assert idle.metric("penstock_generation_tokens_total") - before < 8 * 1999


def test_any_number_of_cancellations_leaves_nothing(idle: RunningServer) -> None:
    """At random points, by clients and deadlines at once."""
    ended = idle.metric(OUTCOMES)

    def leave(index: int) -> None:
        body = body_of("decode", max_tokens=60, n=1 + index % 3, stream=index % 2 == 0)
        if index % 3 == 0:
            body["timeout"] = 0.01 + index % 7 / 50
        with sent(idle.base, "/v1/completions", body) as connection:
            connection.settimeout(index % 11 / 40 + 0.001)
            with contextlib.suppress(TimeoutError):
                connection.recv(4096)

    threads = [threading.Thread(target=leave, args=(index,)) for index in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    # The server may not have taken the last ones yet.
    idle.wait_for(OUTCOMES, ended + 60)
    is_idle(idle)
    assert idle.metric(OUTCOMES) == ended + 60


def test_a_full_queue_is_refused_whatever_the_engine_does(served_checkpoint: Path, tmp_path: Path) -> None:
    options = ("--threads", "1", "--max-num-seqs", "1", "--max-queued-requests", "3")
    options += ("--admin-socket", str(tmp_path / "socket"))
    live = serving(served_checkpoint, *options, program=STOPS_ARE_PASSED_OVER)
    with live as server, contextlib.ExitStack() as stack:
        (engine,) = psutil.Process(server.process.pid).children()
        operator = Operator(tmp_path / "socket")
        operator.pause(True)
        stack.enter_context(sent(server.base, "/v1/completions", body_of("decode", stream=True)))
        operator.step_until(lambda: server.metric("penstock_requests_running") == 1)
        for _ in range(3):
            stack.enter_context(sent(server.base, "/v1/completions", body_of("decode", stream=True)))
        server.wait_for("penstock_requests_waiting", 3)
        engine.suspend()
        try:
            for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/embeddings", {"input": "x"})):
                answer = httpx.post(server.base + path, json=body, timeout=PATIENCE)
                assert answer.status_code == 503 and answer.json()["error"]["code"] == "queue_full"
                assert 1 <= int(answer.headers["retry-after"]) <= 60
        finally:
            engine.resume()
        stack.close()
        operator.pause(False)
        is_idle(server)
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})["object"] == "text_completion"
        assert server.metric("penstock_requests_refused_total") == 2
