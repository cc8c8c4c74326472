"""A model's shape from its `config.json`, of whatever family: only numbers are read, and what is missing is told."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ConfigurationError
from penstock.planning.shape import AttentionShape, MlpShape, ModelShape, grouped

# Where a multimodal model keeps the decoder's part.
_NESTED = ("text_config", "language_config", "llm_config")
# No number of a model is larger.
_MOST = 10**12
# Families whose MLP has two matrices, and those whose class ties the head unless the file says otherwise.
_UNGATED = ("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "nemotron", "opt", "phi", "starcoder2")
_TIED = ("bloom", "cohere", "cohere2", "falcon", "gpt2", "gpt_bigcode", "opt")
# Whose attention and MLP read the same, so that what both make is added up together; and whose query heads are normed
# together, as their key heads are.
_PARALLEL = ("cohere", "cohere2", "falcon", "gptj", "phi")
_NORMED = ("minimax_m2", "olmo2", "olmo3", "olmoe")
# Fields that say of each layer what it is, in ways that are not read.
_PATTERNS = (
    "hybrid_override_pattern",
    "attn_layer_period",
    "attention_layer_indices",
    "block_configs",
    "layers_block_type",
)


class _Fields:
    """Numbers of a configuration by any of their names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.assumed: list[str] = []

    def find(self, *names: str) -> int | None:
        """The first of the names that has a whole number above zero; None where none has."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
                return value
        return None

    def need(self, *names: str) -> int:
        """The same; raises ConfigurationError where none has one."""
        value = self.find(*names)
        if value is None:
            raise ConfigurationError(
                f"The model's config has no {names[0]}, or none that is one number; a plan needs it."
            )
        return value

    def assume(self, what: str) -> None:
        """Note what was taken although the configuration does not say it."""
        self.assumed.append(what)


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape of the decoder that a parsed `config.json` describes.

    Raises ConfigurationError where a number is missing without which nothing can be said, or there is an encoder too.
    """
    config = decoder_config(config)
    if config.get("is_encoder_decoder") is True:
        raise ConfigurationError("The model has an encoder and a decoder; plans know decoders alone yet.")
    for name in _PATTERNS:
        if config.get(name) is not None:
            raise ConfigurationError(f"The model's config describes its layers by {name}, which plans cannot read yet.")
    fields = _Fields(config)
    hidden = fields.need("hidden_size", "n_embd", "d_model")
    count = fields.need("num_hidden_layers", "n_layer", "num_layers")
    vocabulary = fields.find("vocab_size")
    if vocabulary is None:
        vocabulary = 128_000
        fields.assume("a vocabulary of 128,000 tokens, since vocab_size is missing")
    kinds = _kinds(fields, count)
    # The last layers of some models read what others before them keep, and have wider MLPs for that.
    own = count - (fields.find("num_kv_shared_layers") or 0)
    attentions = [_attention(fields, hidden, kind, borrows=index >= own) for index, kind in enumerate(kinds)]
    mlps = [_mlp(fields, hidden, index, wide=index >= own) for index in range(count)]
    each = fields.find("hidden_size_per_layer_input") or 0
    rows = fields.find("vocab_size_per_layer_input") or vocabulary
    of_inputs = str(config.get("model_type", "")).startswith("gemma4")
    return ModelShape(
        hidden=hidden,
        vocabulary=vocabulary,
        layers=grouped(zip(attentions, mlps, strict=True)),
        tied=bool(config.get("tie_word_embeddings", _tied_by_default(config))),
        max_context=fields.find("max_position_embeddings", "n_positions", "max_sequence_length") or 0,
        assumed=tuple(dict.fromkeys(fields.assumed)),
        table_parameters=rows * count * each,
        handed_values=hidden + (count * each if of_inputs else hidden),
        input_values=count * each if of_inputs else 0,
    )


