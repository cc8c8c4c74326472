"""StarCoder2: layer norms and an MLP without a gate, all with biases."""

from collections.abc import Mapping
from typing import Any

from penstock.layers.mlp import PlainMlp
from penstock.layers.norm import LayerNorm
from penstock.models.common import BlockStyle, Sight, llama_model, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_rope
from penstock.models.declaration import ModelDeclaration

ARCHITECTURE = "Starcoder2ForCausalLM"


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """Grouped queries and rotary positions as of Llama; with a window in all layers, or none."""
    reader = ConfigReader(config, "starcoder2")
    sizes = read_sizes(reader, kv_heads=2, head_dim=None, max_positions=4096, eps=1e-5, eps_key="norm_epsilon")
    bias = reader.flag("use_bias", True)
    activation = read_activation(reader, "hidden_act", "gelu_pytorch_tanh")
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    window = reader.optional_integer("sliding_window", None)
    reader.choice("norm_type", ("layer_norm",), "layer_norm")
    reader.choice("mlp_type", ("default",), "default")
    reader.ignore("residual_dropout", "embedding_dropout")

    def mlp_of(name: str, _index: int) -> PlainMlp:
        return PlainMlp(f"{name}.mlp", sizes.width, sizes.inner_width, activation, "c_fc", "c_proj", bias)

    return llama_model(
        reader,
        ARCHITECTURE,
        sizes,
        BlockStyle(activation, qkv_bias=bias, output_bias=bias),
        [Sight(rope, window)] * sizes.layers,
        mlp_of=mlp_of,
        norm_of=lambda name: LayerNorm(name, sizes.width, sizes.eps),
        tied=True,
    )
