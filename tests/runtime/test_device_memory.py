"""A step for which a GPU's memory does not suffice ends its requests; the engine serves those that come after."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock import LLM, SamplingParams
from penstock.kernels.batch import StepBatch
from penstock.runtime.parts import ExecutorParts
from penstock.stepping.model import Model
from support.checkpoints import make
from support.fitted import fitted


class SparseModel:
    """Computes as another, but for its third step."""

    def __init__(self, model: Model) -> None:
        self._model, self._steps = model, 0

    def run(self, batch: StepBatch) -> Tensor:
        return self.results(batch)[0]

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        self._steps += 1
        # The first is that of the start.
        if self._steps == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return self._model.results(batch, *given)

    def use_idle_time(self) -> bool:
        return self._model.use_idle_time()


def with_little_memory(parts: ExecutorParts) -> ExecutorParts:
    return replace(parts, computing=replace(parts.computing, model=SparseModel(parts.computing.model)))


def test_an_engine_goes_on_where_memory_ended(tmp_path: Path) -> None:
    path = str(make("llama", tmp_path))
    options: dict[str, Any] = {"threads": 1, "max_model_len": 256, "speculative": "off"}
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [[7, 8, 9] * 10, [11, 12]]
    expected = [output.token_ids for output in LLM(path, **options).generate(prompts, params)]
    llm = fitted(path, with_little_memory, **options)
    for output in llm.generate(prompts, params):
        (sample,) = output.samples
        assert sample.finish_reason == "error"
        assert "memory ended while this step was computed" in str(sample.error)
    assert llm._core.failure is None and not llm._core.has_work
    assert [output.token_ids for output in llm.generate(prompts, params)] == expected
    assert llm._core.check() is None
