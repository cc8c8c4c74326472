"""Prefill and decode speed of an engine in this process, over batch sizes."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from penstock.core.sampling import SamplingParams


class Generator(Protocol):
    """What is measured: `penstock.LLM`, or anything that generates for a batch of prompts."""

    def generate(self, prompts: Sequence[list[int]], params: SamplingParams) -> Sequence[Any]:
        """Complete all prompts in one batch; an output for each."""


class EngineFigures(msgspec.Struct, frozen=True):
    """Speeds at one batch size B, prompts of N tokens, M further output tokens.

    Attributes:
        batch_size: B.
        prefill_tokens_per_second: B·N tokens over the time for one output token each.
        decode_tokens_per_second: B·M tokens over the time for M+1 output tokens minus the time for one; None where
            the first took no longer than the second, which happens on a machine with other work, and tells nothing.
        milliseconds_per_token: from a sequence's token to its next; the time of a step where nothing drafts; None as
            above.
    """

    batch_size: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float | None
    milliseconds_per_token: float | None


def as_text(figure: float | None, form: str) -> str:
    """A figure for people; "unclear" where there is none."""
    return "unclear" if figure is None else format(figure, form)


def measure_engine(
    engine: Generator,
    batch_sizes: Sequence[int],
    input_len: int,
    output_len: int,
    vocab_size: int,
    repeat: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[EngineFigures]:
    """Figures for each batch size: medians of `repeat` runs with fresh random prompts, after one that warms up."""
    source = random.Random(0)

    def seconds(batch: int, tokens: int) -> float:
        prompts = [[source.randrange(vocab_size) for _ in range(input_len)] for _ in range(batch)]
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        start = clock()
        engine.generate(prompts, params)
        return clock() - start

    for batch in batch_sizes:
        seconds(batch, min(4, output_len + 1))
        first = statistics.median(seconds(batch, 1) for _ in range(repeat))
        whole = statistics.median(seconds(batch, output_len + 1) for _ in range(repeat))
        decode = whole - first
        rate, gap = (batch * output_len / decode, decode / output_len * 1e3) if decode > 0 else (None, None)
        yield EngineFigures(batch, batch * input_len / first, rate, gap)