def decoder_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the decoder, which multimodal models have in a part of their own."""
    for name in _NESTED:
        inner = config.get(name)
        if isinstance(inner, Mapping) and "num_hidden_layers" in inner:
            config = {**config, **inner}
    return config


def _tied_by_default(config: Mapping[str, Any]) -> bool:
    """Families whose class ties the head unless the file says otherwise."""
    model_type = str(config.get("model_type", ""))
    return model_type.startswith("gemma") or model_type in _TIED


def _kinds(fields: _Fields, count: int) -> list[str]:
    """What each layer attends to: "full", "window", or "recurrent"."""
    config = fields.config
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == count:
        return [_kind(str(name)) for name in types]
    if types is not None:
        fields.assume("layers that are alike, since layer_types does not have one name a layer")
        return ["full"] * count
    every = fields.find("full_attention_interval")
    if every is not None:
        return ["full" if (index + 1) % every == 0 else "recurrent" for index in range(count)]
    if fields.find("sliding_window") is None or config.get("use_sliding_window") is False:
        return ["full"] * count
    pattern = fields.find("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is not None:
        return ["full" if (index + 1) % pattern == 0 else "window" for index in range(count)]
    model_type = str(config.get("model_type", ""))
    if model_type.startswith("gemma3"):
        return ["full" if (index + 1) % 6 == 0 else "window" for index in range(count)]
    if model_type in ("gpt_oss", "gemma2"):
        return ["window" if index % 2 == 0 else "full" for index in range(count)]
    return ["window"] * count


def _kind(name: str) -> str:
    if "linear" in name or "recurrent" in name or "mamba" in name or "conv" in name:
        return "recurrent"
    return "window" if "sliding" in name or "local" in name or "chunked" in name else "full"


def _attention(fields: _Fields, hidden: int, kind: str, *, borrows: bool) -> AttentionShape:
    if kind == "recurrent":
        return _recurrent(fields, hidden)
    if fields.find("kv_lora_rank") is not None:
        return _latent(fields, hidden)
    heads = fields.need("num_attention_heads", "n_head")
    kv_heads = fields.find("num_key_value_heads", "n_head_kv", "num_kv_heads")
    if kv_heads is None:
        kv_heads = heads
        fields.assume(f"as many KV heads as query heads ({heads}), since num_key_value_heads is missing")
    size = fields.find("head_dim")
    if size is None:
        size = hidden // heads
    projected = 2 * kv_heads
    if kind == "full":
        kv_heads, size = _wide_heads(fields, kv_heads, size)
        projected = kv_heads if fields.config.get("attention_k_eq_v") else 2 * kv_heads
    kept = 2 * kv_heads * size
    window = fields.need("sliding_window", "attention_chunk_size") if kind == "window" else None
    gate = heads * size * hidden if fields.config.get("attn_output_gate") else 0
    return AttentionShape(
        parameters=hidden * size * (2 * heads + (0 if borrows else projected)) + gate,
        token_values=0 if borrows else kept,
        kv_heads=kv_heads,
        pair_operations=4 * heads * size,
        window=window,
        borrowed_values=kept if borrows else 0,
        query_heads=heads,
        head_size=size,
        mixed_values=heads * size,
        normed=fields.config.get("model_type") in _NORMED,
    )


def _wide_heads(fields: _Fields, kv_heads: int, size: int) -> tuple[int, int]:
    """KV heads of layers that see everything, and their columns, where these have others.

    Newer files say it layer by layer.
    """
    by_layer = fields.config.get("per_layer_config")
    if isinstance(by_layer, Mapping) and by_layer:
        first = next(iter(by_layer.values()))
        own = _Fields(first if isinstance(first, Mapping) else {})
        return own.find("num_key_value_heads") or kv_heads, own.find("head_dim") or size
    if str(fields.config.get("model_type", "")).startswith("gemma4"):
        # What its class has where a file does not say it.
        size = 512
    shared = fields.config.get("attention_k_eq_v")
    return (fields.find("num_global_key_value_heads") or kv_heads) if shared else kv_heads, (
        fields.find("global_head_dim") or size
    )


def _latent(fields: _Fields, hidden: int) -> AttentionShape:
    """Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): a token keeps one latent and one rotary key.

    Prompts make keys and values of the latents. Decodes multiply by the latents themselves.
    """
    heads = fields.need("num_attention_heads")
    latent, rotary = fields.need("kv_lora_rank"), fields.need("qk_rope_head_dim")
    plain, value = fields.need("qk_nope_head_dim"), fields.need("v_head_dim")
    queries = fields.find("q_lora_rank")
    query = hidden * heads * (plain + rotary)
    if queries is not None:
        query = hidden * queries + queries * heads * (plain + rotary)
    return AttentionShape(
        parameters=query + hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden,
        token_values=latent + rotary,
        kv_heads=0,
        pair_operations=2 * heads * (plain + rotary + value),
        query_heads=heads,
        # Queries are for latents, and attention comes to latents.
        head_size=latent + rotary,
        mixed_values=heads * value,
    )


def _recurrent(fields: _Fields, hidden: int) -> AttentionShape:
    """Gated delta rule or a state space: a matrix for each head, and the last columns of a convolution."""
    heads, size = fields.find("linear_num_value_heads"), fields.find("linear_value_head_dim")
    key_heads, key_size = fields.find("linear_num_key_heads"), fields.find("linear_key_head_dim")
    if heads is None or size is None or key_heads is None or key_size is None:
        fields.assume("recurrent layers with one state of hidden_size x 128 and projections of 4 x hidden_size^2")
        return AttentionShape(parameters=4 * hidden * hidden, sequence_values=128 * hidden)
    width = fields.find("linear_conv_kernel_dim") or 4
    keys, values = key_heads * key_size, heads * size
    return AttentionShape(
        # Queries, keys, values, the gate, two gates by head, and the way back.
        parameters=hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden,
        sequence_values=heads * key_size * size + (width - 1) * (2 * keys + values),
    )


def _mlp(fields: _Fields, hidden: int, index: int, *, wide: bool) -> MlpShape:
    config = fields.config
    # A layer's own vector of a token is made of its embedding, gated by the residual stream, and led back to it.
    beside = 3 * hidden * (fields.find("hidden_size_per_layer_input") or 0)
    experts = fields.find("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    mixed = config.get("enable_moe_block")
    experts = None if mixed is False else experts
    # Most gate their first projection; the oldest do not.
    matrices = 2 if config.get("model_type") in _UNGATED else 3
    if experts is None or not _is_sparse(fields, index):
        width = fields.find("intermediate_size", "n_inner", "ffn_hidden_size", "intermediate_size_mlp") or 4 * hidden
        if experts is not None:
            width = fields.find("intermediate_size_mlp", "intermediate_size") or width
        doubled = 2 if wide and config.get("use_double_wide_mlp") else 1
        return MlpShape(parameters=matrices * hidden * width * doubled + beside, sums=_sums(config))
    width = fields.need("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    chosen = fields.find("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k", "top_k_experts")
    if chosen is None:
        chosen = 1
        fields.assume("one expert a token, since num_experts_per_tok is missing")
    shared = fields.find("shared_expert_intermediate_size", "shared_intermediate_size") or 0
    shared = shared or (fields.find("n_shared_experts", "num_shared_experts") or 0) * width
    if config.get("model_type") in ("llama4", "llama4_text"):
        shared = width
    if mixed:
        # The MLP that each layer has beside its experts.
        shared = fields.need("intermediate_size") * (2 if wide and config.get("use_double_wide_mlp") else 1)
    return MlpShape(
        parameters=hidden * experts + 3 * hidden * shared + beside,
        experts=experts,
        chosen=min(chosen, experts),
        expert_parameters=3 * hidden * width,
        # An MLP beside experts has norms of its own, so that it is added up by itself.
        sums=2 if mixed else 1,
    )


def _sums(config: Mapping[str, Any]) -> int:
    """How many results of a dense MLP are added up over devices."""
    name = config.get("model_type")
    together = name in _PARALLEL or (name == "gpt_neox" and config.get("use_parallel_residual", True) is True)
    return 0 if together else 1


def _is_sparse(fields: _Fields, index: int) -> bool:
    """Whether a layer of a mixture has routed experts."""
    config = fields.config
    dense = config.get("mlp_only_layers")
    if isinstance(dense, list) and index in dense:
        return False
    if index < (fields.find("first_k_dense_replace") or 0):
        return False
    often = config.get("moe_layer_freq")
    if isinstance(often, list) and index < len(often):
        return bool(often[index])
    sparse = config.get("moe_layers")
    if isinstance(sparse, list):
        return index in sparse
    step = fields.find("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq") or 1
    return (index + 1) % step == 0
