"""What speculation gains, against how often drafts are right, with the theory beside it."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Protocol

import msgspec

from penstock.core.facts import StepTotals
from penstock.core.grammar import Grammar
from penstock.core.sampling import SamplingParams
from penstock.planning.drafts import expected_tokens, speedup

# Prompts of a turn, one batch after the other, so that it is long beside what the other engine has left in the caches.
LEAST_PROMPTS = 16


class Generator(Protocol):
    """What is measured: `penstock.LLM`, or anything that generates for a batch of prompts and counts its steps."""

    @property
    def totals(self) -> StepTotals:
        """What all steps so far have done."""

    def generate(self, prompts: Sequence[Any], params: SamplingParams) -> Sequence[Any]:
        """Complete all prompts in one batch; an output for each."""


class Setting(msgspec.Struct, frozen=True):
    """Who drafts, how deep, and how many tokens beside that in other branches; a depth of None is the one that pays."""

    proposer: str
    depth: int | None
    width: int = 0

    def __str__(self) -> str:
        depth = "auto" if self.depth is None else str(self.depth)
        return f"{depth}+{self.width}" if self.width else depth


class SpeculationFigures(msgspec.Struct, frozen=True):
    """What one setting gains at one temperature and batch size.

    Attributes:
        setting, temperature, batch_size: see above.
        acceptance: how often a drafted token must be right for drafts of this depth to gain what they did.
        drafted: tokens drafted in a row of a step, one behind the other, in the mean.
        tokens_per_row: output tokens of a row of a step, in the mean.
        cost: what drafting a token takes, in steps without drafts.
        tokens_per_second, plain_tokens_per_second: of output, with and without drafts, medians; the time that prompts
            take is part of it.
        speedup: the median of the rounds' ratios.
        decoding_speedup: the same without the steps in which prompts were computed, and the tokens that came of them.
        expected_tokens, expected_speedup: by theory, from acceptance, depth and cost; see `theory`.
    """

    setting: Setting
    temperature: float
    batch_size: int
    acceptance: float
    drafted: float
    tokens_per_row: float
    cost: float
    tokens_per_second: float
    plain_tokens_per_second: float
    speedup: float
    decoding_speedup: float
    expected_tokens: float
    expected_speedup: float


def theory(acceptance: float, depth: float, cost: float) -> tuple[float, float]:
    """Tokens of a step, and how much faster it goes, where each draft is right with the same probability.

    Drafting a token costs `cost` steps, and verifying costs nothing.
    """
    return expected_tokens(acceptance, depth), speedup(acceptance, depth, cost)


class _Run(msgspec.Struct, frozen=True):
    tokens: int
    seconds: float
    did: StepTotals

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def decoding_rate(self) -> float:
        """Tokens a second of the steps in which no prompt was computed."""
        return (self.tokens - self.did.chunk_gained) / max(1e-9, self.seconds - self.did.chunk_seconds)


def measure_speculation(
    plain: Generator,
    drafting: Generator,
    setting: Setting,
    prompts: Sequence[Any],
    temperatures: Sequence[float],
    batch_sizes: Sequence[int],
    output_len: int,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    grammar: Grammar | None = None,
) -> Iterator[SpeculationFigures]:
    """Figures for every temperature and batch size; in each round both engines have a turn, after one that warms up.

    Who begins changes from round to round. Outputs are held to the `grammar`, if there is one.
    """

    def run(engine: Generator, batches: Sequence[Sequence[Any]], temperature: float) -> _Run:
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=output_len, grammar=grammar)
        before, start = engine.totals, clock()
        outputs = [output for chosen in batches for output in engine.generate(chosen, params)]
        seconds = clock() - start
        tokens = sum(len(output.token_ids) for output in outputs)
        return _Run(tokens, seconds, engine.totals.since(before))

    for temperature in temperatures:
        for batch in batch_sizes:
            pairs: list[tuple[_Run, _Run]] = []
            source = cycle(prompts)
            for round_ in range(rounds + 1):
                batches = [list(islice(source, batch)) for _ in range(-(-LEAST_PROMPTS // batch))]
                turns = (plain, drafting) if round_ % 2 else (drafting, plain)
                did = {id(engine): run(engine, batches, temperature) for engine in turns}
                pairs.append((did[id(plain)], did[id(drafting)]))
            yield _figures(setting, temperature, batch, pairs[1:])


def _figures(
    setting: Setting, temperature: float, batch: int, pairs: Sequence[tuple[_Run, _Run]]
) -> SpeculationFigures:
    totals = [run.did for _, run in pairs]
    decodes = sum(did.decodes for did in totals)
    drafted, accepted = sum(did.drafted - did.beside for did in totals), sum(did.accepted for did in totals)
    depth, gained = drafted / max(1, decodes), accepted / max(1, decodes)
    acceptance = _acceptance(depth, gained)
    plain_step = statistics.median(run.seconds / max(1, run.did.steps) for run, _ in pairs)
    # Drafts of all rows are made together, one place after the other.
    cost = sum(did.draft for did in totals) / max(1, sum(did.steps for did in totals)) / max(1e-9, depth) / plain_step
    expected, faster = theory(acceptance, depth, cost)
    return SpeculationFigures(
        setting=setting,
        temperature=temperature,
        batch_size=batch,
        acceptance=acceptance,
        drafted=depth,
        tokens_per_row=1 + gained,
        cost=cost,
        tokens_per_second=statistics.median(run.rate for _, run in pairs),
        plain_tokens_per_second=statistics.median(run.rate for run, _ in pairs),
        speedup=statistics.median(run.rate / off.rate for off, run in pairs),
        decoding_speedup=statistics.median(run.decoding_rate / max(1e-9, off.decoding_rate) for off, run in pairs),
        expected_tokens=expected,
        expected_speedup=faster,
    )


def _acceptance(depth: float, gained: float) -> float:
    """The probability of a draft to be right at which drafts of depth `depth` gain `gained` tokens, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if theory(middle, depth, 0.0)[0] - 1 < gained else (low, middle)
    return low
