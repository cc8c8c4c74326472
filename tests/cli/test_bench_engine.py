"""`penstock bench engine` with real engines: what it prints, and when."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.engine import EngineFigures, measure_engine
from penstock.cli import bench
from penstock.core.errors import RequestError
from support.checkpoints import make
from support.translator import write_translator

HEADINGS = "batch  prefill tokens/s  decode tokens/s  ms a token"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_translator(tmp_path_factory.mktemp("translator"))


def measure(folder: Path, input_len: int, output_len: int, batch_sizes: list[int], **options: Any) -> None:
    engine = {"model": str(folder), "threads": 1, "max_num_seqs": None, **options}
    bench.run_bench_engine(engine, input_len, output_len, batch_sizes, repeat=1, json_file=None)


def test_each_line_comes_before_the_next_is_measured(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[list[str]] = []

    def watched(*arguments: Any) -> Iterator[EngineFigures]:
        # A clock of seconds, since widths of columns hold for speeds that machines have.
        for figures in measure_engine(*arguments, map(float, itertools.count()).__next__):
            yield figures
            shown.append(capsys.readouterr().out.splitlines())

    monkeypatch.setattr(bench, "measure_engine", watched)
    measure(checkpoint, 8, 4, [1, 3])
    (title, headings, first), (second,) = shown
    assert title == f"{checkpoint}: 8 tokens in, 1 + 4 out, median of 1" and headings == HEADINGS
    for line, batch in ((first, "1"), (second, "3")):
        assert line.split()[0] == batch and len(line.split()) == 4 and len(line) == len(HEADINGS)


def test_an_encoder_decoder_is_measured(translator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(translator, 20, 6, [1, 4])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["1", "4"]
    for line in lines[2:]:
        assert all(figure == "unclear" or float(figure.replace(",", "")) > 0 for figure in line.split()[1:])


def test_sources_and_outputs_that_are_too_long_are_refused(
    translator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RequestError, match="has 129 tokens, and this model's encoder reads at most 128"):
        measure(translator, 129, 4, [1])
    with pytest.raises(RequestError, match="129"):
        measure(translator, 16, 128, [1])
    assert capsys.readouterr().out == ""
