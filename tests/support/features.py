"""Changes of a model's declaration that its logits must show: each takes a feature away, or is off by one."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.kernels.places import LinearRope, Llama3Rope
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import DecoderBlock
from penstock.layers.experts import DenseBesideExperts, MixtureOfExperts
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.models.declaration import ModelDeclaration
from support.families import CENTRED

Change = Callable[[ModelDeclaration], ModelDeclaration]


def _blocks(change: Callable[[DecoderBlock], DecoderBlock]) -> Change:
    def apply(declaration: ModelDeclaration) -> ModelDeclaration:
        blocks = tuple(change(block) for block in declaration.decoder.blocks)
        return dataclasses.replace(declaration, decoder=dataclasses.replace(declaration.decoder, blocks=blocks))

    return apply


def attention(change: Callable[[SelfAttention], SelfAttention]) -> Change:
    return _blocks(lambda block: dataclasses.replace(block, attention=change(block.attention)))


def _norms(change: Callable[[RmsNorm], RmsNorm]) -> Change:
    def apply(block: DecoderBlock) -> DecoderBlock:
        names = ("before_attention", "after_attention", "before_mlp", "after_mlp")
        norms = {name: getattr(block, name) for name in names}
        return dataclasses.replace(block, **{name: norm and change(norm) for name, norm in norms.items()})

    return _blocks(apply)


def decoder(**changes: Any) -> Change:
    return lambda declaration: dataclasses.replace(
        declaration, decoder=dataclasses.replace(declaration.decoder, **changes)
    )


def _window(delta: int) -> Change:
    return attention(lambda a: a if a.window is None else dataclasses.replace(a, window=a.window + delta))


def _llama3(**changes: Any) -> Change:
    def apply(attention: SelfAttention) -> SelfAttention:
        assert isinstance(attention.rope.scaling, Llama3Rope)
        scaling = dataclasses.replace(attention.rope.scaling, **changes)
        return dataclasses.replace(attention, rope=dataclasses.replace(attention.rope, scaling=scaling))

    return attention(apply)


def rope(**changes: Any) -> Change:
    return attention(lambda a: a if a.rope is None else replace(a, rope=replace(a.rope, **changes)))


def _scaling(**changes: Any) -> Change:
    """Change how rotary positions are scaled, where they are."""

    def apply(attention: SelfAttention) -> SelfAttention:
        rope = attention.rope
        if rope is None or rope.scaling is None:
            return attention
        return replace(attention, rope=replace(rope, scaling=replace(rope.scaling, **changes)))

    return attention(apply)


def _block(**changes: Any) -> Change:
    return _blocks(lambda block: replace(block, **changes))


def _mixture(**changes: Any) -> Change:
    return _blocks(
        lambda block: (
            replace(block, mlp=replace(block.mlp, **changes)) if isinstance(block.mlp, MixtureOfExperts) else block
        )
    )


def _routing(**changes: Any) -> Change:
    def apply(block: DecoderBlock) -> DecoderBlock:
        mlp = block.mlp
        if not isinstance(mlp, MixtureOfExperts):
            return block
        return replace(block, mlp=replace(mlp, routing=replace(mlp.routing, **changes)))

    return _blocks(apply)


def _global_rope(**changes: Any) -> Change:
    """Change the rotary settings of the layers without a window, whose positions alone are scaled."""
    return attention(
        lambda a: a if a.window is not None else dataclasses.replace(a, rope=dataclasses.replace(a.rope, **changes))
    )


def _local_rope(**changes: Any) -> Change:
    return attention(
        lambda a: a if a.window is None else dataclasses.replace(a, rope=dataclasses.replace(a.rope, **changes))
    )


def mlp(change: Callable[[GatedMlp], GatedMlp]) -> Change:
    return _blocks(lambda block: dataclasses.replace(block, mlp=change(block.mlp)))


def _one_rope_for_all(declaration: ModelDeclaration) -> ModelDeclaration:
    first = declaration.decoder.blocks[0].attention.rope
    return attention(lambda a: dataclasses.replace(a, rope=first))(declaration)


def shift_pattern(declaration: ModelDeclaration) -> ModelDeclaration:
    """Every layer takes window and positions of the one before it."""
    kinds = [(block.attention.window, block.attention.rope) for block in declaration.decoder.blocks]
    blocks = tuple(
        dataclasses.replace(
            block, attention=dataclasses.replace(block.attention, window=kinds[i - 1][0], rope=kinds[i - 1][1])
        )
        for i, block in enumerate(declaration.decoder.blocks)
    )
    return dataclasses.replace(declaration, decoder=dataclasses.replace(declaration.decoder, blocks=blocks))


def _offset_of_head_norms(attention: SelfAttention) -> SelfAttention:
    assert attention.head_norm is not None
    return dataclasses.replace(attention, head_norm=(attention.head_norm[0], not attention.head_norm[1]))


def _other_activation(layer: Any) -> Any:
    if isinstance(layer, DenseBesideExperts):
        return replace(layer, dense=_other_activation(layer.dense))
    return replace(layer, activation="silu" if layer.activation == "gelu_tanh" else "gelu_tanh")


def _without_layer_inputs(declaration: ModelDeclaration) -> ModelDeclaration:
    return decoder(layer_inputs=None)(_block(layer_input=None)(declaration))


def _own_place(attention: SelfAttention) -> SelfAttention:
    """What borrows reads the first layer of its kind, instead of the last."""
    return replace(attention, layer=attention.layer % 2) if attention.borrows else attention


def _beside_experts(**changes: Any) -> Change:
    return mlp(lambda layer: replace(layer, experts=replace(layer.experts, **changes)))


def _routing_beside(**changes: Any) -> Change:
    return mlp(
        lambda layer: replace(layer, experts=replace(layer.experts, routing=replace(layer.experts.routing, **changes)))
    )


COMMON: dict[str, Change] = {
    "eps of block norms": _norms(lambda norm: dataclasses.replace(norm, eps=1.01e-2)),
    "eps of the last norm": lambda d: decoder(norm=dataclasses.replace(d.decoder.norm, eps=2e-2))(d),
    "unit offset of norms": _norms(lambda norm: dataclasses.replace(norm, unit_offset=not norm.unit_offset)),
    "score scale": attention(lambda a: dataclasses.replace(a, scale=a.scale * 1.01)),
    "rope base": rope(theta=9000.0),
    "activation": mlp(_other_activation),
}


def common(family: str) -> dict[str, Change]:
    """Those of the common ones that a family can have."""
    left_out = {"unit offset of norms"} if family in CENTRED else set()
    if family == "gpt2":
        left_out.add("rope base")
    return {name: change for name, change in COMMON.items() if name not in left_out}


SLIDING: dict[str, Change] = {
    "window one less": _window(-1),
    "window one more": _window(1),
    "window off": attention(lambda a: dataclasses.replace(a, window=None)),
}
FEWER = {"an expert less": _routing(chosen=1), "weights twice as large": _routing(scale=2.0)}
ROUTED: dict[str, Change] = {**FEWER, "scores by sigmoid": _routing(score="sigmoid")}
BY_SIGMOID: dict[str, Change] = {**FEWER, "scores by softmax": _routing(score="softmax")}
UNSCALED: dict[str, Change] = {"weights that add up to one": _routing(renormalise=True)}
SCALED: dict[str, Change] = {"weights as they are": _routing(renormalise=False)}
FACTORS: dict[str, Change] = {
    "embedding scale": decoder(embedding_scale=1.51),
    "residual scale off": _block(residual_scale=None),
    "residual scale": _block(residual_scale=0.605),
    "logit scale off": decoder(logit_scale=None),
    "logit scale": decoder(logit_scale=0.505),
}
HEAD_NORM_OFF = {"head norm off": attention(lambda a: replace(a, head_norm=None, whole_norm=False))}
HALF_TURNED: dict[str, Change] = {
    "columns that turn": rope(turned=None),
    "neighbours turn": attention(lambda a: replace(a, paired=False)),
}
BEHIND: dict[str, Change] = {
    "norm after attention off": _block(after_attention=None),
    "norm after mlp off": _block(after_mlp=None),
}
LATENT: dict[str, Change] = {
    "eps of norms within": attention(lambda a: replace(a, eps=1e-2)),
    "neighbours turn, or halves": attention(lambda a: replace(a, paired=not a.paired)),
}
WIDER: dict[str, Change] = {
    "rope scaling off": rope(scaling=None),
    "amplitude": _scaling(amplitude=1.0),
    "fast pairs": _scaling(fast=3.0),
}
GEMMA4: dict[str, Change] = {
    **SLIDING,
    **BEHIND,
    "embedding scale off": decoder(embedding_scale=None),
    "logit cap": decoder(logit_cap=2.05),
    "value norm off": attention(lambda a: replace(a, value_norm=False)),
    "scalars off": _block(scalar=None),
    "pairs of wide heads that turn": _scaling(turned=18),
    "base of the global rope": _global_rope(theta=19800.0),
}
MUTATIONS: dict[str, dict[str, Change]] = {
    "gemma4": {
        **GEMMA4,
        "inputs of layers off": _without_layer_inputs,
        "keys of another layer": attention(_own_place),
        "way of inputs from embeddings": lambda d: decoder(layer_inputs=replace(d.decoder.layer_inputs, eps=2e-2))(d),
    },
    "gemma4_moe": {
        **GEMMA4,
        "an expert less": _routing_beside(chosen=2),
        "scores by sigmoid": _routing_beside(score="sigmoid"),
        "scales of experts off": _beside_experts(scales=None),
        "router by another norm": mlp(lambda m: replace(m, router_norm=m.before_experts)),
        "experts read another norm": mlp(lambda m: replace(m, before_experts=m.before_dense)),
    },
    "gemma2": {
        **SLIDING,
        **BEHIND,
        "embedding scale off": decoder(embedding_scale=None),
        "logit cap": decoder(logit_cap=2.05),
        "score cap": attention(lambda a: replace(a, softcap=26.0)),
        "query scalar": attention(lambda a: replace(a, scale=a.heads.head_dim**-0.5)),
        "layers that slide": shift_pattern,
    },
    "qwen3_moe": {**ROUTED, **SCALED, **HEAD_NORM_OFF},
    "qwen2_moe": {
        **ROUTED,
        **UNSCALED,
        "shared expert off": _mixture(shared=None, shared_gate=None),
        "gate of the shared expert off": _mixture(shared_gate=None),
        "bias off": attention(lambda a: replace(a, qkv_bias=False)),
    },
    "mixtral": {**ROUTED, **SCALED, **SLIDING},
    "olmoe": {**ROUTED, **UNSCALED, **HEAD_NORM_OFF},
    "granitemoe": {**ROUTED, **SCALED, **FACTORS},
    "granite": {**FACTORS, "mlp bias off": mlp(lambda mlp: replace(mlp, gate_up_bias=False, down_bias=False))},
    "ministral3": {
        "queries worth the same everywhere": attention(lambda a: replace(a, query_scale=None)),
        "context of queries": attention(lambda a: replace(a, query_scale=(0.3, 65))),
        "rope scaling off": rope(scaling=None),
    },
    "cohere2": {
        **SLIDING,
        "side by side": _block(parallel=False),
        "halves turn": attention(lambda a: replace(a, paired=False)),
        "layers that slide": shift_pattern,
        "logit scale off": decoder(logit_scale=None),
    },
    "starcoder2": {
        **SLIDING,
        "bias off": attention(lambda a: replace(a, qkv_bias=False)),
        "bias behind attention off": attention(lambda a: replace(a, output_bias=False)),
        "bias of the MLP off": mlp(lambda m: replace(m, biased=False)),
        "bias of norms off": _norms(lambda norm: replace(norm, biased=False)),
    },
    "gpt_neox": {
        "one after the other": _block(parallel=False),
        "columns that turn": rope(turned=None),
        "bias off": attention(lambda a: replace(a, qkv_bias=False)),
        "bias of norms off": _norms(lambda norm: replace(norm, biased=False)),
    },
    "gpt2": {
        "bias off": attention(lambda a: replace(a, qkv_bias=False)),
        "bias of the MLP off": mlp(lambda m: replace(m, biased=False)),
        "bias of norms off": _norms(lambda norm: replace(norm, biased=False)),
    },
    "phi3": {
        **SLIDING,
        "rope scaling off": rope(scaling=None),
        "divisors for short contexts": _scaling(divisors=tuple(1.0 + 0.05 * pair for pair in range(9))),
        "amplitude": _scaling(amplitude=1.0),
        "columns that turn": rope(turned=None, scaling=None),
    },
    "smollm3": {**SLIDING, "layers that turn": shift_pattern},
    "olmo2": {**HEAD_NORM_OFF, **BEHIND},
    "olmo3": {
        **SLIDING,
        **HEAD_NORM_OFF,
        **BEHIND,
        "local and global layers shifted": shift_pattern,
        "one rope for all layers": _one_rope_for_all,
        "factor": _scaling(factor=7.5),
        "original context": _scaling(original_context=128),
        "fast pairs": _scaling(fast=2.0),
        "slow pairs": _scaling(slow=1.5),
        "amplitude": _scaling(amplitude=1.1),
    },
    "glm": {**HALF_TURNED, "bias off": attention(lambda a: replace(a, qkv_bias=False))},
    "glm4": {**HALF_TURNED, **BEHIND},
    "glm4_moe": {
        **BY_SIGMOID,
        **SCALED,
        **HEAD_NORM_OFF,
        "one group": _routing(groups=1, kept_groups=1),
        "a group by its best expert": _routing(best_of_group=1),
        "correction off": _mixture(correction=None),
        "shared experts off": _mixture(shared=None),
        "columns that turn": rope(turned=None),
    },
    "deepseek_v2": {
        **ROUTED,
        **UNSCALED,
        **LATENT,
        **WIDER,
        "one group": _routing(groups=1, kept_groups=1),
        "a group by its two best experts": _routing(best_of_group=2),
        "shared experts off": _mixture(shared=None),
    },
    "deepseek_v3": {
        **BY_SIGMOID,
        **SCALED,
        **LATENT,
        **WIDER,
        "correction off": _mixture(correction=None),
        "bias off": attention(lambda a: replace(a, bias=False)),
    },
    "mistral4": {
        **ROUTED,
        **SCALED,
        **LATENT,
        **WIDER,
        "one group": _routing(groups=1, kept_groups=1),
        "queries worth the same everywhere": attention(lambda a: replace(a, query_scale=None)),
    },
    "glm4_moe_lite": {**BY_SIGMOID, **SCALED, **LATENT},
    "gpt_oss": {
        **FEWER,
        **SLIDING,
        "layers that slide": shift_pattern,
        "sinks off": attention(lambda a: replace(a, sunk=False)),
        "biases of experts off": _mixture(biased=False),
        "bias off": attention(lambda a: replace(a, qkv_bias=False)),
        "bias behind attention off": attention(lambda a: replace(a, output_bias=False)),
        "rope scaling off": rope(scaling=None),
        "whole pairs": _scaling(truncate=True),
        "fast pairs": _scaling(fast=3.0),
        "amplitude": _scaling(amplitude=1.0),
    },
    "minimax_m2": {
        **BY_SIGMOID,
        **SCALED,
        **HEAD_NORM_OFF,
        "correction off": _mixture(correction=None),
        "columns that turn": rope(turned=None),
    },
    "llama": {
        "rope scaling off": rope(scaling=None),
        "original context": _llama3(original_context=65),
        "rope factor": _llama3(factor=8.1),
        "low frequency factor": _llama3(low_factor=1.1),
        "high frequency factor": _llama3(high_factor=4.2),
    },
    "mistral": {**SLIDING},
    "qwen2": {
        **SLIDING,
        "bias off": attention(lambda a: dataclasses.replace(a, qkv_bias=False)),
        "layers that slide": shift_pattern,
    },
    "qwen3": {
        "head norm off": attention(lambda a: dataclasses.replace(a, head_norm=None)),
        "unit offset of head norms": attention(_offset_of_head_norms),
    },
    "gemma3": {
        **SLIDING,
        "head norm off": attention(lambda a: dataclasses.replace(a, head_norm=None)),
        "unit offset of head norms": attention(_offset_of_head_norms),
        "embedding scale off": decoder(embedding_scale=None),
        "embedding scale": decoder(embedding_scale=8.5),
        "logit cap off": decoder(logit_cap=None),
        "logit cap": decoder(logit_cap=2.05),
        "score cap off": attention(lambda a: dataclasses.replace(a, softcap=None)),
        "score cap": attention(lambda a: dataclasses.replace(a, softcap=12.5)),
        "query scalar": attention(lambda a: dataclasses.replace(a, scale=a.heads.head_dim**-0.5)),
        "local and global layers shifted": shift_pattern,
        "global rope scaling off": _global_rope(scaling=None),
        "factor of the global rope": _global_rope(scaling=LinearRope(4.1)),
        "base of the global rope": _global_rope(theta=19800.0),
        "base of the local rope": _local_rope(theta=2970.0),
        "one rope for all layers": _one_rope_for_all,
        "norm after attention off": _blocks(lambda b: dataclasses.replace(b, after_attention=None)),
        "norm after mlp off": _blocks(lambda b: dataclasses.replace(b, after_mlp=None)),
    },
}
