"""The comparison of load generators: figures by others' definitions, whether they agree, a run of each, the page."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import compare_load_tools
import pytest
from load_tools.agreement import Comparison, compare
from load_tools.definitions import (
    OurRun,
    Request,
    by_guidellm,
    by_vllm,
    read_guidellm,
    read_ours,
    read_vllm,
    weighted_median,
)
from load_tools.page import Section, Setting, agree, page
from load_tools.tools import TOOLS, Load, Tool, call, guidellm_command, run_tool, vllm_command

from support.scripted_http import scripted, whole_answer

# Got to at 1.0, written at 1.5, first chunk at 3.0, last at 6.0: 4 chunks of 7 tokens.
ONE = Request(started=1.0, sent=1.5, first=3.0, last=6.0, chunks=4, output_tokens=7)
TWO = Request(started=2.0, sent=2.0, first=3.0, last=5.0, chunks=3, output_tokens=2)
OURS = OurRun([ONE, TWO], seconds=8.0, median_gap=950.0, input_tokens=4.0)
LOAD = Load("http://127.0.0.1:1", "toy", Path("TOKENIZER"), rate=2.5, requests=3, input_tokens=12, output_tokens=5)


def test_our_run_by_vllm() -> None:
    assert by_vllm(OURS, lead=1.0) == {
        "TTFT median, ms": 1500.0,
        "TTFT mean, ms": 1500.0,
        "ITL median, ms": 950.0,
        # Three gaps of the one and two of the other.
        "ITL mean, ms": 1000.0,
        "TPOT mean, ms": 1250.0,
        "requests/s": 2 / 9,
        "output tokens/s": 1.0,
    }


def test_our_run_by_guidellm() -> None:
    assert by_guidellm(OURS, lead=1.0) == {
        "TTFT median, ms": 1250.0,
        "TTFT mean, ms": 1250.0,
        # 500 counts six times, 2,000 once.
        "ITL median, ms": 500.0,
        "ITL mean, ms": pytest.approx(5000 / 7),
        "TPOT mean, ms": pytest.approx(7500 / 9),
        "requests/s": 2 / 9,
        "output tokens/s": 1.0,
    }


def test_a_median_of_weighted_values() -> None:
    assert weighted_median([3.0, 1.0, 2.0], [1, 1, 1]) == 2.0
    assert weighted_median([3.0, 1.0], [5, 1]) == 3.0
    with pytest.raises(ValueError, match="nothing"):
        weighted_median([], [])


def vllm_result(**changed: Any) -> dict[str, Any]:
    latencies = {f"{kind}_{name}_ms": 1.0 for kind in ("mean", "median") for name in ("ttft", "itl", "tpot")}
    whole = {"completed": 2, "output_lens": [5, 5], "input_lens": [12, 13], "duration": 4.0, "median_ttft_ms": 7.0}
    whole |= {"start_times": [100.5, 102.0], "latencies": [1.0, 2.0]}
    return latencies | whole | {"request_throughput": 0.5, "output_throughput": 2.5} | changed


def guidellm_report(requests: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms", "requests_per_second")
    metrics = {name: {"successful": {"mean": 3.0, "median": 2.0}} for name in (*names, "output_tokens_per_second")}
    times = {"measure_start_time": 99.5}
    return {"benchmarks": [{"metrics": metrics, "requests": {"successful": requests}, "scheduler_metrics": times}]}


def test_what_vllm_writes() -> None:
    run = read_vllm(vllm_result(), 2, 5)
    assert run.figures["TTFT median, ms"] == 7.0 and run.figures["requests/s"] == 0.5
    assert list(run.figures) == list(by_vllm(OURS, 0.0))
    # It began half a second before the first request, and ended with the last answer.
    assert run.arrivals == [0.0, 1.5] and run.lead == 0.5 and run.input_tokens == 12.5


def test_what_guidellm_writes() -> None:
    requests = [{"output_tokens": 5, "prompt_tokens": 12, "request_start_time": start} for start in (102.0, 100.0)]
    run = read_guidellm(guidellm_report(requests), 2, 5)
    assert run.figures["ITL median, ms"] == 2.0 and run.figures["output tokens/s"] == 3.0
    assert list(run.figures) == list(by_guidellm(OURS, 0.0))
    assert run.arrivals == [0.0, 2.0] and run.lead == 0.5 and run.input_tokens == 12.0


def test_runs_that_are_not_what_was_asked() -> None:
    with pytest.raises(ValueError, match="1 of 2 requests succeeded"):
        read_vllm(vllm_result(completed=1), 2, 5)
    with pytest.raises(ValueError, match="4 to 5 tokens instead of 5"):
        read_vllm(vllm_result(output_lens=[5, 4]), 2, 5)
    with pytest.raises(ValueError, match="0 of 2 requests succeeded"):
        read_guidellm(guidellm_report([]), 2, 5)
    summary = {"seconds": 1.0, "itl": {"median": 1.0}, "input_tokens": 24, "cached_tokens": 0}
    outcomes = [{"end": "ok", "started": 0.0, "sent": 0.0, "first": 1.0, "last": 2.0, "chunks": 5, "output_tokens": 5}]
    report = {"stages": [{"summary": summary, "requests": 2 * outcomes}]}
    assert read_ours(report, 2, 5).input_tokens == 12
    with pytest.raises(ValueError, match="instead of 6"):
        read_ours(report, 2, 6)
    summary["cached_tokens"] = 12
    with pytest.raises(ValueError, match="prefix cache"):
        read_ours(report, 2, 5)
    outcomes[0] |= {"end": "failed", "first": None}
    with pytest.raises(ValueError, match="0 of 2 requests succeeded"):
        read_ours(report, 2, 5)


@pytest.mark.parametrize(
    ("theirs", "ours", "close", "within"),
    [
        ([100.0, 101.0, 99.0], [104.0, 120.0, 103.0], True, False),
        ([100.0, 120.0, 80.0], [119.0, 118.0, 500.0], False, True),
        ([100.0, 101.0, 99.0], [94.0, 90.0, 106.0], False, False),
        ([100.0, 120.0, 80.0], [100.0, 99.0, 101.0], True, True),
    ],
)
def test_what_agrees(theirs: list[float], ours: list[float], close: bool, within: bool) -> None:
    (found,) = compare([{"TTFT": value} for value in theirs], [{"TTFT": value} for value in ours])
    assert (found.is_close, found.is_within_spread, found.agrees) == (close, within, close or within)
    assert (found.theirs, found.least, found.greatest) == (100.0, min(theirs), max(theirs))


def test_commands_name_the_load() -> None:
    vllm = vllm_command(LOAD, 7, Path("folder/results.json"))
    for name, value in {"--request-rate": "2.5", "--num-prompts": "3", "--seed": "7", "--result-dir": "folder"}.items():
        assert vllm[vllm.index(name) + 1] == value
    guidellm = " ".join(guidellm_command(LOAD, 7, Path("results.json")))
    for part in ("kind=poisson,rate=2.5", "count=3", "prompt_tokens=12,output_tokens=5", "kind=static,value=7"):
        assert part in guidellm


def fake(tmp_path: Path, result: dict[str, Any]) -> Tool:
    """A tool whose command writes a result of vLLM's form."""
    program = "import json, sys; json.dump(json.loads(sys.argv[1]), open(sys.argv[2], 'w'))"
    return replace(
        TOOLS[0], command=lambda load, seed, results: ["-c", program, json.dumps(result), str(results.absolute())]
    )


