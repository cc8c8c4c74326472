"""How much was computed: it rises with every step, and by more than one for each."""

from pathlib import Path

from penstock import LLM, SamplingParams
from penstock.kernels.progress import operations_done
from support.checkpoints import make


def test_every_step_of_a_model_is_some_operations(tmp_path: Path) -> None:
    llm = LLM(str(make("llama", tmp_path)), threads=1, max_model_len=64)
    before, steps = operations_done(), llm.load.step
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8, ignore_eos=True))
    assert operations_done() - before > llm.load.step - steps > 0
