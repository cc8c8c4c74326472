"""`penstock bench serve` as a user meets it, on a server that answers as it is told to."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.bench import drawing
from penstock.bench.load import session
from penstock.bench.load.arrivals import Open
from penstock.cli.main import main
from support.scripted_http import (
    Received,
    Step,
    answer,
    scripted,
    stream,
    text_chunk,
    usage_chunk,
    whole_answer,
)

SAMPLE = Path(__file__).resolve().parents[2] / "benchmarks" / "sample_trace.csv"
Bench = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The command in this process, which saves the second that it takes to start another."""

    def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["penstock", "bench", "serve", *arguments])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(arguments, ended.value.code, printed.out, printed.err)

    return call


def assert_refused(result: "subprocess.CompletedProcess[str]", says: str) -> None:
    assert result.returncode == 2, result.stdout
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("penstock: ")
    assert says in line


def test_a_closed_loop(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    with scripted(lambda request: whole_answer(request, 0.001)) as server:
        result = bench(
            server.base, "--concurrency", "4", "--requests", "12", "--input-len", "16", "--output-len", "5", "--slo",
            "ttft=10s,tpot=10s", "--json", str(file), "--records", "--warmup", "3",
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "12 of 12 succeeded" in result.stdout
    assert re.search(r"TTFT +│", result.stdout)
    # One that looks whether the server can be measured, and the warm-up, are in no figure.
    assert len(server.asked) == 1 + 3 + 12
    found = json.loads(file.read_text())
    (stage,) = found["stages"]
    summary = stage["summary"]
    assert found["model"] == "scripted"
    assert found["plan"]["shape"]["input"] == {"shape": "fixed", "first": 16, "second": 0.0}
    assert summary["arrivals"] == {"type": "closed", "concurrency": 4}
    assert (summary["succeeded"], summary["good"], summary["meets_slo"], summary["kept_up"]) == (12, 12, True, None)
    assert len(stage["requests"]) == 12
    assert {len(request.body["prompt"]) for request in server.asked[1:]} == {16}
    assert "12 requests have no p99" in stage["notes"][0]


def test_the_same_seed_asks_the_same(bench: Bench) -> None:
    asked = []
    for seed in ("5", "5", "6"):
        with scripted(whole_answer) as server:
            bench(
                server.base,
                "--concurrency",
                "1",
                "--requests",
                "3",
                "--warmup",
                "0",
                "--output-len",
                "1-9",
                "--seed",
                seed,
            )
        asked.append([request.body for request in server.asked])
    assert asked[0] == asked[1] != asked[2]


def test_no_stage_has_the_prompts_of_another(bench: Bench) -> None:
    with scripted(whole_answer) as server:
        result = bench(server.base, "--concurrency", "1,2", "--requests", "4", "--output-len", "2", "--warmup", "4")
    assert result.returncode == 0
    assert "all stages" in result.stdout
    prompts = [tuple(request.body["prompt"]) for request in server.asked]
    assert len(set(prompts)) == len(prompts) == 1 + 3 * 4


def test_the_largest_rate_is_found(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more than a hundred requests a second do not meet it; which do is judged in `load/test_metrics.py`."""
    usual = session._stage

    async def judged(*arguments: Any) -> session.Stage:
        stage = await usual(*arguments)
        (rate,) = (argument.rate for argument in arguments if isinstance(argument, Open))
        return replace(stage, summary=replace(stage.summary, meets_slo=rate <= 100))

    monkeypatch.setattr(session, "_stage", judged)
    monkeypatch.setattr(session, "_REST", 0.0)
    with scripted(whole_answer) as server:
        result = bench(
            server.base, "--find-rate", "--rate", "400", "--burstiness", "1000", "--requests", "5", "--slo",
            "ttft=200ms", "--output-len", "1", "--warmup", "0", "--json", str(tmp_path / "figures.json"),
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert 80 < found["rate_found"] <= 100
    assert (
        f"The largest rate that meets TTFT ≤ 200 ms at p99: {found['rate_found']:.4g} requests a second."
        in result.stdout
    )
    assert [stage["summary"]["meets_slo"] for stage in found["stages"]][:2] == [False, False]


def test_chats_of_text_are_about_as_long_as_asked(bench: Bench, tmp_path: Path) -> None:
    def two_tokens_a_word(request: Received) -> list[Step]:
        words = len(request.body["messages"][-1]["content"].split())
        chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
        return stream(chunk, usage_chunk(7 + 2 * words, 1), "[DONE]")

    with scripted(two_tokens_a_word) as server:
        result = bench(server.base, "--endpoint", "chat", "--concurrency", "2", "--requests", "4", "--input-len", "100")
    assert result.returncode == 0, result.stderr
    assert server.asked[-1].path == "/v1/chat/completions"
    assert "107.0" in result.stdout


def test_texts_are_exactly_as_long_as_asked_where_the_server_counts_tokens(bench: Bench) -> None:
    def tokens(text: str) -> int:
        """Those of words that begin with b only if something is before them; others of two letters each."""
        first, *others = text.split()
        return sum(1 if word[0] == "b" else len(word) // 2 for word in others) + len(first) // 2

    def counted(request: Received) -> list[Step]:
        count = tokens(request.body["prompt"])
        return stream(text_chunk("a", "stop"), usage_chunk(count, 1), "[DONE]")

    with scripted(counted, tokens=tokens) as server:
        result = bench(
            server.base, "--prompts", "text", "--requests", "6", "--concurrency", "2", "--input-len", "40-60"
        )
    assert result.returncode == 0, result.stderr
    words = [request.body["prompt"].split() for request in server.asked[-6:]]
    # Those of three letters are one token wherever they stand.
    assert {len(word) for prompt in words for word in prompt} == {3}
    assert len({len(prompt) for prompt in words}) > 1
    assert all(tokens(" ".join(prompt)) == len(prompt) and 40 <= len(prompt) <= 60 for prompt in words)


def test_a_trace_and_its_end(bench: Bench) -> None:
    with scripted(whole_answer) as server:
        result = bench(
            server.base, "--trace", str(SAMPLE), "--length-scale", "0.002", "--time-scale", "0.01", "--requests", "300",
            "--warmup", "0",
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "200 of 200 succeeded" in result.stdout
    assert "The file has 200 requests, 100 fewer than were asked for." in result.stdout


def test_a_dataset(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one", "output_length": 3}\n{"prompt": "two"}\n')
    with scripted(whole_answer) as server:
        result = bench(server.base, "--dataset", str(file), "--rate", "50", "--output-len", "2", "--warmup", "0")
    assert result.returncode == 0, result.stderr
    assert [(request.body["prompt"], request.body["max_tokens"]) for request in server.asked[1:]] == [
        ("one", 3),
        ("two", 2),
    ]


def test_a_breach_of_the_protocol_fails_the_command(bench: Bench) -> None:
    broken = stream(text_chunk("a", "stop"), usage_chunk(1, 1))
    asked = 0

    def sometimes(request: Received) -> list[Step]:
        nonlocal asked
        asked += 1
        return broken if asked == 5 else whole_answer(request)

    with scripted(sometimes) as server:
        result = bench(server.base, "--concurrency", "2", "--requests", "10", "--warmup", "0")
    assert result.returncode == 1
    assert "9 of 10 succeeded, 1 failed" in result.stdout
    assert "no [DONE] (breach of the protocol)" in result.stdout


def test_a_server_that_serves_nothing_fails_the_command(bench: Bench) -> None:
    asked = 0

    def once(request: Received) -> list[Step]:
        nonlocal asked
        asked += 1
        return whole_answer(request) if asked == 1 else answer(b'{"error": {"message": "no more [today]"}}', 503)

    with scripted(once) as server:
        result = bench(server.base, "--concurrency", "2", "--requests", "6", "--warmup", "0")
    assert result.returncode == 1
    assert "0 of 6 succeeded, 6 failed" in result.stdout
    assert "no more [today]" in result.stdout


def test_cancelled_requests_are_told_apart(bench: Bench) -> None:
    with scripted(lambda request: whole_answer(request, 0.001)) as server:
        result = bench(server.base, "--concurrency", "4", "--requests", "40", "--output-len", "20", "--cancel", "0.5")
    assert result.returncode == 0, result.stderr
    assert re.search(r"\d+ of 40 succeeded, \d+ cancelled", result.stdout)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (answer(b'{"error": {"message": "no key"}}', 401), "wants another API key (HTTP 401: no key)"),
        (
            answer(b'{"error": {"message": "no such model"}}', 404),
            "refuses a first request with HTTP 404: no such model",
        ),
        (stream(text_chunk("a", "stop"), "[DONE]"), "streams no usage"),
        (stream({"error": {"message": "out of memory"}}), "could not serve a first request: out of memory"),
    ],
)
def test_a_server_that_cannot_be_measured(bench: Bench, steps: list[Step], says: str) -> None:
    with scripted(lambda _: steps) as server:
        assert_refused(bench(server.base, "--concurrency", "1"), says)


def test_a_server_that_is_not_there(bench: Bench) -> None:
    with scripted(whole_answer) as server:
        pass
    assert_refused(bench(server.base, "--concurrency", "1"), "the connection was refused")


def test_a_model_that_is_not_served(bench: Bench) -> None:
    with scripted(whole_answer) as server:
        assert_refused(bench(server.base, "--concurrency", "1", "--model", "other"), "it has scripted")


def test_the_key_comes_from_the_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "from-outside")
    with scripted(whole_answer) as server:
        bench(server.base, "--concurrency", "1", "--requests", "1", "--warmup", "0")
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer from-outside"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "Say how much load there is to be"),
        ("--rate 1 --concurrency 2", "--rate and --concurrency both say when requests come"),
        ("--rate fast", "is no list of numbers"),
        ("--rate 1,0", "--rate 0"),
        ("--concurrency 1 --burstiness 2", "--burstiness is of requests that come at a --rate"),
        ("--time-scale 1", "--time-scale is for the times of a --trace"),
        ("--find-rate", "--find-rate needs --slo"),
        ("--find-rate --slo ttft=1s --rate 1,2", "begins at one --rate"),
        ("--concurrency 1 --slo p99=1s", "is no limit"),
        ("--concurrency 1 --endpoint chat --prompts ids", "takes no token ids"),
        ("--concurrency 1 --turns 2 --prompts ids", "--turns needs --prompts text"),
        ("--concurrency 1 --think-time 1", "say how many with --turns"),
        ("--concurrency 1 --cancel 2", "no share of the requests"),
        ("--concurrency 1 --token-ids 9-5", "has no ids"),
        ("--concurrency 1 --extra-body []", "is no JSON object"),
        ('--concurrency 1 --extra-body {"stream":false}', "stream, which is always true"),
        ("--concurrency 1 --length-scale 2", "is for a --trace"),
        ("--concurrency 1 --trace a.csv --dataset b.jsonl", "both workloads"),
        ("--concurrency 1 --trace none.csv", "cannot be read"),
        ("--concurrency 1 --trace none.csv --turns 2 --prompts text", "are for random conversations"),
        ("--concurrency 1 --duration 0", "--duration 0"),
        ("--concurrency 1 --trace a.csv --input-len 5", "--input-len is of random prompts"),
        ("--concurrency 1 --trace a.csv --output-len 5", "--output-len does not go with a --trace"),
        ("--concurrency 1 --dataset a.jsonl --prompts text", "--prompts is about random prompts"),
        ("--concurrency 1 --prompts text --token-ids 1-5", "these are text"),
        ("--concurrency 1 --prefixes 3", "say how long with --prefix-len"),
        ("--concurrency 1 --records", "into the file of --json"),
        ("--concurrency 1 --json /nowhere/a.json", "there is no directory /nowhere"),
    ],
)
def test_options_that_cannot_work(bench: Bench, options: str, says: str) -> None:
    with scripted(whole_answer) as server:
        assert_refused(bench(server.base, *options.split()), says)


def test_plots_need_matplotlib(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing.importlib.util, "find_spec", lambda _: None)
    result = bench("http://127.0.0.1:1", "--concurrency", "1", "--plots", str(tmp_path))
    assert_refused(result, "pip install 'penstock[bench]'")


def test_plots(bench: Bench, tmp_path: Path) -> None:
    with scripted(lambda request: whole_answer(request, 0.001)) as server:
        result = bench(
            server.base, "--concurrency", "1,2", "--requests", "6", "--output-len", "4", "--slo", "ttft=1s", "--plots",
            str(tmp_path / "plots"),
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    drawn = {path.name: path.read_text() for path in (tmp_path / "plots").iterdir()}
    assert set(drawn) == {"latencies.svg", "in-flight.svg", "throughput-latency.svg", "goodput.svg"}
    assert "2 at a time" in drawn["latencies.svg"]
    assert "requests in flight" in drawn["in-flight.svg"]
