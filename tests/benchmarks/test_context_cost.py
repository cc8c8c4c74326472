"""Costs over contexts: contexts are built once and must stay cached; the page has every cell."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import context_cost
import pytest
from context_cost import Cost

from penstock import LLM, SamplingParams
from penstock.kernels.program import Program


class Engine:
    """Keeps all prompts cached, unless `forgets`; a clock that its calls move."""

    vocab_size = 1000

    def __init__(self, monkeypatch: pytest.MonkeyPatch, forgets: bool = False) -> None:
        self.calls: list[tuple[int, int, int | None]] = []
        self.now, self.forgets = 0.0, forgets
        monkeypatch.setattr(context_cost.time, "perf_counter", lambda: self.now)

    def generate(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[SimpleNamespace]:
        length, tokens = len(prompts[0]), params.max_tokens or 0
        self.calls.append((len(prompts), length, tokens))
        self.now += 5.0 + (tokens - 1) * (len(prompts) + length / 100)
        return [SimpleNamespace(cached_tokens=0 if self.forgets else length - 16) for _ in prompts]


def test_contexts_are_built_once_and_steps_alone_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch)
    found = context_cost.measure(engine, [100, 200], [1, 4], steps=8, runs=1)
    assert engine.calls[0] == (4, 200, 1)
    assert {cost.context for cost in found} == {100, 200}
    assert [cost.milliseconds_per_step for cost in found] == pytest.approx([2000, 3000, 5000, 6000])
    assert found[-1].milliseconds_per_token == pytest.approx(1500)
    assert found[-1].tokens_per_second == pytest.approx(1 / 1.5)


def test_contexts_that_were_pushed_out_are_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="KV pool"):
        context_cost.measure(Engine(monkeypatch, forgets=True), [64], [1], steps=2, runs=1)


def test_the_page_has_both_tables() -> None:
    costs = [Cost(context, batch, 10.0 * batch) for batch in (1, 16) for context in (128, 512)]
    text = context_cost.page(costs, "Costs", "a machine", "A workload.", "contexts.svg")
    assert "| context | batch 1 | batch 16 |" in text
    assert text.count("| 512 | 100 | 100 |") == 1 and text.count("| 512 | 10 | 10 |") == 1
    assert "(contexts.svg)" in text


def test_numbers() -> None:
    assert context_cost.numbers("512,128,512") == [128, 512]
    for text in ("0,1", "x"):
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            context_cost.numbers(text)


def test_the_plot_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    costs = [Cost(context, batch, float(context)) for batch in (1, 4) for context in (128, 512)]
    for name in ("a.svg", "b.svg"):
        context_cost.draw(costs, "Costs", tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()
    assert "batch 4" in (tmp_path / "a.svg").read_text()


def test_contexts_of_a_real_engine_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("haiku", speculative="off", max_num_seqs=4, threads=1)

    def computed(*_: object) -> None:
        raise AssertionError("a context was computed")

    with monkeypatch.context() as patched:
        patched.setattr(Program, "results", computed)
        prompts = context_cost.build_contexts(llm, 2, 64)
    found = llm.generate(prompts, SamplingParams(max_tokens=1))
    assert all(output.cached_tokens >= 48 for output in found)
