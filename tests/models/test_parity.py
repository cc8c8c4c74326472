"""Logits of every family equal transformers', whatever the batch and the chunks; and every feature matters."""

import dataclasses
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.kernels.places import LinearRope
from penstock.kernels.reference import REFERENCE
from penstock.models.declaration import ModelDeclaration
from penstock.models.registry import declare
from support import checkpoints, features
from support.pairing import in_turn
from support.plain import plain
from support.stepping import Stepper, all_logits, make_stepper

FAMILIES = checkpoints.EVERY
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


# Of the newer ones, each with another chunk than its neighbours; `test_prefill_and_decode_mix` has them all.
@pytest.mark.parametrize(
    "family, chunk",
    [
        *product(checkpoints.FAMILIES, (1, 16, None)),
        *in_turn([(family,) for family in checkpoints.NEWER], (1, 16, None)),
    ],
)
def test_logits_equal_reference(references: dict[str, Reference], family: str, chunk: int | None) -> None:
    reference = references[family]
    found = all_logits(make_stepper(reference.path), reference.prompts, chunk)
    assert _difference(found, reference.logits) <= TOLERANCE


@pytest.mark.one_in(2, each=())
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


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "family, mutation",
    [(family, name) for family, own in features.MUTATIONS.items() for name in (*features.common(family), *own)],
)
def test_every_feature_matters(references: dict[str, Reference], family: str, mutation: str) -> None:
    """A feature that is off, or off by one, must show in the logits: else the parity tests would not see it break."""
    reference = references[family]
    change = {**features.common(family), **features.MUTATIONS[family]}[mutation]
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
        _stepper_despite_unused_tensors(reference.path, features.decoder(head=None)(declaration)),
        reference.prompts[:1],
        None,
    )
    assert not _difference(found, reference.logits[:1]) <= TOLERANCE


WITHOUT_QKV_BIAS = features.attention(lambda a: dataclasses.replace(a, qkv_bias=False))
WITHOUT_OUTPUT_BIAS = features.attention(lambda a: dataclasses.replace(a, output_bias=False))
UNTIED = features.decoder(head=None)
OTHER_ACTIVATION = {"activation": features.COMMON["activation"]}
WINDOW_ON = {"window on": features.attention(lambda a: dataclasses.replace(a, window=16))}
OPTIONS: tuple[tuple[str, dict[str, Any], dict[str, features.Change]], ...] = (
    (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {
            "qkv bias off": WITHOUT_QKV_BIAS,
            "output bias off": WITHOUT_OUTPUT_BIAS,
            "mlp bias off": features.mlp(lambda mlp: dataclasses.replace(mlp, gate_up_bias=False, down_bias=False)),
        },
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 700.0}},
        {
            "scaling off": features.rope(scaling=None),
            "factor": features.rope(scaling=LinearRope(3.05)),
            "base": features.rope(theta=693.0),
        },
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "head_dim": 16},
        {"base": features.rope(theta=693.0), "scaling on": features.rope(scaling=LinearRope(1.05))},
    ),
    ("llama", {"num_key_value_heads": 4, "hidden_act": "gelu_pytorch_tanh"}, OTHER_ACTIVATION),
    ("llama", {"num_key_value_heads": 1}, {}),
    (
        "mistral",
        {"sliding_window": None, "tie_word_embeddings": False},
        {**WINDOW_ON, "tied": UNTIED},
    ),
    ("mistral", {"sliding_window": 16}, features.SLIDING),
    (
        "qwen2",
        {"use_sliding_window": False, "tie_word_embeddings": False},
        {**WINDOW_ON, "tied": UNTIED, "qkv bias off": WITHOUT_QKV_BIAS},
    ),
    (
        "qwen2",
        {"layer_types": ["sliding_attention", "full_attention"] * 2},
        {**features.SLIDING, "layers that slide": features.shift_pattern},
    ),
    (
        "qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        {
            **features.SLIDING,
            "layers that slide": features.shift_pattern,
            "qkv bias off": WITHOUT_QKV_BIAS,
            "output bias off": WITHOUT_OUTPUT_BIAS,
            "tied": UNTIED,
        },
    ),
    (
        "gemma3",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "tie_word_embeddings": False},
        {
            "score cap on": features.attention(lambda a: dataclasses.replace(a, softcap=12.0)),
            "logit cap on": features.decoder(logit_cap=2.0),
            "tied": UNTIED,
        },
    ),
    (
        "gemma3",
        {"layer_types": ["full_attention", "sliding_attention"] * 4},
        {**features.SLIDING, "local and global layers shifted": features.shift_pattern},
    ),
)


@pytest.mark.parametrize(
    "family, changes, mutations", OPTIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_options_of_each_family(
    tmp_path: Path, family: str, changes: dict[str, Any], mutations: dict[str, features.Change]
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


@pytest.mark.one_in(2, each=())
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_has_the_same_top_token(tmp_path: Path, family: str) -> None:
    found, rounded, exact = _teacher_forced(checkpoints.make(family, tmp_path, dtype=torch.bfloat16, confident=True))
    for reference in (rounded, exact):
        assert (found.argmax(-1) == reference.argmax(-1)).float().mean() >= 0.99


@pytest.mark.one_in(2, each=())
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_exact_as_the_reference(tmp_path: Path, family: str) -> None:
    """Where every layer matters, our bfloat16 is as near to float32 as transformers' bfloat16 is."""
    found, rounded, exact = _teacher_forced(checkpoints.make(family, tmp_path, dtype=torch.bfloat16))
    assert (found - exact).abs().mean() <= 1.2 * (rounded - exact).abs().mean()
