"""The model and about the two cores that docs/benchmarks/ranks.md is of, for plans."""

import json
from pathlib import Path

from penstock.planning.formats import FORMATS
from penstock.planning.hardware import Device
from penstock.planning.latency import Deployment
from penstock.planning.reading import shape_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())
# 16 layers, 2,048 wide, 32 query heads, 8 heads of keys, 1.24 billion parameters.
BILLION = shape_of(
    MODELS["Llama-3.1-8B"]
    | {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "num_attention_heads": 32}
    | {"head_dim": 64, "tie_word_embeddings": True}
)
CORES = Device("2 cores", "cpu", 20e9, 22e9, {"bf16": 1.5e12, "int8": 2.2e12}, 0.0, 0.0, "made up")


def one(weights: str = "int4") -> Deployment:
    """The model in one process that has both cores."""
    return Deployment(BILLION, CORES, weights=FORMATS[weights], head=FORMATS[weights])
