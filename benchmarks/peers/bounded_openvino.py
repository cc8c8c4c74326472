"""Answers behind contexts that OpenVINO GenAI's cache eviction has bounded; see ../bounded_peers.py.

It drops blocks of 32 tokens from the end of the prompt on, for each layer what all its heads attend to the least: the
prompt's last 8 tokens first, then outputs, too. Weights are float32, KV cache and computation bfloat16. What is left is
not rotated to new positions (`apply_rotation`): with a KV cache in bfloat16, float32 or 8 bits, OpenVINO 2026.4.1 ends
there, or answers nonsense.
"""

import json
import tempfile
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from optimum.intel import OVModelForCausalLM
from workload import trials_parser, versions

BLOCK = 32
KV_GIB = 1


def main() -> None:
    arguments = trials_parser(__doc__).parse_args()
    trials = json.loads(arguments.trials.read_text())
    with tempfile.TemporaryDirectory() as folder:
        OVModelForCausalLM.from_pretrained(arguments.model, export=True, load_in_8bit=False).save_pretrained(folder)
        rows = [row(folder, trials, "all", None, arguments.threads)]
        rows += [row(folder, trials, "NORM_SUM", eviction(held), arguments.threads) for held in trials["held"]]
    print(json.dumps({"rows": rows, "versions": versions(("openvino", "openvino-genai", "optimum-intel"))}))


def eviction(held: int) -> Any:
    """At most this number of tokens, with the least sinks that there can be, and an eighth of them recent ones."""
    held = held // BLOCK * BLOCK
    recent = max(BLOCK, min(128, held // 8 // BLOCK * BLOCK))
    return genai.CacheEvictionConfig(BLOCK, recent, held, genai.AggregationMode.NORM_SUM)


def row(model: str, trials: dict[str, Any], name: str, bound: Any, threads: int) -> dict[str, Any]:
    """All answers with a bound; there are no log probabilities of prompts."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = KV_GIB
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = max(len(prompt) for prompts in trials["prompts"].values() for prompt in prompts)
    if bound is not None:
        scheduler.use_cache_eviction = True
        scheduler.cache_eviction_config = bound
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16",
        "KV_CACHE_PRECISION": "bf16",
    }
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler_config=scheduler, device="CPU", properties=properties)
    config = genai.GenerationConfig()
    config.max_new_tokens = trials["tokens"]
    config.do_sample = False
    config.stop_token_ids = set(trials["stop"])
    answers = {}
    for task, prompts in trials["prompts"].items():
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        # One at a time, so that each prompt is read in one step.
        answers[task] = [list(pipeline.generate([each], [config])[0].m_generation_ids[0]) for each in inputs]
    held = None if bound is None else bound.get_max_cache_size()
    return {"policy": name, "held": held, "answers": answers, "perplexity": None}


if __name__ == "__main__":
    main()
