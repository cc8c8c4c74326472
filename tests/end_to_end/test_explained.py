"""Causes of slowness, planted one at a time for real: each request is told of the right one.

Which cause is the largest depends on the machine, and is judged where time is made up (`simulation/test_explained.py`).
"""

import contextlib
import json
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.observability.explain.timeline import WAITING
from support.checkpoints import make
from support.documented import described_client
from support.live_server import RunningServer, serving
from support.operator import Operator
from support.waiting import until

CONTEXT = 4096


class Client:
    """Asks one server, and why its requests took as long as they did."""

    def __init__(self, server: RunningServer, operator: Operator) -> None:
        self.server, self.operator = server, operator
        self.http = described_client(server.base)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *unused: object) -> None:
        self.http.close()

    def complete(self, prompt: object, tokens: int = 1, **fields: Any) -> str:
        """Answer a prompt; the id of the request."""
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **fields}
        return self.ask("/v1/completions", body)

    def ask(self, path: str, body: dict[str, Any]) -> str:
        """The id of a request that is answered."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-request-id"]

    def explain(self, request_id: str) -> dict[str, Any]:
        """What is told of a request that has ended."""
        # An answer is with its client before the server has closed the account.
        until(lambda: self.http.get(f"/v1/requests/{request_id}/explain").json()["state"] == "ended")
        told: dict[str, Any] = self.http.get(f"/v1/requests/{request_id}/explain").json()
        causes = told["causes"]
        assert told["verdict"]["cause"] == causes[0]["code"], told
        assert sum(cause["seconds"] for cause in causes) == pytest.approx(told["seconds"])
        setting = told["verdict"]["setting"]
        assert setting is None or setting in told["verdict"]["sentence"]
        return told

    def causes(self, request_id: str) -> set[str]:
        """Those that took any time."""
        return {cause["code"] for cause in self.explain(request_id)["causes"]}

    def in_state(self, state: str) -> list[dict[str, Any]]:
        """The recent requests that are in it."""
        listed = self.http.get("/v1/requests?limit=100").json()["data"]
        return [request for request in listed if request["state"] == state]

    def queue(self, pool: ThreadPoolExecutor, asked: "list[tuple[object, int]]") -> "list[Future[str]]":
        """Prompts with so many tokens of output, one behind the other, while the engine is paused."""
        futures = []
        for count, (prompt, tokens) in enumerate(asked, 1):
            futures.append(pool.submit(self.complete, prompt, tokens))
            self.server.wait_for("penstock_requests_waiting", count)
        return futures


def merge_spaces(path: Path) -> None:
    """Give the tokenizer at `path` tokens of up to 256 spaces, as those for source code have."""
    file = path / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    for power in range(8):
        half = "Ġ" * 2**power
        vocabulary[half * 2] = len(vocabulary)
        merges.append([half, half])
    file.write_text(json.dumps(content))


def ids(count: int, seed: int) -> list[int]:
    """A prompt that no other seed gives."""
    return random.Random(seed).choices(range(10, 250), k=count)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "toy"
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 64}
    make("qwen3", path, **sizes, num_key_value_heads=4, max_position_embeddings=CONTEXT)
    merge_spaces(path)
    return path


@contextlib.contextmanager
def asking(checkpoint: Path, folder: Path, *options: str) -> Iterator[Client]:
    """A client of a server with these options."""
    socket = folder / "socket"
    with (
        serving(checkpoint, "--threads", "1", "--admin-socket", str(socket), *options) as server,
        Client(server, Operator(socket)) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def roomy(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server in which nothing is short."""
    with asking(checkpoint, tmp_path_factory.mktemp("admin"), "--kv-cache-memory", "512MiB") as client:
        yield client


