"""A gateway before real replicas, which are killed, stopped and replaced under streams: clients notice nothing."""

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from support.closed_clients import closing_clients
from support.operator import Operator
from support.processes import Process, fleet, started, under_way, waiting_for
from support.streams import Stream, read, reading
from support.translator import write_translator
from support.waiting import PATIENCE, SELDOM, until

MESSAGES = [{"role": "user", "content": "Write a haiku about rain that falls on an old house by the sea at night."}]
LONG = {"stream": True, "seed": 7, "ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 6}},
    "required": ["lines"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA, "strict": True}}
# Each of them has many more tokens than the replica that fails computes.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, greedy": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 90, "temperature": 0, **LONG}),
    "chat, sampled": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 90, "temperature": 1.1, **LONG}),
    "penalties, stop": (
        "/v1/completions",
        {"prompt": "The rain", "max_tokens": 90, "frequency_penalty": 0.8, "stop": ["zzz"], **LONG},
    ),
    "schema": (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "max_tokens": 400,
            "response_format": {"type": "json_schema", "json_schema": {"name": "poem", "schema": SCHEMA}},
            "stream": True,
            "seed": 3,
        },
    ),
    "tool": (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "max_tokens": 400,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "note"}},
            "stream": True,
            "seed": 4,
        },
    ),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 90, "temperature": 0, "stream": True}),
    "responses": ("/v1/responses", {"input": "Write about rain.", "max_output_tokens": 90, "stream": True, **LONG}),
}
# Steps that the replica computes before it is stopped.
STEPS = 12
# Seconds without a word after which a replica is taken for stopped.
SILENCE = 6.0


def replica(folder: Path, name: str, *options: str) -> contextlib.AbstractContextManager[Process]:
    fixed = ("--admin-socket", str(folder / name), "--speculative", "off", "--kv-events", "127.0.0.1:0")
    return started(folder, "serve", "haiku", *fixed, *options)


def gateway(
    folder: Path, replicas: list[Process], *options: str, silence: float = PATIENCE
) -> contextlib.AbstractContextManager[Process]:
    urls = [part for each in replicas for part in ("--replica", each.base)]
    return started(folder, "gateway", *urls, "--policy", "round-robin", *waiting_for(folder, silence), *options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def steady(folder: Path) -> Iterator[Process]:
    """A replica that nothing happens to."""
    with replica(folder, "steady") as running:
        yield running


@pytest.fixture(scope="module")
def answers(steady: Process) -> dict[str, Stream]:
    """What a replica answers by itself."""
    found = {name: Stream() for name in ASKED}
    for name, stream in found.items():
        read(steady.base, ASKED[name], stream)
    return found


def counted(passing: Process, requests: int) -> dict[str, Any]:
    """The fleet, once so many requests are counted as over: a client has the end of its answer a moment before."""
    until(lambda: sum(fleet(passing)["requests"].values()) >= requests, lambda: fleet(passing))
    return fleet(passing)


def hit_tokens(passing: Process) -> float:
    """Tokens that were expected in caches, in all."""
    text = httpx.get(passing.base + "/metrics", timeout=PATIENCE).text
    return sum(float(each) for each in re.findall(r"^\S+replica_hit_tokens_total\S* (\S+)$", text, re.MULTILINE))


def hits(passing: Process, kind: str) -> list[tuple[int, float]]:
    """Tokens of a prompt that two replicas found in their caches, and those that were expected there."""
    found = []
    for _ in range(2):
        before, request = hit_tokens(passing), {**ASKED[kind][1], "model": "haiku", "stream": False, "max_tokens": 1}
        answer = httpx.post(passing.base + "/v1/chat/completions", json=request, timeout=PATIENCE).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        found.append((cached, hit_tokens(passing) - before))
    return found


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)


def end(process: "subprocess.Popen[bytes]") -> None:
    """It has no time for what runs."""
    process.terminate()


