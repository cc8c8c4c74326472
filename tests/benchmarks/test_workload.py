"""What all drivers share, and what a step of Penstock reads of its weights."""

import json
from pathlib import Path

import bench_penstock
import pytest
import workload


def options(*more: str) -> workload.argparse.Namespace:
    return workload.arguments_parser(None).parse_args(["model", "--output-len", "10", "--batch-sizes", "1,4", *more])


def seconds(prompts: list[list[int]], output_length: int) -> float:
    """1 ms for a prompt's token, 2 ms for a further token of the whole batch."""
    assert all(10 <= token < 30000 for prompt in prompts for token in prompt)
    return 1e-3 * sum(map(len, prompts)) + 2e-3 * (output_length - 1)


def test_prefill_does_not_count_as_decode() -> None:
    found = workload.measure(seconds, options())
    assert found["prefill"] == pytest.approx(1000.0)
    assert found["decode"] == {"1": pytest.approx(500.0), "4": pytest.approx(2000.0)}


def test_prompts_are_the_same_for_everybody() -> None:
    seen: list[list[list[list[int]]]] = []
    for _ in range(2):
        seen.append([])

        def generate(prompts: list[list[int]], output_length: int) -> float:
            seen[-1].append(prompts)
            return seconds(prompts, output_length)

        workload.measure(generate, options())
    assert seen[0] == seen[1]


def test_noise_is_no_figure() -> None:
    with pytest.raises(SystemExit, match="--output-len"):
        workload.measure(lambda prompts, output_length: 1.0, options())


def test_one_line_with_figures_versions_and_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(workload.LAUNCHED, str(workload.time.monotonic() - 5))
    engine = workload.Engine(seconds, 123, {"mode": "fast"})
    workload.drive(options("--threads", "2"), ("pytest", "there-is-no-such-package"), lambda arguments: engine)
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["ready_seconds"] == pytest.approx(5, abs=1)
    assert found["weight_bytes"] == 123 and found["settings"] == {"threads": 2, "mode": "fast"}
    assert set(found["versions"]) == {"python", "pytest"}


def test_bytes_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    (tmp_path / "config.json").write_bytes(b"12345")
    assert workload.files_bytes(str(tmp_path)) == 5


def test_bytes_of_rounded_weights() -> None:
    none, int8, int4, head = (
        bench_penstock.weight_bytes("haiku", body, head)
        for body, head in (("none", None), ("int8", None), ("int4", None), ("int4", "int8"))
    )
    assert int4 * 8 == pytest.approx(int8 * 4.25, rel=1e-6) and int4 < head < int8 < none
