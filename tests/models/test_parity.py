"""Logits of every family equal transformers', whatever the batch and the chunks; and every feature matters."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import LinearRope, Llama3Rope
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import DecoderBlock
from penstock.layers.experts import MixtureOfExperts
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from support import checkpoints
from support.plain import plain
from support.stepping import Stepper, all_logits, make_stepper

FAMILIES = (*checkpoints.FAMILIES, *checkpoints.MIXTURES, *checkpoints.VARIANTS)
TOLERANCE = 1e-4
LENGTHS = (300, 1, 2, 17, 48, 64, 131, 5)


@dataclasses.dataclass(frozen=True)
class Reference:
    """A checkpoint, prompts, and transformers' logits of each of them."""

    path: Path
    prompts: list[list[int]]
    logits: list[Tensor]
    peakedness: float


def _reference(path: Path, lengths: tuple[int, ...] = LENGTHS) -> Reference:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(4, checkpoints.VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]
    model = checkpoints.load_reference(path)
    logits = [checkpoints.reference_logits(model, prompt) for prompt in prompts]
    return Reference(path, prompts, logits, checkpoints.peakedness(model, prompts[0]))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {family: _reference(checkpoints.make(family, folder / family)) for family in FAMILIES}


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return float(torch.stack([(mine - right).abs().max() for mine, right in zip(found, expected, strict=True)]).max())


