"""Transformers' continuous batching on a GPU: seconds of a batch of fresh prompts, one line of JSON for each run.

    python bench_transformers_gpu.py CONFIG_FOLDER BATCH CONTEXT TOKENS

Weights are random and made on the GPU. Each line of its input asks for one more run; the first warms up.
"""

import json
import random
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig


def main() -> None:
    folder, (batch, context, tokens) = sys.argv[1], map(int, sys.argv[2:])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    source = random.Random(0)

    def seconds(count: int) -> float:
        prompts = [[source.randrange(3, config.vocab_size) for _ in range(context)] for _ in range(batch)]
        generation = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
        begun = time.perf_counter()
        found = model.generate_batch(prompts, generation_config=generation, persistent_manager=True, progress_bar=False)
        taken = time.perf_counter() - begun
        made = [len(each.generated_tokens) for each in found.values()]
        if made != [count] * batch:
            raise SystemExit(f"transformers made {made} tokens, not {count} each.")
        return taken

    for _ in sys.stdin:
        first = seconds(1)
        print(json.dumps({"first": first, "whole": seconds(tokens + 1)}), flush=True)


if __name__ == "__main__":
    main()
