"""Loads a checkpoint with transformers, and writes the logits of some tokens, and its weights as numbers.

    python read_compressed.py CHECKPOINT TOKENS.json RESULT.safetensors

Runs in an environment of its own, which has transformers and compressed-tensors.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig


def main() -> None:
    checkpoint, tokens, result = sys.argv[1:]
    said = json.loads((Path(checkpoint) / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    # Loading as numbers knows one width for all projections; loading as integers knows no zeros.
    one_width = len(said["config_groups"]) == 1
    how = {"quantization_config": CompressedTensorsConfig(run_compressed=False)} if one_width else {}
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, **how).eval()
    found: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        for number, ids in enumerate(json.loads(Path(tokens).read_text(encoding="utf-8"))):
            found[f"logits.{number}"] = model(torch.tensor([ids])).logits[0].float().contiguous()
    # Integers become numbers when the model is first run.
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers" in name:
            found[f"{name}.weight"] = module.weight.detach().contiguous().clone()
    save_file(found, result)


if __name__ == "__main__":
    main()