@pytest.mark.parametrize("fail", [kill, stop, pytest.param(end, marks=pytest.mark.slow)])
def test_streams_go_on_elsewhere(
    fail: Callable[["subprocess.Popen[bytes]"], None], folder: Path, steady: Process, answers: dict[str, Stream]
) -> None:
    """With the same text, under the same id."""
    name = fail.__name__
    options = ("--drain-timeout", "0.2") if fail is end else ()
    with (
        started(
            folder, "serve", "haiku", "--admin-socket", str(folder / name), "--speculative", "off", *options
        ) as victim,
        # What is stopped is silent. The other one is not for so long.
        gateway(folder, [victim, steady], silence=SILENCE if fail is stop else PATIENCE) as passing,
    ):
        until(lambda: passing.log.read_text().count(" is ready") == 2)
        operator = Operator(folder / name)
        operator.pause(True)
        with reading(passing.base, [*ASKED.values(), *ASKED.values()]) as streams:
            until(lambda: under_way(victim) == len(ASKED))
            operator.step(STEPS)
            # Those at the replica that fails have a part of their answers and get no more; others have come to the end.
            until(lambda: all(stream.ended or (stream.replica == victim.base and stream.lines) for stream in streams))
            left = [stream for stream in streams if not stream.ended]
            fail(victim.process)
        for (kind, right), stream in zip([*answers.items(), *answers.items()], streams, strict=True):
            assert stream.ended and stream.text() == right.text(), kind
            assert len(stream.ids()) <= 1 and not [line for line in stream.lines if line.startswith(":")]
            assert len(right.text()) > 60
        told = counted(passing, len(streams))
        assert len(left) == told["retries"]["resumed"] >= 5 and told["requests"]["answered"] == len(streams)


# A fleet does the same (`test_fleet.py`), which others see.
@pytest.mark.slow
def test_all_replicas_are_replaced_one_after_the_other(
    folder: Path, steady: Process, answers: dict[str, Stream]
) -> None:
    """Under load: each request gets its whole answer. Replicas join and leave by themselves.

    What the new ones have in their caches is known exactly.
    """
    done, goes_on, failed, right = threading.Event(), threading.Event(), list[str](), 0
    goes_on.set()
    lock = threading.Lock()

    def ask() -> None:
        nonlocal right
        while not done.is_set():
            for kind in ("chat, sampled", "schema", "responses"):
                goes_on.wait()
                if done.is_set():
                    return
                stream = Stream()
                read(passing.base, ASKED[kind], stream)
                with lock:
                    if stream.ended and stream.text() == answers[kind].text():
                        right += 1
                    else:
                        failed.append(f"{kind}: {stream.lines[-3:]}")

    with contextlib.ExitStack() as stack:
        passing = stack.enter_context(gateway(folder, [], "--prompts", "haiku"))
        join = ("--join", passing.base)
        running = [stack.enter_context(replica(folder, f"rolled{number}", *join)) for number in range(2)]
        until(lambda: passing.log.read_text().count(" is ready") == 2)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number, each in enumerate(running):
                before = right
                until(lambda before=before: right > before + 5 or failed)
                each.process.terminate()
                each.process.wait(PATIENCE)
                until(lambda each=each: f"{each.base} is gone: it has left" in passing.log.read_text())
                # A process that starts has the processors for itself; it joins under load again.
                goes_on.clear()
                stack.enter_context(replica(folder, f"again{number}", *join))
                goes_on.set()
                until(lambda number=number: passing.log.read_text().count(" is ready") == 3 + number)
        finally:
            done.set()
            goes_on.set()
            for thread in threads:
                thread.join(PATIENCE)
        told = counted(passing, right + len(failed))
        until(lambda: all(each["cache"] == "exact" for each in fleet(passing)["replicas"]))
        for kind in ("chat, sampled", "schema"):
            # Once each has answered, and has said what it keeps.
            until(lambda kind=kind: all(0 < hit == expected for hit, expected in hits(passing, kind)))
            assert all(0 < hit == expected for _ in range(3) for hit, expected in hits(passing, kind))
    assert not failed and right > 10
    assert told["requests"]["answered"] == right and told["requests"]["broken"] == told["requests"]["refused"] == 0


def test_a_gateway_that_is_stopped_passes_on_what_runs_to_its_end(
    folder: Path, steady: Process, answers: dict[str, Stream]
) -> None:
    operator = Operator(folder / "steady")
    with gateway(folder, [steady]) as passing:
        operator.pause(True)
        with reading(passing.base, [ASKED["chat, sampled"], ASKED["responses"]]) as streams:
            until(lambda: under_way(steady) == 2)
            passing.process.terminate()
            until(lambda: "Stopping: 2 running requests may finish" in passing.log.read_text())
            operator.pause(False)
        assert passing.process.wait(PATIENCE) == 0
    assert [stream.text() for stream in streams] == [answers["chat, sampled"].text(), answers["responses"].text()]


