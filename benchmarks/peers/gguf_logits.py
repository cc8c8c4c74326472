"""Loads a GGUF file with llama.cpp, and writes the logits of some tokens, in float32, row by row.

    python gguf_logits.py MODEL.gguf TOKENS.json RESULT

Runs in an environment of its own, which has llama-cpp-python. Nothing is rounded but what the file has, and activations
where its matrices are blocks.
"""

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import GGML_TYPE_F32, Llama


def main() -> None:
    file, tokens, result = sys.argv[1:]
    ids = json.loads(Path(tokens).read_text(encoding="utf-8"))
    context = 2 * len(ids)
    batches = {"n_ctx": context, "n_batch": context, "n_ubatch": context}
    kinds = {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32, "flash_attn": False}
    model = Llama(file, **batches, **kinds, logits_all=True, verbose=False)
    model.eval(ids)
    Path(result).write_bytes(model.scores[: len(ids)].astype(np.float32).tobytes())


if __name__ == "__main__":
    main()
