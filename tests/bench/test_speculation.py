"""What is measured of drafts, and the theory beside it."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.bench.prompts import WORKLOADS, make_prompts
from penstock.bench.speculation import LEAST_PROMPTS, Setting, measure_speculation, theory
from penstock.core.errors import ConfigurationError
from penstock.core.facts import Drafted, StepFacts, StepTotals
from penstock.core.sampling import SamplingParams


@pytest.mark.parametrize(
    ("acceptance", "depth", "cost", "expected", "speedup"),
    [
        (0.0, 4, 0.1, 1.0, 1 / 1.4),
        (1.0, 4, 0.0, 5.0, 5.0),
        (0.5, 2, 0.25, 1.75, 1.75 / 1.5),
        (0.8, 3, 0.05, 1 + 0.8 + 0.64 + 0.512, 2.952 / 1.15),
    ],
)
def test_theory(acceptance: float, depth: int, cost: float, expected: float, speedup: float) -> None:
    assert theory(acceptance, depth, cost) == pytest.approx((expected, speedup))


class Output:
    """So many tokens."""

    def __init__(self, tokens: int) -> None:
        self.token_ids = [0] * tokens


class Engine:
    """Gives a number of tokens in a step of a second, drafting for a part of it, once prompts are computed."""

    def __init__(self, clock: list[float], drafted: int, accepted: int, draft: float, prompt: float = 0.0) -> None:
        self.totals = StepTotals()
        self.asked: list[tuple[int, float]] = []
        self._clock, self._drafted, self._accepted, self._draft = clock, drafted, accepted, draft
        self._prompt = prompt

    def generate(self, prompts: Sequence[Any], params: SamplingParams) -> list[Output]:
        assert params.max_tokens is not None
        self.asked.append((len(prompts), params.temperature))
        left = params.max_tokens
        if self._prompt:
            self.totals = self.totals.add(StepFacts(execute=self._prompt, chunk_tokens=9, rows=1, sampled=1))
            self._clock[0] += self._prompt
            left -= 1
        for _ in range(left // (1 + self._accepted)):
            drafts = [Drafted(0, 0, self._drafted, self._accepted)] * len(prompts) if self._drafted else []
            facts = StepFacts(draft=self._draft, execute=1.0, decodes=len(prompts), rows=len(prompts), drafts=drafts)
            self.totals = self.totals.add(facts)
            self._clock[0] += 1.0 + self._draft
        return [Output(params.max_tokens) for _ in prompts]


def test_figures_are_of_rounds_that_take_turns() -> None:
    clock = [0.0]
    plain, drafting = Engine(clock, 0, 0, 0.0), Engine(clock, 4, 2, 0.2)
    setting = Setting("ngram", 4)
    found = list(measure_speculation(plain, drafting, setting, [[1], [2]], [0.0, 0.8], [1, 3], 12, 2, lambda: clock[0]))
    assert [(each.temperature, each.batch_size) for each in found] == [(0.0, 1), (0.0, 3), (0.8, 1), (0.8, 3)]
    # A round that warms up, and two that count, of as many batches as it takes for a turn to be long.
    batches = {1: LEAST_PROMPTS, 3: 6}
    wanted = [(batch, warm) for warm in (0.0, 0.8) for batch in (1, 3) for _ in range(3 * batches[batch])]
    assert plain.asked == drafting.asked == wanted
    for figures in found:
        assert (figures.drafted, figures.tokens_per_row) == (4, 3)
        assert figures.tokens_per_second == pytest.approx(figures.batch_size * 3 / 1.2)
        assert figures.plain_tokens_per_second == pytest.approx(figures.batch_size)
        assert figures.speedup == figures.decoding_speedup == pytest.approx(2.5)
        assert figures.cost == pytest.approx(0.05)
        assert figures.expected_tokens == pytest.approx(3.0)
        assert figures.expected_speedup == pytest.approx(2.5)
        assert theory(figures.acceptance, 4, 0.0)[0] == pytest.approx(3.0)


def test_decoding_is_told_apart_from_prompts() -> None:
    clock = [0.0]
    plain, drafting = Engine(clock, 0, 0, 0.0, prompt=3.0), Engine(clock, 4, 2, 0.2, prompt=3.0)
    (found,) = measure_speculation(plain, drafting, Setting("ngram", 4), [[1]], [0.0], [1], 13, 1, lambda: clock[0])
    assert found.speedup == pytest.approx(15 / 7.8)
    assert found.decoding_speedup == pytest.approx(12 / 4.8)


def test_prompts_are_the_same_each_time() -> None:
    def encode(messages: Sequence[Any]) -> list[int]:
        assert messages[-1]["role"] == "user"
        return list(" ".join(str(message["content"]) for message in messages).encode())

    for workload in WORKLOADS:
        prompts = make_prompts(workload, 5, encode, 100)
        assert prompts == make_prompts(workload, 5, encode, 100) and len({tuple(prompt) for prompt in prompts}) == 5
    with pytest.raises(ConfigurationError, match="chat, quote, json, random"):
        make_prompts("poems", 1, encode, 100)
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        make_prompts("chat", 1, None, 100)
