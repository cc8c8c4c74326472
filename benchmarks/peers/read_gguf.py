"""Loads a GGUF file with llama.cpp, and writes the logits of some tokens, and the file's matrices as numbers.

    python read_gguf.py MODEL.gguf TOKENS.json RESULT.safetensors

Runs in an environment of its own, which has llama-cpp-python, and the package gguf, whose numbers are those that a file
stands for.
"""

import json
import sys
from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from llama_cpp import Llama
from safetensors.torch import save_file

CONTEXT = 512


def main() -> None:
    file, tokens, result = sys.argv[1:]
    model = Llama(file, n_ctx=CONTEXT, n_batch=CONTEXT, logits_all=True, verbose=False)
    found: dict[str, torch.Tensor] = {}
    for number, ids in enumerate(json.loads(Path(tokens).read_text(encoding="utf-8"))):
        model.reset()
        model.eval(ids)
        found[f"logits.{number}"] = torch.from_numpy(model.scores[: len(ids)].copy())
    for tensor in gguf.GGUFReader(file).tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2:
            found[tensor.name] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    save_file(found, result)


if __name__ == "__main__":
    main()