def test_ours_replays_the_arrivals_of_the_other(tmp_path: Path) -> None:
    result = vllm_result(completed=3, output_lens=[5] * 3, start_times=[50.0, 50.2, 50.1], latencies=[0.1] * 3)
    with scripted(lambda request: whole_answer(request, 0.001)) as server:
        load = replace(LOAD, url=server.base)
        pair = compare_load_tools.run_pair(fake(tmp_path, result), Path(sys.executable), load, 4, tmp_path)
    theirs, ours = pair
    assert theirs.figures["TTFT median, ms"] == 7.0
    assert len(ours.requests) == 3 and all(request.output_tokens == 5 for request in ours.requests)
    started = [request.started for request in ours.requests]
    # At their times, and later only where this machine is busy.
    assert max(started) >= 0.2
    assert {request.body["ignore_eos"] for request in server.asked} == {True}
    section = compare_load_tools.section(TOOLS[0], load, [pair])
    assert [each.figure for each in section.comparisons] == list(theirs.figures)
    assert section.own_command[:3] == ["penstock", "bench", "serve"]


def test_a_tool_that_fails_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="1 of 3 requests succeeded"):
        run_tool(fake(tmp_path, vllm_result(completed=1)), Path(sys.executable), LOAD, 1, tmp_path / "results.json")
    with pytest.raises(SystemExit, match="ended with status 3; see"):
        call([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")


def test_the_page_has_every_figure_and_the_verdict() -> None:
    close, far = Comparison("TTFT median, ms", 10.0, 9.9, 10.1, 10.3), Comparison("requests/s", 4.0, 3.9, 4.1, 3.0)
    setting = Setting("A processor", [0], [1, 2], 7.0, 0.6, 5, ["toy", "--rounds", "5"])
    one = Section("GuideLLM", "1.2", ["guidellm", "run"], ["penstock", "bench"], 128.0, 127.5, [close])
    text = page(setting, LOAD, [one, replace(one, name="vllm bench serve", comparisons=[close, far])])
    assert "the server on core 0, clients on cores 1, 2." in text
    assert "```\npython benchmarks/compare_load_tools.py toy --rounds 5\n```" in text
    assert "| TTFT median, ms | 10 | 9.9 to 10.1 | 10.3 | 1.030 | yes | no |" in text
    assert "| requests/s | 4 | 3.9 to 4.1 | 3 | 0.750 | no | no |" in text
    assert text.count("They agree.") == 1 and "They do not agree on: requests/s." in text
    assert agree([one]) and not agree([one, replace(one, comparisons=[far])])


def test_cores_are_shared_out() -> None:
    assert compare_load_tools.share_out([0, 1]) == ([0], [1])
    assert compare_load_tools.share_out([2, 3, 5]) == ([2, 3], [5])
    assert compare_load_tools.share_out([4]) == ([4], [4])
