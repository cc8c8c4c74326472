"""A step for which a GPU's memory does not suffice ends its requests; the engine serves those that come after."""

from pathlib import Path
from typing import Any

import torch

from penstock import LLM, SamplingParams
from support.checkpoints import make


def test_an_engine_goes_on_where_memory_ended(tmp_path: Path) -> None:
    llm = LLM(str(make("llama", tmp_path)), threads=1, max_model_len=256, speculative="off")
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [[7, 8, 9] * 10, [11, 12]]
    expected = [output.token_ids for output in llm.generate(prompts, params)]
    executor, steps = llm._core._executor, 0
    results = executor._model.results

    def sparse(batch: Any, *given: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return results(batch, *given)

    executor._model.results = sparse
    for output in llm.generate(prompts, params):
        (sample,) = output.samples
        assert sample.finish_reason == "error"
        assert "memory ended while this step was computed" in str(sample.error)
    assert llm._core.failure is None and not llm._core.has_work
    assert [output.token_ids for output in llm.generate(prompts, params)] == expected
    assert llm._core.check() is None