@pytest.mark.parametrize("chunk", [1, 16, None], ids=["chunk1", "chunk16", "whole"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_reference(references: dict[str, Reference], family: str, chunk: int | None) -> None:
    reference = references[family]
    found = all_logits(make_stepper(reference.path), reference.prompts, chunk)
    assert _difference(found, reference.logits) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_kernels_agree_too(references: dict[str, Reference], family: str) -> None:
    reference = references[family]
    stepper = make_stepper(reference.path, implementations=REFERENCE, packing=plain)
    found = all_logits(stepper, reference.prompts[1:6], 16)
    assert _difference(found, reference.logits[1:6]) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_mix(references: dict[str, Reference], family: str) -> None:
    """Rows at different places of their prompts, some decoding, some in chunks, some pausing, in one batch."""
    reference = references[family]
    stepper = make_stepper(reference.path)
    chunks = (37, 1, 1, 3, 1, 20, 16, 2)
    done = [0] * len(reference.prompts)
    step = 0
    while any(first < len(prompt) for first, prompt in zip(done, reference.prompts, strict=True)):
        added = {
            row: prompt[done[row] : done[row] + chunks[row]]
            for row, prompt in enumerate(reference.prompts)
            if done[row] < len(prompt) and (step + row) % 3
        }
        step += 1
        for row, logits in (stepper.step(added) if added else {}).items():
            expected = reference.logits[row][done[row] : done[row] + len(logits)]
            assert (logits - expected).abs().max() <= TOLERANCE
            done[row] += len(logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_wanted_rows_are_returned(references: dict[str, Reference], family: str) -> None:
    reference = references[family]
    stepper = make_stepper(reference.path)
    found = stepper.step(dict(enumerate(reference.prompts)), wanted="last")
    for row, expected in enumerate(reference.logits):
        assert found[row].shape == (1, checkpoints.VOCAB_SIZE)
        assert (found[row] - expected[-1:]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_peaked(references: dict[str, Reference], family: str) -> None:
    assert references[family].peakedness > 0.5


Change = Callable[[ModelDeclaration], ModelDeclaration]


def _blocks(change: Callable[[DecoderBlock], DecoderBlock]) -> Change:
    def apply(declaration: ModelDeclaration) -> ModelDeclaration:
        blocks = tuple(change(block) for block in declaration.decoder.blocks)
        return dataclasses.replace(declaration, decoder=dataclasses.replace(declaration.decoder, blocks=blocks))

    return apply


def _attention(change: Callable[[SelfAttention], SelfAttention]) -> Change:
    return _blocks(lambda block: dataclasses.replace(block, attention=change(block.attention)))


def _norms(change: Callable[[RmsNorm], RmsNorm]) -> Change:
    def apply(block: DecoderBlock) -> DecoderBlock:
        names = ("before_attention", "after_attention", "before_mlp", "after_mlp")
        norms = {name: getattr(block, name) for name in names}
        return dataclasses.replace(block, **{name: norm and change(norm) for name, norm in norms.items()})

    return _blocks(apply)


def _decoder(**changes: Any) -> Change:
    return lambda declaration: dataclasses.replace(
        declaration, decoder=dataclasses.replace(declaration.decoder, **changes)
    )


def _window(delta: int) -> Change:
    return _attention(lambda a: a if a.window is None else dataclasses.replace(a, window=a.window + delta))


def _llama3(**changes: Any) -> Change:
    def apply(attention: SelfAttention) -> SelfAttention:
        assert isinstance(attention.rope.scaling, Llama3Rope)
        scaling = dataclasses.replace(attention.rope.scaling, **changes)
        return dataclasses.replace(attention, rope=dataclasses.replace(attention.rope, scaling=scaling))

    return _attention(apply)


def _rope(**changes: Any) -> Change:
    return _attention(lambda a: a if a.rope is None else replace(a, rope=replace(a.rope, **changes)))


def _scaling(**changes: Any) -> Change:
    """Change how rotary positions are scaled, where they are."""

    def apply(attention: SelfAttention) -> SelfAttention:
        rope = attention.rope
        if rope is None or rope.scaling is None:
            return attention
        return replace(attention, rope=replace(rope, scaling=replace(rope.scaling, **changes)))

    return _attention(apply)


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
    return _attention(
        lambda a: a if a.window is not None else dataclasses.replace(a, rope=dataclasses.replace(a.rope, **changes))
    )


def _local_rope(**changes: Any) -> Change:
    return _attention(
        lambda a: a if a.window is None else dataclasses.replace(a, rope=dataclasses.replace(a.rope, **changes))
    )


def _mlp(change: Callable[[GatedMlp], GatedMlp]) -> Change:
    return _blocks(lambda block: dataclasses.replace(block, mlp=change(block.mlp)))


def _one_rope_for_all(declaration: ModelDeclaration) -> ModelDeclaration:
    first = declaration.decoder.blocks[0].attention.rope
    return _attention(lambda a: dataclasses.replace(a, rope=first))(declaration)


def _shift_pattern(declaration: ModelDeclaration) -> ModelDeclaration:
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


COMMON: dict[str, Change] = {
    "eps of block norms": _norms(lambda norm: dataclasses.replace(norm, eps=1.01e-2)),
    "eps of the last norm": lambda d: _decoder(norm=dataclasses.replace(d.decoder.norm, eps=2e-2))(d),
    "unit offset of norms": _norms(lambda norm: dataclasses.replace(norm, unit_offset=not norm.unit_offset)),
    "score scale": _attention(lambda a: dataclasses.replace(a, scale=a.scale * 1.01)),
    "rope base": _rope(theta=9000.0),
    "activation": _blocks(
        lambda b: dataclasses.replace(
            b,
            mlp=dataclasses.replace(b.mlp, activation="silu" if b.mlp.activation == "gelu_tanh" else "gelu_tanh"),
        )
    ),
}
SLIDING: dict[str, Change] = {
    "window one less": _window(-1),
    "window one more": _window(1),
    "window off": _attention(lambda a: dataclasses.replace(a, window=None)),
}
FEWER = {"an expert less": _routing(chosen=1), "weights twice as large": _routing(scale=2.0)}
ROUTED: dict[str, Change] = {**FEWER, "scores by sigmoid": _routing(score="sigmoid")}
BY_SIGMOID: dict[str, Change] = {**FEWER, "scores by softmax": _routing(score="softmax")}
UNSCALED: dict[str, Change] = {"weights that add up to one": _routing(renormalise=True)}
SCALED: dict[str, Change] = {"weights as they are": _routing(renormalise=False)}
FACTORS: dict[str, Change] = {
    "embedding scale": _decoder(embedding_scale=1.51),
    "residual scale off": _block(residual_scale=None),
    "residual scale": _block(residual_scale=0.605),
    "logit scale off": _decoder(logit_scale=None),
    "logit scale": _decoder(logit_scale=0.505),
}
HEAD_NORM_OFF = {"head norm off": _attention(lambda a: replace(a, head_norm=None, whole_norm=False))}
HALF_TURNED: dict[str, Change] = {
    "columns that turn": _rope(turned=None),
    "neighbours turn": _attention(lambda a: replace(a, paired=False)),
}
BEHIND: dict[str, Change] = {
    "norm after attention off": _block(after_attention=None),
    "norm after mlp off": _block(after_mlp=None),
}
MUTATIONS: dict[str, dict[str, Change]] = {
    "gemma2": {
        **SLIDING,
        **BEHIND,
        "embedding scale off": _decoder(embedding_scale=None),
        "logit cap": _decoder(logit_cap=2.05),
        "score cap": _attention(lambda a: replace(a, softcap=26.0)),
        "query scalar": _attention(lambda a: replace(a, scale=a.heads.head_dim**-0.5)),
        "layers that slide": _shift_pattern,
    },
    "qwen3_moe": {**ROUTED, **SCALED, **HEAD_NORM_OFF},
    "qwen2_moe": {
        **ROUTED,
        **UNSCALED,
        "shared expert off": _mixture(shared=None, shared_gate=None),
        "gate of the shared expert off": _mixture(shared_gate=None),
        "bias off": _attention(lambda a: replace(a, qkv_bias=False)),
    },
    "mixtral": {**ROUTED, **SCALED, **SLIDING},
    "olmoe": {**ROUTED, **UNSCALED, **HEAD_NORM_OFF},
    "granitemoe": {**ROUTED, **SCALED, **FACTORS},
    "granite": {**FACTORS, "mlp bias off": _mlp(lambda mlp: replace(mlp, gate_up_bias=False, down_bias=False))},
    "phi3": {
        **SLIDING,
        "rope scaling off": _rope(scaling=None),
        "divisors for short contexts": _scaling(divisors=tuple(1.0 + 0.05 * pair for pair in range(9))),
        "amplitude": _scaling(amplitude=1.0),
        "columns that turn": _rope(turned=None, scaling=None),
    },
    "smollm3": {**SLIDING, "layers that turn": _shift_pattern},
    "olmo2": {**HEAD_NORM_OFF, **BEHIND},
    "olmo3": {
        **SLIDING,
        **HEAD_NORM_OFF,
        **BEHIND,
        "local and global layers shifted": _shift_pattern,
        "one rope for all layers": _one_rope_for_all,
        "factor": _scaling(factor=7.5),
        "original context": _scaling(original_context=128),
        "fast pairs": _scaling(fast=2.0),
        "slow pairs": _scaling(slow=1.5),
        "amplitude": _scaling(amplitude=1.1),
    },
    "glm": {**HALF_TURNED, "bias off": _attention(lambda a: replace(a, qkv_bias=False))},
    "glm4": {**HALF_TURNED, **BEHIND},
    "glm4_moe": {
        **BY_SIGMOID,
        **SCALED,
        **HEAD_NORM_OFF,
        "one group": _routing(groups=1, kept_groups=1),
        "a group by its best expert": _routing(best_of_group=1),
        "correction off": _mixture(correction=None),
        "shared experts off": _mixture(shared=None),
        "columns that turn": _rope(turned=None),
    },
    "minimax_m2": {
        **BY_SIGMOID,
        **SCALED,
        **HEAD_NORM_OFF,
        "correction off": _mixture(correction=None),
        "columns that turn": _rope(turned=None),
    },
    "llama": {
        "rope scaling off": _rope(scaling=None),
        "original context": _llama3(original_context=65),
        "rope factor": _llama3(factor=8.1),
        "low frequency factor": _llama3(low_factor=1.1),
        "high frequency factor": _llama3(high_factor=4.2),
    },
    "mistral": {**SLIDING},
    "qwen2": {
        **SLIDING,
        "bias off": _attention(lambda a: dataclasses.replace(a, qkv_bias=False)),
        "layers that slide": _shift_pattern,
    },
    "qwen3": {
        "head norm off": _attention(lambda a: dataclasses.replace(a, head_norm=None)),
        "unit offset of head norms": _attention(_offset_of_head_norms),
    },
    "gemma3": {
        **SLIDING,
        "head norm off": _attention(lambda a: dataclasses.replace(a, head_norm=None)),
        "unit offset of head norms": _attention(_offset_of_head_norms),
        "embedding scale off": _decoder(embedding_scale=None),
        "embedding scale": _decoder(embedding_scale=8.5),
        "logit cap off": _decoder(logit_cap=None),
        "logit cap": _decoder(logit_cap=2.05),
        "score cap off": _attention(lambda a: dataclasses.replace(a, softcap=None)),
        "score cap": _attention(lambda a: dataclasses.replace(a, softcap=12.5)),
        "query scalar": _attention(lambda a: dataclasses.replace(a, scale=a.heads.head_dim**-0.5)),
        "local and global layers shifted": _shift_pattern,
        "global rope scaling off": _global_rope(scaling=None),
        "factor of the global rope": _global_rope(scaling=LinearRope(4.1)),
        "base of the global rope": _global_rope(theta=19800.0),
        "base of the local rope": _local_rope(theta=2970.0),
        "one rope for all layers": _one_rope_for_all,
        "norm after attention off": _blocks(lambda b: dataclasses.replace(b, after_attention=None)),
        "norm after mlp off": _blocks(lambda b: dataclasses.replace(b, after_mlp=None)),
    },
}


@pytest.mark.parametrize(
    "family, mutation",
    [(family, name) for family, own in MUTATIONS.items() for name in (*COMMON, *own)],
)
def test_every_feature_matters(references: dict[str, Reference], family: str, mutation: str) -> None:
    """A feature that is off, or off by one, must show in the logits: else the parity tests would not see it break."""
    reference = references[family]
    change = {**COMMON, **MUTATIONS[family]}[mutation]
    declaration = change(declare(json.loads((reference.path / "config.json").read_text())))
    stepper = _stepper_despite_unused_tensors(reference.path, declaration)
    found = all_logits(stepper, reference.prompts[:1], None)
    assert not _difference(found, reference.logits[:1]) <= TOLERANCE


def _stepper_despite_unused_tensors(path: Path, declaration: ModelDeclaration) -> Stepper:
    return make_stepper(path, declaration=dataclasses.replace(declaration, unused_tensors=("*",)))


def test_head_is_read_from_its_own_tensor(references: dict[str, Reference], tmp_path: Path) -> None:
    """An untied model served as a tied one differs (a tied one has no other tensor to take)."""
    reference = references["llama"]
    declaration = declare(json.loads((reference.path / "config.json").read_text()))
    found = all_logits(
        _stepper_despite_unused_tensors(reference.path, _decoder(head=None)(declaration)), reference.prompts[:1], None
    )
    assert not _difference(found, reference.logits[:1]) <= TOLERANCE


WITHOUT_QKV_BIAS = _attention(lambda a: dataclasses.replace(a, qkv_bias=False))
WITHOUT_OUTPUT_BIAS = _attention(lambda a: dataclasses.replace(a, output_bias=False))
OTHER_ACTIVATION = {"activation": COMMON["activation"]}
WINDOW_ON = {"window on": _attention(lambda a: dataclasses.replace(a, window=16))}
OPTIONS: tuple[tuple[str, dict[str, Any], dict[str, Change]], ...] = (
    (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {
            "qkv bias off": WITHOUT_QKV_BIAS,
            "output bias off": WITHOUT_OUTPUT_BIAS,
            "mlp bias off": _mlp(lambda mlp: dataclasses.replace(mlp, gate_up_bias=False, down_bias=False)),
        },
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 700.0}},
        {
            "scaling off": _rope(scaling=None),
            "factor": _rope(scaling=LinearRope(3.05)),
            "base": _rope(theta=693.0),
        },
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "head_dim": 16},
        {"base": _rope(theta=693.0), "scaling on": _rope(scaling=LinearRope(1.05))},
    ),
    ("llama", {"num_key_value_heads": 4, "hidden_act": "gelu_pytorch_tanh"}, OTHER_ACTIVATION),
    ("llama", {"num_key_value_heads": 1}, {}),
    ("mistral", {"sliding_window": None, "tie_word_embeddings": False}, {**WINDOW_ON, "tied": _decoder(head=None)}),
    ("mistral", {"sliding_window": 16}, SLIDING),
    (
        "qwen2",
        {"use_sliding_window": False, "tie_word_embeddings": False},
        {**WINDOW_ON, "tied": _decoder(head=None), "qkv bias off": WITHOUT_QKV_BIAS},
    ),
    (
        "qwen2",
        {"layer_types": ["sliding_attention", "full_attention"] * 2},
        {**SLIDING, "layers that slide": _shift_pattern},
    ),
    (
        "qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        {
            **SLIDING,
            "layers that slide": _shift_pattern,
            "qkv bias off": WITHOUT_QKV_BIAS,
            "output bias off": WITHOUT_OUTPUT_BIAS,
            "tied": _decoder(head=None),
        },
    ),
    (
        "gemma3",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "tie_word_embeddings": False},
        {
            "score cap on": _attention(lambda a: dataclasses.replace(a, softcap=12.0)),
            "logit cap on": _decoder(logit_cap=2.0),
            "tied": _decoder(head=None),
        },
    ),
    (
        "gemma3",
        {"layer_types": ["full_attention", "sliding_attention"] * 4},
        {**SLIDING, "local and global layers shifted": _shift_pattern},
    ),
)


