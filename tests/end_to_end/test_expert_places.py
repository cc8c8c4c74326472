"""A server of 64 experts in four processes: what is chosen is counted, and the next start places experts by that."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.kernels.cpu.native import OBSTACLE
from support.live_server import RunningServer, serving
from support.skewed import EXPERTS, skewed

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

BODIES: list[dict[str, Any]] = [
    {
        "prompt": [20 + (7 * number + place) % 200 for place in range(60 + number)],
        "max_tokens": 12,
        "temperature": 0,
        "logprobs": 0,
        "ignore_eos": True,
    }
    for number in range(32)
]


def _answers(server: RunningServer, bodies: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = pool.map(lambda body: server.post("/v1/completions", body)["choices"], bodies)
        return [(choice[0]["text"], choice[0]["logprobs"]["token_logprobs"]) for choice in answers]  # type: ignore[index]


def _balance(server: RunningServer) -> float:
    return server.metric("penstock_expert_rows_total") / server.metric("penstock_expert_rows_busiest_total")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skewed(tmp_path_factory.mktemp("models") / "skewed")


def test_the_next_start_shares_out_what_is_chosen_most(model: Path, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    options = ("--expert-parallel-size", "4", "--threads", "4", "--dtype", "float32", "--expert-counts", str(counts))
    with serving(model, *options, "--expert-copies", "2") as server:
        expected = _answers(server, BODIES)
        # Half of all rows are of one expert.
        assert _balance(server) < 0.5
    written = counts.read_text()
    assert {len(each) for each in json.loads(written)["counts"].values()} == {EXPERTS}
    with serving(model, *options, "--expert-copies", "2") as server:
        found = _answers(server, BODIES)
        assert _balance(server) >= 0.8
        assert [text for text, _ in found] == [text for text, _ in expected]
        for (_, mine), (_, right) in zip(found, expected, strict=True):
            assert mine == pytest.approx(right, abs=1e-4)
        # Alone, and beside others, to the bit.
        assert _answers(server, BODIES[3:4]) == found[3:4]
        assert _answers(server, BODIES[2:5]) == found[2:5]
    assert counts.read_text() == written


@pytest.mark.parametrize(
    "options, message",
    [
        ({"expert_copies": -1, "expert_parallel_size": 2}, "--expert-copies is -1; it must be 0 or more"),
        ({"expert_copies": 2}, "--expert-copies is for groups .* give --expert-parallel-size, too"),
        ({"expert_counts": "counts.json"}, "--expert-counts is for groups"),
        ({"expert_copies": 2, "expert_parallel_size": 2}, "say with --expert-counts FILE"),
        (
            {"expert_counts": "x", "expert_parallel_size": 2, "pipeline_parallel_size": 2},
            "--expert-counts and --pipeline-parallel-size do not go together",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(model: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        prepare(EngineOptions.of(str(model), **options), api_beside=False)


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "cannot be read"),
        ('{"counts": {"model.layers.0.mlp": [1, 2]}}', "is of another model; name a file for each model"),
        ('{"version": 2, "counts": {}}', "is of another model"),
    ],
)
def test_files_that_are_none(model: Path, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "counts.json"
    file.write_text(content)
    options = EngineOptions.of(str(model), expert_parallel_size=2, expert_counts=str(file))
    with pytest.raises(ConfigurationError, match=message):
        prepare(options, api_beside=False)