@pytest.fixture(scope="module")
def tight(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server with a small batch and a small KV pool, of 2,048 tokens."""
    options = ("--max-num-seqs", "2", "--kv-cache-memory", "16MiB", "--max-model-len", "2048")
    with asking(checkpoint, tmp_path_factory.mktemp("admin"), *options) as client:
        yield client


def test_a_long_queue(tight: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        with tight.operator.paused():
            *_, last = tight.queue(pool, [*((ids(8, seed), 100) for seed in range(6)), (ids(8, 10), 1)])
        assert "queue_rows" in tight.causes(last.result())


def test_an_evicted_prefix(tight: Client) -> None:
    prompt = ids(1900, 3)
    tight.complete(prompt)
    tight.complete(ids(1900, 4))
    assert "evicted_prefix" in tight.causes(tight.complete(prompt))


def test_a_preemption(tight: Client) -> None:
    """Where the older one gets far before the younger comes, this one waits for it: then two others are asked."""
    seeds = iter(range(1000, 10_000, 2))

    def causes() -> set[str]:
        """Of a request that comes while another grows."""
        seed = next(seeds)
        with ThreadPoolExecutor(8) as pool:
            with tight.operator.paused():
                (older,) = tight.queue(pool, [(ids(900, seed), 900)])
                tight.operator.step_until(lambda: tight.in_state("decoding"))
                (younger,) = tight.queue(pool, [(ids(900, seed + 1), 200)])
            assert older.result()
            return tight.causes(younger.result())

    before, found = tight.server.metric("penstock_preemptions_total"), list[set[str]]()

    def preempted() -> bool:
        found.append(causes())
        return tight.server.metric("penstock_preemptions_total") > before

    until(preempted)
    assert "preemption" in found[-1]


def test_a_cold_prefix(roomy: Client) -> None:
    assert "cold_prefix" in roomy.causes(roomy.complete(ids(3000, 10)))


def test_a_long_context(roomy: Client) -> None:
    prompt = ids(CONTEXT - 200, 11)
    roomy.complete(prompt)
    assert "long_context" in roomy.causes(roomy.complete(prompt, 100))


def test_a_big_neighbour(roomy: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        with roomy.operator.paused():
            neighbour, small = roomy.queue(pool, [(ids(CONTEXT - 8, 13), 1), (ids(8, 14), 5)])
        told = roomy.explain(small.result())
        assert "neighbour_prefill" in {cause["code"] for cause in told["causes"]}
        assert [phase["detail"] for phase in told["timeline"] if phase["name"] == "queue"] == [
            f"for {WAITING['budget']}"
        ]
        assert neighbour.result()


def test_many_tokens_are_nothing_unusual(roomy: Client) -> None:
    causes = roomy.causes(roomy.complete(ids(8, 15), 100))
    assert "decode" in causes, causes
    assert not causes & {"queue_rows", "queue_memory", "preemption", "engine_restart"}


def test_the_tokenisation_of_a_huge_prompt(roomy: Client) -> None:
    text = " " * 500_000
    roomy.complete(text)
    assert "tokenisation" in roomy.causes(roomy.complete(text))


def test_the_compilation_of_a_grammar(roomy: Client) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for level in range(25):
        names = [f"{level}_{number}" for number in range(80)]
        words = {
            name: {"type": "string", "pattern": f"^[a-z]{{{number % 7},50}}x$"} for number, name in enumerate(names)
        }
        schema = {"type": "object", "properties": {"inner": schema, **words}, "required": ["inner"]}
    asked = {"type": "json_schema", "json_schema": {"name": "words", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "response_format": asked}
    assert "grammar_compile" in roomy.causes(roomy.ask("/v1/chat/completions", body))


def test_a_slow_reader(roomy: Client) -> None:
    body = {"prompt": ids(8, 20), "max_tokens": 400, "ignore_eos": True, "logprobs": 20, "stream": True}
    sent = json.dumps(body).encode()
    host, port = roomy.server.base.removeprefix("http://").split(":")
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall("\r\n".join([*lines, f"Content-Length: {len(sent)}", "", ""]).encode() + sent)
        until(lambda: roomy.in_state("delivering"))
        (told,) = roomy.in_state("delivering")
        running = roomy.http.get(f"/v1/requests/{told['id']}/explain").json()
        assert running["waits_for"] == "its client, which has to read"
        while connection.recv(1 << 16):
            pass
    assert "slow_reader" in roomy.causes(told["id"])


def test_contention_for_processors(roomy: Client) -> None:
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with contextlib.ExitStack() as stack:
        # In sessions of their own, since a kernel may share processors out among sessions, of which the engine is one.
        begin = partial(subprocess.Popen, command, stdout=subprocess.PIPE, start_new_session=True)
        burners = [stack.enter_context(begin()) for _ in range(8)]
        for burner in burners:
            stack.callback(burner.kill)
            assert burner.stdout is not None and burner.stdout.readline()
        assert "cpu_contention" in roomy.causes(roomy.complete(ids(8, 21), 60))


def test_an_engine_that_fails(roomy: Client) -> None:
    with roomy.operator.client() as admin:
        armed = admin.post("/fail-points", json={"point": "engine.step", "action": "exit", "passes": 20})
        assert armed.status_code == 200
        request_id = roomy.complete(ids(8, 22), 40)
        told = roomy.explain(request_id)
        assert "engine_restart" in {cause["code"] for cause in told["causes"]}
        # The operator's socket tells the same of the same request.
        assert admin.get(f"/v1/requests/{request_id}/explain").json()["causes"] == told["causes"]
