"""Causes of slowness, planted one at a time for real: the verdict on each request names the right one."""

import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.checkpoints import make
from support.documented import described_client
from support.live_server import RunningServer, serving

CONTEXT = 4096


class Client:
    """Asks one server, and why its requests took as long as they did."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
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
        deadline = time.monotonic() + 20
        # An answer is with its client before the server has closed the account.
        while (told := self.http.get(f"/v1/requests/{request_id}/explain").json())["state"] != "ended":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        causes = told["causes"]
        assert told["verdict"]["cause"] == causes[0]["code"], told
        assert sum(cause["seconds"] for cause in causes) == pytest.approx(told["seconds"])
        setting = told["verdict"]["setting"]
        assert setting is None or setting in told["verdict"]["sentence"]
        return told

    def cause(self, request_id: str) -> str:
        """The largest cause.

        A machine that is busy with something else is a cause of its own, and not the tests': then the next one is
        taken.
        """
        codes = [cause["code"] for cause in self.explain(request_id)["causes"]]
        return codes[codes[0] == "cpu_contention" and len(codes) > 1]

    def wait_for_states(self, **counts: int) -> list[dict[str, Any]]:
        """The recent requests, once so many of them are in these states."""
        deadline = time.monotonic() + 20
        while True:
            listed = self.http.get("/v1/requests?limit=100").json()["data"]
            states = [request["state"] for request in listed]
            if all(states.count(state) >= count for state, count in counts.items()):
                return listed
            assert time.monotonic() < deadline, states
            time.sleep(0.002)


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


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator's socket of the server in which nothing is short."""
    return tmp_path_factory.mktemp("admin") / "socket"


@pytest.fixture(scope="module")
def roomy(checkpoint: Path, operator: Path) -> Iterator[Client]:
    """A server in which nothing is short."""
    options = ("--threads", "1", "--kv-cache-memory", "512MiB", "--admin-socket", str(operator))
    with serving(checkpoint, *options) as server, Client(server) as client:
        yield client


@pytest.fixture(scope="module")
def tight(checkpoint: Path) -> Iterator[Client]:
    """A server with a small batch and a small KV pool, of 2,048 tokens."""
    options = ("--max-num-seqs", "2", "--kv-cache-memory", "16MiB", "--max-model-len", "2048")
    with serving(checkpoint, "--threads", "1", *options) as server, Client(server) as client:
        yield client


def test_a_long_queue(tight: Client) -> None:
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(tight.complete, ids(8, seed), 400) for seed in range(6)]
        tight.wait_for_states(waiting=4)
        assert tight.cause(tight.complete(ids(8, 10))) == "queue_rows"
        assert all(other.result() for other in others)


def test_an_evicted_prefix(tight: Client) -> None:
    prompt = ids(1900, 3)
    tight.complete(prompt)
    tight.complete(ids(1900, 4))
    assert tight.cause(tight.complete(prompt)) == "evicted_prefix"


def test_a_preemption(tight: Client) -> None:
    with ThreadPoolExecutor() as pool:
        older = pool.submit(tight.complete, ids(900, 5), 900)
        tight.wait_for_states(decoding=1)
        assert tight.cause(tight.complete(ids(900, 6), 200)) == "preemption"
        assert older.result()


def test_a_cold_prefix(roomy: Client) -> None:
    assert roomy.cause(roomy.complete(ids(3000, 10))) == "cold_prefix"


def test_a_long_context(roomy: Client) -> None:
    prompt = ids(CONTEXT - 200, 11)
    roomy.complete(prompt)
    assert roomy.cause(roomy.complete(prompt, 100)) == "long_context"


def test_a_big_neighbour(roomy: Client) -> None:
    with ThreadPoolExecutor() as pool:
        neighbour = pool.submit(roomy.complete, ids(CONTEXT - 8, 13))
        roomy.wait_for_states(prefilling=1)
        assert roomy.cause(roomy.complete(ids(8, 14), 5)) == "neighbour_prefill"
        assert neighbour.result()


def test_many_tokens_are_nothing_unusual(roomy: Client) -> None:
    assert roomy.cause(roomy.complete(ids(8, 15), 500)) == "decode"


def test_the_tokenisation_of_a_huge_prompt(roomy: Client) -> None:
    text = " " * 500_000
    roomy.complete(text)
    assert roomy.cause(roomy.complete(text)) == "tokenisation"


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
    assert roomy.cause(roomy.ask("/v1/chat/completions", body)) == "grammar_compile"


def test_a_slow_reader(roomy: Client) -> None:
    body = {"prompt": ids(8, 20), "max_tokens": 400, "ignore_eos": True, "logprobs": 20, "stream": True}
    sent = json.dumps(body).encode()
    host, port = roomy.server.base.removeprefix("http://").split(":")
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall("\r\n".join([*lines, f"Content-Length: {len(sent)}", "", ""]).encode() + sent)
        (told,) = (each for each in roomy.wait_for_states(delivering=1) if each["state"] == "delivering")
        # Twice as long as all before it.
        time.sleep(2 * told["seconds"])
        running = roomy.http.get(f"/v1/requests/{told['id']}/explain").json()
        assert running["waits_for"] == "its client, which has to read"
        while connection.recv(1 << 16):
            pass
    assert roomy.cause(told["id"]) == "slow_reader"


def test_contention_for_processors(roomy: Client) -> None:
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with contextlib.ExitStack() as stack:
        # In sessions of their own, since a kernel may share processors out among sessions, of which the engine is one.
        begin = partial(subprocess.Popen, command, stdout=subprocess.PIPE, start_new_session=True)
        burners = [stack.enter_context(begin()) for _ in range(8)]
        for burner in burners:
            stack.callback(burner.kill)
            assert burner.stdout is not None and burner.stdout.readline()
        told = roomy.explain(roomy.complete(ids(8, 21), 1000))
    assert told["verdict"]["cause"] == "cpu_contention", told


def test_an_engine_that_fails(roomy: Client, operator: Path) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(operator)), base_url="http://admin") as admin:
        armed = admin.post("/fail-points", json={"point": "engine.step", "action": "exit", "passes": 20})
        assert armed.status_code == 200
        request_id = roomy.complete(ids(8, 22), 40)
        assert roomy.cause(request_id) == "engine_restart"
        # The operator's socket tells of the same request.
        assert admin.get(f"/v1/requests/{request_id}/explain").json()["verdict"]["cause"] == "engine_restart"