def lite_stream(base: str, asked: dict[str, Any]) -> str:
    """What LiteLLM streams."""
    # Its import takes seconds.
    import litellm

    with closing_clients():
        chunks: Any = litellm.completion(**asked, stream=True, api_base=base + "/v1", api_key="unused")
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def asked_by_clients(base: str) -> list[str]:
    """What official clients get of a server: streams, tools, schemas, whole answers, in all dialects."""
    with (
        openai.OpenAI(base_url=base + "/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as gpt,
        anthropic.Anthropic(base_url=base, api_key="unused", max_retries=0, timeout=PATIENCE) as claude,
    ):
        fixed: Any = {"model": "haiku", "messages": MESSAGES, "temperature": 0}
        chunks = list(gpt.chat.completions.create(**fixed, max_tokens=30, stream=True))
        forced = {"type": "function", "function": {"name": "note"}}
        called = gpt.chat.completions.create(**fixed, max_tokens=200, tools=[TOOL], tool_choice=forced)
        parsed = gpt.responses.create(model="haiku", input="Write about rain.", temperature=0, max_output_tokens=30)
        greedy: Any = {"model": "haiku", "messages": MESSAGES, "extra_body": {"temperature": 0}}
        with claude.messages.stream(**greedy, max_tokens=30) as stream:
            spoken = stream.get_final_text()
        counted = claude.messages.count_tokens(model="haiku", messages=MESSAGES)  # type: ignore[arg-type]
        vectors = gpt.embeddings.create(model="haiku", input=["rain", "snow"])
        lite = lite_stream(base, {**fixed, "model": "openai/haiku", "max_tokens": 30})
        [call] = called.choices[0].message.tool_calls or ()
        return [
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
            call.function.arguments,  # type: ignore[union-attr]
            parsed.output_text,
            spoken,
            str(counted.input_tokens),
            str([each.embedding for each in vectors.data]),
            lite,
            ",".join(model.id for model in gpt.models.list().data),
        ]


def test_official_clients_notice_nothing(folder: Path, steady: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    # Prices that LiteLLM would fetch as it is imported.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with gateway(folder, [steady]) as passing:
        through, straight = asked_by_clients(passing.base), asked_by_clients(steady.base)
        explained = explained_by(passing)
    assert through == straight and all(len(each) > 1 for each in through)
    # What the gateway did, and why the replica took its time.
    assert "at the gateway: /v1/chat/completions, answered after" in explained
    assert f"at {steady.base} for" in explained and "answered with status 200; sent there since its turn" in explained
    assert "prompt tokens, 5 output tokens" in explained and "decode" in explained


def explained_by(passing: Process) -> str:
    """What `penstock explain` prints of a request to a gateway."""
    asked = {"model": "haiku", "messages": MESSAGES, "max_tokens": 5}
    answer = httpx.post(passing.base + "/v1/chat/completions", json=asked, timeout=PATIENCE)
    command = [
        sys.executable,
        "-m",
        "penstock.cli.main",
        "explain",
        answer.headers["x-request-id"],
        "--url",
        passing.base,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_translations_go_to_the_replica_that_translates(folder: Path, steady: Process) -> None:
    """As whatever client of LibreTranslate asks for them: without a model's name."""
    model = write_translator(folder / "translator")
    asked = {"q": ["word1 word2", "word3"], "source": "en", "target": "fr"}
    with (
        started(folder, "serve", str(model), "--max-num-seqs", "4") as translator,
        gateway(folder, [steady, translator]) as running,
    ):
        until(lambda: len(httpx.get(f"{running.base}/v1/models").json()["data"]) == 2, pause=SELDOM)
        right = httpx.post(f"{translator.base}/translate", json=asked, timeout=PATIENCE).json()
        assert len(right["translatedText"]) == 2 and all(right["translatedText"])
        for _ in range(3):
            translated = httpx.post(f"{running.base}/translate", json=asked, timeout=PATIENCE)
            assert translated.json() == right and translated.headers["x-penstock-replica"] == translator.base
            chat = {"messages": MESSAGES, "max_tokens": 2}
            answered = httpx.post(f"{running.base}/v1/chat/completions", json=chat, timeout=PATIENCE)
            assert answered.json()["model"] == "haiku" and answered.headers["x-penstock-replica"] == steady.base
        languages = httpx.get(f"{running.base}/languages", timeout=PATIENCE).json()
        assert [each["code"] for each in languages] == ["en", "de", "fr"]
        refused = httpx.post(f"{running.base}/translate", json={**asked, "target": "xx"}, timeout=PATIENCE)
        assert refused.status_code == 400 and "'xx' is not one of this model's languages" in refused.json()["error"]
