"""A replica that computes nothing: its tokens are made up, and each step takes what planning says of other devices.

Everything else is real: the scheduler and its KV pool, sampling with stops, grammars and penalties, the API. So that
routers, dashboards and clients can be tried against devices that are not there.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from msgspec.structs import replace
from torch import Tensor

from penstock.assembly.choosing import make_choosing
from penstock.assembly.prefix_keys import identity, prefix_keys
from penstock.assembly.simulated_config import declared_config, deployment_of
from penstock.core.choosing import Asked, Found
from penstock.core.config import EngineConfig, SimulatedMachine
from penstock.core.plan import StepPlan, StepResult
from penstock.engine.core import EngineCore, StepHandle
from penstock.engine.messages import StageTime
from penstock.engine.worker import BuiltEngine
from penstock.kernels.batch import StepBatch
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.end_tokens import end_tokens
from penstock.loading.fitting import model_of
from penstock.loading.tokenizers import tokenizer_in
from penstock.loading.vector_modules import modules_of
from penstock.planning.calibration import prior_basis
from penstock.runtime.executor import ModelExecutor
from penstock.runtime.parts import Computing, ExecutorParts
from penstock.scheduler.build import build_scheduler
from penstock.simulation.times import StepTimes
from penstock.stepping.storage import Pairs, Took, no_time
from penstock.stepping.tables import BlockTables
from penstock.text.table import TokenTable

# Of the words that are said, and of the rows of logits that they are chosen from where something is asked of these.
_WORDS, _ROWS = 4096, 16
# How far a logit is below those of words, and above most of them.
_SILENT, _LIKELY = -30.0, 8.0
# What ends strings, lists and numbers, where a grammar wants some.
_CLOSING = frozenset([b'"', b"}", b"]", b",", *(str(digit).encode() for digit in range(10))])
# Between two signs of life while a step lasts, in seconds.
_SLICE = 0.05


def build_simulated(config: EngineConfig, simulated: SimulatedMachine, started: float) -> BuiltEngine:
    """The engine of a configuration that simulates. Raises StartupError."""
    checkpoint = open_checkpoint(Path(config.model.path), weights=False)
    declaration = model_of(checkpoint)
    modules = modules_of(checkpoint, declaration, config.model.reranker)
    tokenizer = tokenizer_in(Path(config.model.tokenizer), declaration.vocab_size)
    table = None if tokenizer is None else tokenizer.table
    ends = end_tokens(checkpoint, tokenizer, declaration.vocab_size).ids
    words = _MadeUp(declaration.vocab_size, table, ends, simulated.output_tokens)
    choosing, grammars = make_choosing(config, checkpoint, declaration, tokenizer, words.choose)
    tables = BlockTables(config.cache.spec.groups, config.cache.spec.block_size)
    computing = Computing(words, _NoStorage(), tables, lambda: _Vectors(modules.size(declaration.decoder.width)))
    deployment = deployment_of(simulated, declared_config(Path(config.model.path)))
    basis = prior_basis(deployment)
    executor = TimedExecutor(ModelExecutor(ExecutorParts(computing, choosing)), StepTimes(deployment, basis.efficiency))
    keys = prefix_keys(config, checkpoint, "simulated")
    scheduler = build_scheduler(config.scheduler, config.cache, namespace=keys.namespace, key_of=keys.key_of)
    return BuiltEngine(
        core=EngineCore(scheduler, executor, grammars),
        progress=executor.beats,
        vocab_size=declaration.vocab_size,
        tokenizer=tokenizer,
        stages=[StageTime("start Python, read the model's configuration", time.monotonic() - started)],
        notes=[
            f"Simulated: no weights are loaded, and tokens are made up. Each step takes the time of {simulated.on}, by "
            f"{basis.said}.",
            *keys.notes,
        ],
        identity=identity(config, checkpoint, "simulated"),
    )


class TimedExecutor:
    """Has each step of an executor last as long as it is said to.

    Args:
        clock, sleep: of seconds.
    """

    def __init__(
        self,
        executor: ModelExecutor,
        times: StepTimes,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._executor = executor
        self._times = times
        self._clock, self._sleep = clock, sleep
        self._beats = 0

    def beats(self) -> int:
        """Rises while a step lasts."""
        return self._beats

    def execute(self, plan: StepPlan) -> StepHandle:
        """Compute the plan; its result is there when its time is over."""
        started = self._clock()
        seconds, _ = self._times.of(plan) if plan.rows else (0.0, 0.0)
        return _TimedStep(self, self._executor.execute(plan), started, seconds)

    def use_idle_time(self) -> bool:
        """Nothing is left for later."""
        return False

    def wait(self, started: float, seconds: float) -> float:
        """Until `seconds` have passed since `started`; returns how many have."""
        self._beats += 1
        while (left := started + seconds - self._clock()) > 0:
            self._sleep(min(left, _SLICE))
            self._beats += 1
        return self._clock() - started


class _TimedStep:
    """A step that is over at its time."""

    under_way: ClassVar[bool] = False

    def __init__(self, executor: TimedExecutor, handle: StepHandle, started: float, seconds: float) -> None:
        self._executor, self._handle = executor, handle
        self._started, self._seconds = started, seconds

    def result(self) -> StepResult:
        """Wait for its end."""
        result = self._handle.result()
        return replace(result, seconds=self._executor.wait(self._started, self._seconds))


class _MadeUp:
    """Says words at random, and ends at random: a model, and what chooses from its logits where nothing is asked.

    Args:
        table: the tokenizer's; without one, any token is a word.
        ends: tokens that end an output.
        mean: tokens of an output, in the mean; they are distributed geometrically.
    """

    def __init__(self, vocab_size: int, table: TokenTable | None, ends: Sequence[int], mean: int) -> None:
        self._random = random.Random(0)
        self._words = _words(vocab_size, table, ends)
        self._end = ends[0] if ends else None
        self._chance = 1 / mean
        draw = torch.Generator().manual_seed(0)
        # The last one ends the output, or what a grammar wants ended before.
        self._rows = torch.full((_ROWS + 1, vocab_size), _SILENT)
        self._rows[:-1, self._words] = torch.randn(_ROWS, len(self._words), generator=draw)
        closing = [] if table is None else [token for token in range(vocab_size) if table.piece(token) in _CLOSING]
        self._rows[:-1:2, closing] = _LIKELY
        self._rows[-1, closing] = 0.0
        if self._end is not None:
            self._rows[-1, self._end] = -_SILENT
        self._turn = 0

    def choose(self, logits: Tensor, asked: Sequence[Asked]) -> "_Said":
        """A word for each, or the end."""
        return _Said([self._next() for _ in asked])

    def _next(self) -> int:
        if self._end is not None and self._random.random() < self._chance:
            return self._end
        return self._random.choice(self._words)

    def run(self, batch: StepBatch) -> Tensor:
        """Logits, the same for all rows of a step but for those that end, and others in the next."""
        self._turn = (self._turn + 1) % _ROWS
        ending = [self._random.random() < self._chance for _ in range(len(batch.logit_rows))]
        if self._end is None or not any(ending):
            return self._rows[self._turn].expand(len(ending), -1)
        return self._rows[[_ROWS if ends else self._turn for ends in ending]]

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """The same."""
        return (self.run(batch),)

    def use_idle_time(self) -> bool:
        """Nothing is left for later."""
        return False


class _Said:
    """Tokens that were made up."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    @property
    def tokens(self) -> Tensor:
        """As a device would keep them."""
        return torch.tensor(self._tokens, dtype=torch.float64)

    def read(self) -> list[Found]:
        """Each with a probability that says nothing."""
        return [(token, 0.0, 0.0) for token in self._tokens]


