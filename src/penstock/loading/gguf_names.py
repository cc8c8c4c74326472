"""What a block's tensors are called in checkpoints, by their names in GGUF files.

Those of all experts have {} for the expert. Where another ending matters, names are whole. Where a file has several of
a checkpoint's tensors as one, one below the other, + stands between their names.
"""

BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Norms behind attention and MLP; Gemma calls the MLP's own one otherwise.
_BEHIND = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
GEMMA = {**BLOCK, **_BEHIND, "ffn_norm": "pre_feedforward_layernorm"}
GEMMA4 = {
    **GEMMA,
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps": "experts.{}.gate_proj+up_proj",
    "ffn_down_exps": "experts.{}.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale.weight": "layer_scalar",
}
OLMO2 = {**BLOCK, **_BEHIND}
CHATGLM = {**BLOCK, "attn_qkv": "self_attn.q_proj+k_proj+v_proj", "ffn_up": "mlp.gate_up_proj"}
GLM4 = {**CHATGLM, "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}
PHI3 = {**BLOCK, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
STARCODER2 = {**BLOCK, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
GPT_NEOX = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


def _experts(layer: str, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> dict[str, str]:
    names = zip(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), parts, strict=True)
    both = {"ffn_gate_up_exps": f"{layer}.experts.{{}}.{parts[0]}+{parts[1]}"}
    return both | {theirs: f"{layer}.experts.{{}}.{ours}" for theirs, ours in names}


MIXTURE = {**BLOCK, **_experts("mlp"), "ffn_gate_inp": "mlp.gate"}
QWEN2_MOE = {
    **MIXTURE,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SHARED = {
    **MIXTURE,
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
GLM4_MOE = {**_SHARED, "post_attention_norm": "post_attention_layernorm"}
DEEPSEEK2 = {
    **_SHARED,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_SPARSE_PARTS = ("w1", "w3", "w2")
MIXTRAL = {**BLOCK, **_experts("block_sparse_moe", _SPARSE_PARTS), "ffn_gate_inp": "block_sparse_moe.gate"}
MINIMAX = {**MIXTRAL, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"}
GRANITE_MOE = {**BLOCK, **_experts("block_sparse_moe"), "ffn_gate_inp": "block_sparse_moe.router.layer"}
GPT_OSS = {
    **MIXTURE,
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_qkv": "attention.self.query+key+value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
NOMIC_BERT = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_gate": "mlp.fc12",
    "ffn_up": "mlp.fc11",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
MODERN_BERT = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}
# Outside blocks, and what those of blocks begin with, before the number of the layer.
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GEMMA4_WHOLE = {
    **WHOLE,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
GPT_NEOX_WHOLE = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
}
GPT2_WHOLE = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
BERT_WHOLE = {
    "token_embd": "bert.embeddings.word_embeddings",
    "position_embd": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "token_embd_norm": "bert.embeddings.LayerNorm",
}
NOMIC_BERT_WHOLE = {**BERT_WHOLE, "token_embd_norm": "bert.emb_ln"}
MODERN_BERT_WHOLE = {
    "token_embd": "model.embeddings.tok_embeddings",
    "token_embd_norm": "model.embeddings.norm",
    "output_norm": "model.final_norm",
}
BERT_LAYERS, NOMIC_BERT_LAYERS = "bert.encoder.layer", "bert.encoder.layers"
LAYERS, GPT_NEOX_LAYERS, GPT2_LAYERS = "model.layers", "gpt_neox.layers", "transformer.h"
