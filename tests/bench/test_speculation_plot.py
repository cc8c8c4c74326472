"""The plot of what drafts gain."""

from pathlib import Path

from penstock.bench.speculation import Setting, SpeculationFigures
from penstock.bench.speculation_plot import draw_speculation


def figures(setting: Setting, batch: int, speedup: float) -> SpeculationFigures:
    return SpeculationFigures(setting, 0.0, batch, 0.7, 3.0, 2.5, 0.1, 100.0, 80.0, speedup, speedup, 2.5, 1.9)


def test_each_setting_has_its_dots_and_its_line(tmp_path: Path) -> None:
    deep, auto = Setting("draft", 3), Setting("ngram", None)
    results = [figures(deep, 1, 1.4), figures(deep, 32, 0.9), figures(auto, 1, 1.2)]
    path = draw_speculation(results, tmp_path)
    drawn = path.read_bytes()
    text = drawn.decode()
    assert "draft, depth 3 (drafted 3.0, each 0.10 steps)" in text and "ngram, depth auto" in text
    assert ">32<" in text and "probability of a draft to be right" in text
    assert draw_speculation(results, tmp_path).read_bytes() == drawn
