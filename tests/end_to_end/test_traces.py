"""Traces of a real server, as a collector gets them."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.collector import Collector, Received, collecting
from support.documented import described_client
from support.http_server import free_port
from support.live_server import RunningServer, serving
from support.operator import Operator
from support.waiting import PATIENCE

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, ERROR = 2, 2
WORDS = "zebras whisper quietly"
SECONDS = 1e9
# The limits of time for a message, and for what is left at the end, are those that only a hang reaches.
PATIENT = (
    f"import penstock.observability.tracing as tracing; tracing._EXPORT_SECONDS = tracing.FLUSH_SECONDS = {PATIENCE}"
)
# However long the test takes, it is within one minute of the log.
ONE_LINE = f"import penstock.observability.tracing as tracing; tracing._LINE_SECONDS = {PATIENCE}"


class Traced:
    """A server, its client, and the collector of its traces."""

    def __init__(self, server: RunningServer, http: httpx.Client, collector: Collector, operator: Operator) -> None:
        self.server, self.http, self.collector, self.operator = server, http, collector, operator

    def ask(self, path: str = "/v1/completions", headers: dict[str, str] | None = None, **body: Any) -> str:
        """The id of a request."""
        given = body or {"prompt": [5] * 40, "max_tokens": 8, "ignore_eos": True}
        return str(self.http.post(path, json=given, headers=headers).headers["x-request-id"])

    def root(self, request_id: str) -> Received:
        """The span of a request."""
        return self.collector.root_of(request_id)

    def explain(self, request_id: str) -> dict[str, Any]:
        """What the server itself tells."""
        return dict(self.http.get(f"/v1/requests/{request_id}/explain").json())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "server.log"


@pytest.fixture(scope="module")
def traced(served_checkpoint: Path, log: Path) -> Iterator[Traced]:
    socket = log.parent / "socket"
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(collecting())
        options = ("--threads", "1", "--max-num-seqs", "2", "--explain-prompts", "--admin-socket", str(socket))
        options += ("--otlp-endpoint", collector.url)
        server = stack.enter_context(serving(served_checkpoint, *options, log=log, program=PATIENT))
        yield Traced(server, stack.enter_context(described_client(server.base)), collector, Operator(socket))


def check_tree(collector: Collector, root: Received) -> None:
    """One trace, in which nothing leaves what it is part of."""
    for child in collector.children(root):
        assert child.trace == root.trace
        assert root.began <= child.began <= child.ended <= root.ended, (root.name, child.name)
        check_tree(collector, child)


def test_a_request_is_one_tree_that_says_what_the_explanation_says(traced: Traced) -> None:
    before = time.time()
    request_id = traced.ask(prompt=[7] * 300, max_tokens=12, ignore_eos=True, stream=True)
    root, told = traced.root(request_id), traced.explain(request_id)
    check_tree(traced.collector, root)
    assert (root.name, root.kind, root.parent, root.status) == ("POST /v1/completions", SERVER, "", 0)
    assert before - 1 < root.began / SECONDS < root.ended / SECONDS < time.time() + 1
    assert root.ended - root.began == pytest.approx(told["seconds"] * SECONDS, abs=1e3)
    children = traced.collector.children(root)
    phases = {phase["name"]: phase for phase in told["timeline"]}
    for child in children:
        assert child.ended - child.began == pytest.approx(phases[child.name]["seconds"] * SECONDS, abs=1e3)
        parts = [part["name"] for part in phases[child.name]["parts"]]
        assert [part.name for part in traced.collector.children(child)] == parts
    assert {child.name for child in children} == set(phases)
    assert sum(child.ended - child.began for child in children) == root.ended - root.began
    attributes = root.attributes
    assert attributes["penstock.verdict.cause"] == told["verdict"]["cause"]
    causes = {f"penstock.cause.{cause['code']}": cause["seconds"] for cause in told["causes"]}
    assert {name: value for name, value in attributes.items() if name.startswith("penstock.cause.")} == causes
    assert sum(causes.values()) == pytest.approx((root.ended - root.began) / SECONDS, abs=1e-6)
    expected = {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "tiny-llama",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.response.id": told["response_id"],
        "gen_ai.response.time_to_first_chunk": told["time_to_first_token"],
        "gen_ai.usage.input_tokens": 300,
        "gen_ai.usage.output_tokens": 12,
    }
    assert {name: attributes.get(name) for name in expected} == expected


def test_a_queue_is_seen(traced: Traced) -> None:
    bodies = [{"prompt": [5 + number] * 40, "max_tokens": 40, "ignore_eos": True} for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        with traced.operator.paused():
            asked = [pool.submit(traced.ask, **body) for body in bodies]
            traced.server.wait_for("penstock_requests_waiting", 6)
        ids = [each.result(PATIENCE) for each in asked]
    roots = [traced.root(each) for each in ids]
    assert len({root.trace for root in roots}) == len(ids)
    waits = []
    for root in roots:
        check_tree(traced.collector, root)
        (queue,) = [child for child in traced.collector.children(root) if child.name == "queue"]
        waits.append(queue.attributes.get("penstock.detail"))
    # Two had a place when the engine went on, however long they had waited for that; the others waited for theirs.
    assert sorted(waits, key=str) == [
        *[None] * 2,
        *["for a place in the batch (--max-num-seqs)"] * 4,
    ]


def test_a_caller_that_traces_gets_a_child(traced: Traced) -> None:
    request_id = traced.ask(headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=x"})
    root = traced.root(request_id)
    assert (root.trace, root.parent, root.state) == (TRACE, SPAN, "vendor=x")
    check_tree(traced.collector, root)


def test_a_caller_that_does_not_gets_none(traced: Traced) -> None:
    unseen = traced.ask(headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    traced.root(traced.ask())
    assert not [root for root in traced.collector.roots() if root.attributes["penstock.request.id"] == unseen]


def test_what_is_wrong_has_a_trace_too(traced: Traced) -> None:
    root = traced.root(traced.ask(prompt=[5], max_tokens=-1))
    assert (root.status, root.attributes["http.response.status_code"]) == (0, 400)
    assert root.attributes["error.type"] == "invalid_parameter"
    check_tree(traced.collector, root)


def test_what_the_server_could_not_do_is_an_error(traced: Traced) -> None:
    root = traced.root(traced.ask(prompt=[5] * 8, max_tokens=2000, ignore_eos=True, timeout=0.05))
    assert (root.status, root.message) == (ERROR, "deadline_exceeded")
    assert root.attributes["http.response.status_code"] == 504
    check_tree(traced.collector, root)


def test_nothing_that_was_written_is_in_a_trace(traced: Traced) -> None:
    asked = [
        traced.ask(prompt=f"{WORDS} {number}", max_tokens=4, user=WORDS, metadata={"k": WORDS}) for number in range(2)
    ]
    asked.append(traced.ask("/v1/chat/completions", messages=[{"role": "user", "content": WORDS}], foo=WORDS))
    for each in asked:
        traced.root(each)
    assert WORDS.split()[0].encode() not in b"".join(traced.collector.raw)


def test_the_server_counts_what_became_of_them(traced: Traced) -> None:
    traced.root(traced.ask())
    traced.collector.wait(lambda: traced.server.metric("penstock_traces_total") >= len(traced.collector.roots()))
    metrics = traced.server.get("/metrics")
    assert 'penstock_traces_total{outcome="failed"} 0.0' in metrics
    assert 'penstock_traces_total{outcome="queue_full"} 0.0' in metrics


def test_what_ended_last_is_sent_before_the_server_ends(served_checkpoint: Path) -> None:
    with collecting() as collector:
        options = ("--threads", "1", "--otlp-endpoint", collector.url)
        with serving(served_checkpoint, *options, program=PATIENT) as server:
            for _ in range(3):
                server.post("/v1/completions", {"prompt": [5], "max_tokens": 1})
        assert len(collector.roots()) == 3


def test_without_a_collector_everything_is_served(served_checkpoint: Path, tmp_path: Path) -> None:
    log, nobody = tmp_path / "log", f"http://127.0.0.1:{free_port()}"
    options = ("--threads", "1", "--log-format", "json", "--otlp-endpoint", nobody)
    with serving(served_checkpoint, *options, log=log, program=ONE_LINE) as server:
        for _ in range(20):
            answer = server.post("/v1/completions", {"prompt": [5], "max_tokens": 2, "ignore_eos": True})
            assert answer["usage"]["completion_tokens"] == 2  # type: ignore[index]
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    told = [line for line in lines if line["logger"] == "penstock.tracing"]
    assert len(told) == 1 and "were dropped" in told[0]["message"]
    assert not [line for line in lines if line["logger"].startswith(("opentelemetry", "urllib3"))]


def test_where_the_extra_is_missing_the_start_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('opentelemetry'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "haiku", "--otlp-endpoint", "http://localhost:4318"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    assert "pip install 'penstock[otel]'" in ended.stderr
