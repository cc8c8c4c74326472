"""Plans stand beside the figures of a GPU that are kept with the documents."""

import sys
from pathlib import Path

import gpu_plans
import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu"


def test_each_figure_has_its_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        sys, "argv", ["gpu_plans.py", "--on", "h200", str(FIGURES / "8b.json"), str(FIGURES / "1b.json")]
    )
    gpu_plans.main()
    shown = capsys.readouterr().out
    assert "| 8b | bfloat16 | decode, batch 1, context 512 | 4.54 |" in shown
    assert shown.count("| 1b | bfloat16 |") == 7 and "in the median" in shown
