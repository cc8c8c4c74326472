"""Gemma 2: Gemma 3's blocks without norms over heads; each second layer is local, and scores are bounded."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.models.common import Sight, read_sizes
from penstock.models.config import ConfigReader, read_activation, read_dtype, read_layer_types, read_rope
from penstock.models.declaration import ModelDeclaration
from penstock.models.gemma3 import GemmaStyle, gemma_decoder

FAMILY = "gemma2"
ARCHITECTURE = "Gemma2ForCausalLM"
# Published configurations leave out some of what the first release had.
_DEFAULTS = {"head_dim": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """The first layer is local, the second sees all, and so on, unless `layer_types` says which do."""
    reader = ConfigReader({**_DEFAULTS, **config}, FAMILY)
    sizes = read_sizes(reader, kv_heads=4, head_dim=None, max_positions=8192)
    style = GemmaStyle(
        activation=read_activation(reader, "hidden_activation", "gelu_pytorch_tanh"),
        scale=reader.number("query_pre_attn_scalar", 256.0) ** -0.5,
        softcap=reader.optional_number("attn_logit_softcapping"),
        bias=reader.flag("attention_bias", False),
        head_norm=False,
    )
    slides = read_layer_types(reader, sizes.layers)
    if slides is None:
        slides = tuple(index % 2 == 0 for index in range(sizes.layers))
    window = reader.optional_integer("sliding_window", 4096)
    if reader.optional_integer("sliding_window_size", window) != window:
        raise reader.refuse(
            "sliding_window_size", config["sliding_window_size"], f"implemented: sliding_window, {window}"
        )
    if window is None and any(slides):
        raise ModelFileError("config.json has sliding layers, but no sliding_window.")
    rope = read_rope(reader, sizes.heads.head_dim, sizes.max_positions)
    tied = reader.flag("tie_word_embeddings", True)
    logit_cap = reader.optional_number("final_logit_softcapping")
    dtype = read_dtype(reader)
    # The older name of what the newer one says, of an approximation that is always taken.
    reader.ignore("architectures", "model_type", "hidden_act")
    reader.refuse_unread()
    sights = [Sight(rope, window if slide else None) for slide in slides]
    decoder = gemma_decoder(sizes, style, sights, tied=tied, logit_cap=logit_cap)
    return ModelDeclaration(ARCHITECTURE, FAMILY, sizes.vocab_size, sizes.max_positions, dtype, decoder)
