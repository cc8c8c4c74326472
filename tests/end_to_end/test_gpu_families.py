"""Each family on a GPU answers as transformers does: heads, norms, windows, caps and rotations of all of them."""

from pathlib import Path

import pytest
import torch

from penstock import LLM, SamplingParams
from support import checkpoints
from support.device import DEVICE, needs_gpu

pytestmark = [pytest.mark.cuda, needs_gpu]

TOKENS = 12
LENGTHS = (1, 17, 70, 131)


def greedy(path: Path, prompt: list[int]) -> list[int]:
    """What transformers' model says next, computed anew for each token."""
    model, found = checkpoints.load_reference(path), list(prompt)
    for _ in range(TOKENS):
        found.append(int(checkpoints.reference_logits(model, found)[-1].argmax()))
    return found[len(prompt) :]


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    path = checkpoints.make(family, tmp_path / family)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(4, checkpoints.VOCAB_SIZE, (length,), generator=generator).tolist() for length in LENGTHS]
    llm = LLM(
        str(path),
        device=str(DEVICE),
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        kv_cache_memory=64 << 20,
        speculative="off",
    )
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    found = [each.token_ids for each in llm.generate(prompts, params)]
    assert found == [greedy(path, prompt) for prompt in prompts]
