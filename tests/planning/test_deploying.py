"""A model on a machine: which formats its weights, its embedding and its head have."""

import json
from pathlib import Path

import msgspec
import pytest

from penstock.planning.deploying import deploy
from penstock.planning.hardware import Machine, device_of

CONFIG = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())["Llama-3.1-8B"]
PROCESSOR = msgspec.structs.replace(device_of("h100"), name="some processor", kind="cpu")
ROUNDED = CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}}


@pytest.mark.parametrize(
    ("config", "kind", "asked", "weights", "head"),
    [
        (CONFIG, "gpu", "int8", 8, 16),
        (CONFIG, "cpu", "int8", 8, 8),
        (CONFIG, "cpu", "bfloat16", 16, 16),
        (CONFIG, "cpu", None, 16, 16),
        (ROUNDED, "cpu", None, 4 + 20 / 128, 16),
        (CONFIG, "gpu", "q4_k_m", 4.89, 4.89),
        (CONFIG, "gpu", "float32", 32, 32),
    ],
)
def test_penstock_rounds_the_head_on_a_processor(
    config: dict[str, object], kind: str, asked: str | None, weights: float, head: float
) -> None:
    """Other engines keep it in 16 bits, as do files of integers."""
    device = PROCESSOR if kind == "cpu" else device_of("h100")
    found = deploy(config, Machine(device), 1, dtype=asked, kv_cache_dtype="bfloat16")
    assert (found.weights.bits, found.head.bits) == (weights, head)