class _Vectors:
    """Hidden states that are made up."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._draw = torch.Generator().manual_seed(0)

    def run(self, batch: StepBatch) -> Tensor:
        """Numbers at random, [rows, width]."""
        return torch.randn(len(batch.logit_rows), self._width, generator=self._draw)

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """The same."""
        return (self.run(batch),)

    def use_idle_time(self) -> bool:
        """Nothing is left for later."""
        return False


class _NoStorage:
    """A KV pool in which nothing is kept."""

    def clear_blocks(self, blocks: list[int]) -> None:
        """Nothing is in them."""

    def copy_blocks(self, pairs: Pairs) -> None:
        """Nothing is copied."""

    def swap_out(self, pairs: Pairs) -> None:
        """Nothing is copied."""

    def swap_in(self, pairs: Pairs) -> Took:
        """Nothing is copied."""
        return no_time

    def use_idle_time(self) -> None:
        """Nothing is left for later."""


def _words(vocab_size: int, table: TokenTable | None, ends: Sequence[int]) -> list[int]:
    """Tokens that are words of plain letters with a space before them; any others where there are none."""
    usual = [token for token in range(vocab_size) if token not in ends]
    if table is None:
        return usual[:_WORDS]
    found = [
        token
        for token in usual
        if not table.is_special(token) and (piece := table.piece(token))[:1] == b" " and piece[1:].isalpha()
    ]
    return (found or [token for token in usual if not table.is_special(token)])[:_WORDS]
