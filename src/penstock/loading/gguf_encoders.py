"""GGUF's architectures of encoders: what config.json says, and what becomes of hidden states."""

from typing import Any

from penstock.core.config import Reason
from penstock.core.vectors import Dense, Normalize, Pooling, VectorModules, VectorStep
from penstock.loading.gguf import GgufFile
from penstock.loading.gguf_mixtures import Config
from penstock.loading.gguf_values import Values

EMBEDDING_GEMMA = "gemma-embedding"
# Dense layers behind the pooling, in their order; neither has a bias nor an activation.
DENSE = ("dense_2", "dense_3")
# Scores of a pair of texts, which are no vector.
_RANK = 4
_POOLINGS: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_MODERN_PATTERN = 3


def bert(values: Values, _config: Config) -> dict[str, Any]:
    """BERT, and RoBERTa, of whose table of positions the converter leaves out those of padding."""
    return {
        "max_position_embeddings": values.rows("position_embd.weight"),
        "type_vocab_size": values.rows("token_types.weight"),
    }


def nomic_bert(values: Values, _config: Config) -> dict[str, Any]:
    """Gates are SwiGLU's in all published models."""
    return {"type_vocab_size": values.rows("token_types.weight"), "hidden_act": "silu"}


def modern_bert(values: Values, config: Config) -> dict[str, Any]:
    """The first layer of each pattern sees everything."""
    layers, pattern = config["num_hidden_layers"], values.pattern(_MODERN_PATTERN)
    slides = [index % pattern != 0 for index in range(layers)] if isinstance(pattern, int) else pattern[:layers]
    return {
        "local_attention": values.integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "local_rope_theta": values.number("rope.freq_base_swa", 10000.0),
        "attention_bias": values.has_tensor("attn_qkv.bias"),
        "norm_bias": values.has_tensor("ffn_norm.bias"),
    }


def modules_in(file: GgufFile) -> VectorModules | None:
    """What the file says of vectors; None where it says nothing. Raises UnsupportedModel."""
    name = str(file.metadata.get("general.architecture"))
    values = Values(file, name)
    kind, steps = values.integer("pooling_type", None), list[VectorStep]()
    if kind == _RANK:
        raise values.refused("pooling_type", "that of vectors (1 to 3); this file is of a reranker")
    for dense in DENSE:
        entry = file.tensors.get(f"{dense}.weight")
        if name == EMBEDDING_GEMMA and entry is not None and len(entry.shape) == 2:
            steps.append(Dense(dense, entry.shape[1], entry.shape[0], biased=False))
    if kind not in _POOLINGS and not steps:
        return None
    return VectorModules(_POOLINGS.get(kind, "mean"), (*steps, Normalize()))


def told(file: GgufFile) -> tuple[Reason, ...]:
    """What users should know of the file."""
    if file.metadata.get("general.architecture") != EMBEDDING_GEMMA or f"{DENSE[0]}.weight" in file.tensors:
        return ()
    why = "the file was written without the dense layers of its model, so that its vectors are not those of the model"
    return (Reason("vectors", "without dense layers", why),)
