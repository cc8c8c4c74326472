"""Loads a GGUF file with llama.cpp, and writes the logits of some tokens, and the file's matrices as numbers.

    python read_gguf.py MODEL.gguf TOKENS.json RESULT.safetensors

Runs in an environment of its own, which has llama-cpp-python with OpenBLAS, and the package gguf, whose numbers are
those that a file stands for. Logits are computed twice: in large batches, which OpenBLAS multiplies as numbers, and in
small ones, for which llama.cpp rounds activations to 8 bits.
"""

import json
import sys
from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from llama_cpp import GGML_TYPE_F32, Llama
from safetensors.torch import save_file

CONTEXT = 512
# Rows that llama.cpp computes at a time; OpenBLAS takes products of 32 and more.
BATCHES = {"logits": CONTEXT, "rounded": 16}


def main() -> None:
    file, tokens, result = sys.argv[1:]
    found: dict[str, torch.Tensor] = {}
    for name, batch in BATCHES.items():
        kinds = {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}
        model = Llama(file, n_ctx=CONTEXT, n_batch=CONTEXT, n_ubatch=batch, logits_all=True, verbose=False, **kinds)
        for number, ids in enumerate(json.loads(Path(tokens).read_text(encoding="utf-8"))):
            model.reset()
            model.eval(ids)
            found[f"{name}.{number}"] = torch.from_numpy(model.scores[: len(ids)].copy())
        model.close()
    for tensor in gguf.GGUFReader(file).tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2:
            found[tensor.name] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    save_file(found, result)


if __name__ == "__main__":
    main()
