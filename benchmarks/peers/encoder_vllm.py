"""The part of vLLM in ../encoder_speed.py, on processors."""

import os
from typing import Any

from encoder_work import serve
from workload import usable_cores


def main() -> None:
    serve(load)


def load(options: dict[str, Any]) -> Any:
    """As `serve` needs it. vLLM reads its environment when it is imported; it computes in this process."""
    cores = ",".join(map(str, usable_cores()[: options["threads"]]))
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        # Texts are longer than a checkpoint may say that they are at most.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    }
    from vllm import LLM

    llm = LLM(options["model"], runner="pooling", dtype=options["kind"], max_model_len=options["max_tokens"])
    tokenizer = llm.get_tokenizer()

    def embed(texts: list[str]) -> Any:
        return llm.embed(texts, use_tqdm=False)

    return embed, lambda texts: len(tokenizer.encode(texts[-1]))


if __name__ == "__main__":
    main()
