"""What `--workload` says: usual names, and traces."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.plan_workloads import NAMED, requests_of
from penstock.core.errors import ConfigurationError

TRACE = Path(__file__).parents[2] / "benchmarks" / "sample_trace.csv"


def planned(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["plan", "haiku", "--on", "l4", *arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", NAMED)
def test_a_name_stands_for_lengths(name: str) -> None:
    found, named = planned("--workload", name), NAMED[name]
    lengths = ["--input-len", str(named.input_tokens), "--output-len", str(named.output_tokens)]
    lengths += ["--cached-len", str(named.cached_tokens), *(["--static"] if named.static else [])]
    same = planned(*lengths)
    assert found["estimate"] == same["estimate"] and found["memory"] == same["memory"]
    assert any(named.said in str(note) for note in found["notes"])  # type: ignore[attr-defined]


def test_a_trace_has_means_a_rate_and_a_busiest_minute(tmp_path: Path) -> None:
    lines = [(0, 100, 10), (10, 300, 30), (20, 200, 20), (600, 200, 20)]
    trace = tmp_path / "day.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"timestamp": at * 1000, "input_length": prompt, "output_length": output, "hash_ids": []}) + "\n"
            for at, prompt, output in lines
        )
    )
    found = requests_of(str(trace), None, None, None)
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (200, 20, 0)
    assert (found.rate, found.peak) == (pytest.approx(4 / 600), pytest.approx(3 / 60))
    plan = planned("--workload", str(trace), "--slo", "ttft=1s")
    load, peak = plan["load"], plan["peak"]
    assert load["rate"] == found.rate and peak["rate"] == found.peak  # type: ignore[index]
    # Ten times as fast, its busiest minute is, too.
    faster = planned("--workload", str(trace), "--rate", str(10 * 4 / 600))
    assert faster["peak"]["rate"] == pytest.approx(0.5)  # type: ignore[index]


def test_blocks_that_came_before_are_cached(tmp_path: Path) -> None:
    trace = tmp_path / "shared.jsonl"

    def cached(*identities: list[int]) -> float:
        trace.write_text(
            "".join(
                json.dumps({"timestamp": 1000 * at, "input_length": 1024, "output_length": 1, "hash_ids": ids}) + "\n"
                for at, ids in enumerate(identities)
            )
        )
        return requests_of(str(trace), None, None, None).cached_tokens

    assert cached([1, 2], [3, 4]) == 0
    assert cached([1, 2], [1, 5]) == 512 / 2
    assert cached([1, 2], [5, 2]) == 0
    assert cached([1, 2], [1, 2]) == 1023 / 2


def test_a_trace_in_words() -> None:
    result = CliRunner().invoke(app, ["plan", "haiku", "--on", "l4", "--workload", str(TRACE), "--slo", "ttft=2s"])
    assert result.exit_code == 0, result.output
    assert "in the busiest minute" in result.stdout and "requests of sample_trace.csv" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("poems", None, None, None), "is none of chat, code, agent, rag, batch, and no trace"),
        (("chat", 5, None, None), "leave --input-len out"),
        (("chat", None, 5, None), "leave --output-len out"),
        (("chat", None, None, 5), "leave --cached-len out"),
        (("missing.csv", None, None, None), "--workload missing.csv cannot be read"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: tuple[str, int | None, int | None, int | None], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        requests_of(*arguments)


def test_one_request_has_no_rate(tmp_path: Path) -> None:
    trace = tmp_path / "one.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,10,5\n")
    with pytest.raises(ConfigurationError, match="so no rate"):
        requests_of(str(trace), None, None, None)


def test_a_batch_has_no_rate() -> None:
    error = CliRunner().invoke(app, ["plan", "haiku", "--on", "l4", "--workload", "batch", "--rate", "3"]).exception
    assert "which a batch that begins together has not" in str(error)
