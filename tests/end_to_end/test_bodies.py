"""Decoders without a head, as embedders are published: vectors of their last tokens, and nothing else."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock import LLM
from penstock.core.errors import ConfigurationError, InvalidParameter

SIZE = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
BODIES: Mapping[str, Callable[[], Any]] = {
    "LlamaModel": lambda: transformers.LlamaConfig(**SIZE),
    "MistralModel": lambda: transformers.MistralConfig(**SIZE, sliding_window=20),
    "Qwen2Model": lambda: transformers.Qwen2Config(**SIZE),
    "Qwen3Model": lambda: transformers.Qwen3Config(**SIZE, head_dim=8),
    "Gemma2Model": lambda: transformers.Gemma2Config(**SIZE, head_dim=8, sliding_window=20),
}
TEXTS = [[5 + (7 * place) % 100 for place in range(length)] for length in (1, 70, 2, 33)]


@pytest.mark.parametrize("kind", BODIES)
def test_vectors_equal_transformers(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(BODIES[kind](), attn_implementation="eager").eval()
    assert type(model).__name__ == kind
    model.save_pretrained(tmp_path)
    # Steps that are shorter than the longest text.
    llm = LLM(str(tmp_path), max_num_batched_tokens=32, max_num_seqs=4, kv_cache_memory=1 << 20)
    given = [{"prompt_token_ids": text} for text in TEXTS]
    found = llm.embed(given)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            last = model(torch.tensor([text])).last_hidden_state[0, -1]
        np.testing.assert_allclose(vector, (last / last.norm()).numpy(), atol=1e-5)
    # From the prefix cache, the same bits.
    assert llm.embed(given[1]) == found[1:2] and llm.load.prefix_hit_tokens > 0


def test_what_is_of_generation_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.AutoModel.from_config(BODIES["Qwen3Model"]()).save_pretrained(tmp_path)
    for options in ({"speculative": "ngram"}, {"kv_policy": "h2o:64"}, {"static_batching": True}):
        with pytest.raises(ConfigurationError, match="is of no use with an encoder, which generates nothing."):
            LLM(str(tmp_path), **options)  # type: ignore[arg-type]
    llm = LLM(str(tmp_path), kv_cache_dtype="int8", kv_cache_memory=1 << 20)
    with pytest.raises(InvalidParameter, match="generates nothing; ask it for vectors"):
        llm.generate({"prompt_token_ids": [5]})
