"""A device whose work nobody knows before waiting for it: the CPU's kernels behind what the executor asks of a GPU.

It computes at once, which is the order in which a GPU carries out what is launched, and keeps tokens to itself until
they are read.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from penstock.assembly.backend import backend_of
from penstock.assembly.build import build_engine
from penstock.core.choosing import Asked
from penstock.core.config import EngineConfig
from penstock.engine.worker import BuiltEngine
from penstock.kernels.batch import StepBatch
from penstock.runtime.parts import ExecutorParts
from penstock.sampling.draw import TokenDraw
from penstock.stepping.model import Model


class Tokens:
    """Tokens in the device's memory."""

    def __init__(self, device: "LaggingDevice", number: int, found: list[tuple[int, float, float]]) -> None:
        self.tokens = torch.tensor([float(token) for token, *_ in found], dtype=torch.float64)
        self._device, self._number, self._found = device, number, found

    def read(self) -> list[tuple[int, float, float]]:
        self._device.events.append(("read", self._number))
        failure = self._device.failures.pop(self._number, None)
        if failure is not None:
            raise failure
        return self._found


class LaggingDevice:
    """Takes the place of what computes for an engine that it builds, with temperature as all that narrows a choice.

    Attributes:
        events: ("launch", n) and ("read", n) for the n-th step whose tokens are chosen there, in order.
        failures: what reading the n-th such step raises.
        spoil: called with the number of each such step and its logits, which it may change.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.failures: dict[int, BaseException] = {}
        self.spoil: Callable[[int, Tensor], None] = lambda number, logits: None
        self._model: Model | None = None

    def build(self, config: EngineConfig, progress: Callable[[int, int], None]) -> BuiltEngine:
        """An engine as it is for a device: its steps are planned while others are under way."""
        assert config.scheduler.max_outstanding == 1, "the CPU's engine plans one step at a time"
        ahead = replace(config, scheduler=replace(config.scheduler, max_outstanding=2))
        backend = dataclasses.replace(backend_of(config), choose=self.choose)
        return build_engine(ahead, progress, backend=backend, fit=self._fit)

    def _fit(self, parts: ExecutorParts) -> ExecutorParts:
        self._model = parts.computing.model
        return dataclasses.replace(parts, computing=dataclasses.replace(parts.computing, model=self))

    @property
    def launched(self) -> int:
        """Steps whose tokens were chosen here so far."""
        return sum(event == "launch" for event, _ in self.events)

    @property
    def most_ahead(self) -> int:
        """How many steps were launched and not read, at most."""
        ahead = most = 0
        for event, _ in self.events:
            ahead += 1 if event == "launch" else -1
            most = max(most, ahead)
        return most

    def use_idle_time(self) -> bool:
        assert self._model is not None
        return self._model.use_idle_time()

    def run(self, batch: StepBatch) -> Tensor:
        return self.results(batch)[0]

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        assert self._model is not None
        ids = batch.token_ids.clone()
        if batch.carried is not None:
            ids[ids < 0] = batch.carried[-1 - ids[ids < 0]].long()
        return self._model.results(dataclasses.replace(batch, token_ids=ids, carried=None), *given)

    def choose(self, logits: Tensor, asked: Sequence[Asked]) -> Tokens:
        number = self.launched
        self.events.append(("launch", number))
        logits = logits.clone()
        self.spoil(number, logits)
        return Tokens(self, number, [self._one(logits, each) for each in asked])

    def _one(self, logits: Tensor, asked: Asked) -> tuple[int, float, float]:
        row, temperature, top_k, top_p, log_min_p, key = asked
        assert (top_k, top_p, log_min_p) == (0, 1.0, -math.inf), "nothing narrows the choice"
        mine = logits[row].float().numpy()
        peak = float(mine.max())
        token = int(mine.argmax())
        if temperature > 0 and math.isfinite(peak):
            token = TokenDraw(len(mine)).draw(mine, peak, temperature, None, key)
        return token, peak, float(torch.log_softmax(logits[row].double(), 0)[token])