@pytest.mark.parametrize(
    "family, changes, mutations", OPTIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_options_of_each_family(
    tmp_path: Path, family: str, changes: dict[str, Any], mutations: dict[str, Change]
) -> None:
    """An option is read as the reference reads it, and what it sets shows in the logits."""
    reference = _reference(checkpoints.make(family, tmp_path, **changes), (100, 1, 33, 64))
    found = all_logits(make_stepper(tmp_path), reference.prompts, 24)
    assert _difference(found, reference.logits) <= TOLERANCE
    declaration = declare(json.loads((tmp_path / "config.json").read_text()))
    for name, change in mutations.items():
        stepper = _stepper_despite_unused_tensors(tmp_path, change(declaration))
        mutated = all_logits(stepper, reference.prompts[:1], None)
        assert not _difference(mutated, reference.logits[:1]) <= TOLERANCE, f"{name} does not show"


def _teacher_forced(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of some prompts: ours in bfloat16, transformers' in bfloat16, transformers' in float32."""
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(4, checkpoints.VOCAB_SIZE, (n,), generator=generator).tolist() for n in (200, 90, 33)]
    found = all_logits(make_stepper(path, dtype=torch.bfloat16), prompts, 64)
    references = [
        torch.cat([checkpoints.reference_logits(model, prompt) for prompt in prompts])
        for model in (checkpoints.load_reference(path, torch.bfloat16), checkpoints.load_reference(path, torch.float32))
    ]
    return torch.cat(found), references[0], references[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_has_the_same_top_token(tmp_path: Path, family: str) -> None:
    found, rounded, exact = _teacher_forced(checkpoints.make(family, tmp_path, dtype=torch.bfloat16, confident=True))
    for reference in (rounded, exact):
        assert (found.argmax(-1) == reference.argmax(-1)).float().mean() >= 0.99


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_exact_as_the_reference(tmp_path: Path, family: str) -> None:
    """Where every layer matters, our bfloat16 is as near to float32 as transformers' bfloat16 is."""
    found, rounded, exact = _teacher_forced(checkpoints.make(family, tmp_path, dtype=torch.bfloat16))
    assert (found - exact).abs().mean() <= 1.2 * (rounded - exact).abs().mean()
