"""Integers of a checkpoint that native kernels take as they are: the same weights, without being numbers in between."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.configuration.facts import KeptIntegers
from penstock.configuration.options import EngineOptions
from penstock.kernels.cpu.form import NativeForm, StackedForm
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import NativeLinear
from penstock.layers.weights import WeightPart, WeightSpec
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.integers import kept_integers
from penstock.loading.packed_cache import load_cached
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from penstock.models.registry import declare
from penstock.quantization.grouped import Grouped
from support import checkpoints
from support.gguf_files import write_gguf
from support.plain import plain
from support.quantized import LAYOUTS, quantize
from support.stepping import all_logits, make_stepper

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

OWN = PackedWeights("own", "own")
KEPT = {
    "gptq 2": "int2_",
    "gptq 4": "int4_",
    "gptq 3, v2": "int3_",
    "gptq without order": "int4_",
    "gptq act-order": "int4_",
    "packed 4, act-order": "int4_",
    "awq": "int4_",
    "packed 4": "int4_",
    "packed 3": "int3_",
    "packed 3, symmetric": "int3_",
    "packed 2, symmetric": "int2_",
    "packed 8": "q8_0",
    "int8 rows": "int8",
}
GGUF = ("Q4_0", "Q4_0 tied", "Q8_0", "Q4_K", "Q4_K tied", "Q4_K mixed", "Q6_K")
# What files with more bits for some matrices have, and a gate of other blocks than what it is multiplied with.
MIXED = {"attn_v": Kind.Q6_K, "ffn_gate": Kind.Q4_0, "ffn_up": Kind.Q8_0}
NUMBERS = ("gptq 8", "packed 8, act-order", "packed 8, zeros", "int8 groups", "fp8 rows", "nf4")
PROMPTS = [[5, 9, 200, 31, 7, 7, 300, 12] * 12, [41, 3]]


def model(layout: str, tmp_path: Path) -> Path:
    """A model in a layout, or in blocks of GGUF."""
    if layout in GGUF:
        sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
        tied = layout.endswith("tied")
        # What the format has a place for.
        rope = {**checkpoints.LLAMA3_ROPE, "original_max_position_embeddings": 8192}
        original = checkpoints.make(
            "llama", tmp_path / "plain", tie_word_embeddings=tied, rope_parameters=rope, **sizes
        )
        others = MIXED if layout.endswith("mixed") else None
        return write_gguf(original, tmp_path / "model.gguf", Kind[layout.split()[0]], others)
    original = checkpoints.make("llama", tmp_path / "plain")
    return quantize(original, *LAYOUTS[layout], tmp_path / "quantized")


def looked_up(weight: NativeLinear) -> torch.Tensor:
    found = torch.empty(weight.shape)
    first = 0
    for handle, (_, count) in zip(weight.handles, weight.form.pieces(weight.shape[0]), strict=True):
        handle.look_up(torch.arange(count), found[first : first + count])
        first += count
    return found


@pytest.mark.parametrize("layout", (*KEPT, *GGUF))
def test_packed_integers_are_the_weights_to_the_bit(tmp_path: Path, layout: str) -> None:
    checkpoint = open_checkpoint(model(layout, tmp_path))
    declaration = declare(checkpoint.config)
    packing = PackedWeights("own", "own", tied=layout.endswith("tied"))
    numbers = load_weights(checkpoint, declaration, torch.float32, packing=plain)
    kept = 0
    for name, weight in load_weights(checkpoint, declaration, torch.float32, packing=packing).items():
        if isinstance(weight, NativeLinear) and weight.form != NativeForm("float32"):
            assert torch.equal(looked_up(weight), numbers[name]), name
            assert layout not in KEPT or KEPT[layout] in str(weight.form)
            kept += 1
    # Four fused matrices in each of three layers; GGUF files have the head, too, and the embedding where they are one.
    assert kept == 12 + (0 if layout in KEPT else 2 if layout.endswith("tied") else 1)


def test_one_group_for_all_inputs() -> None:
    """Its scales are a column, with the strides of the row that they were."""
    generator = torch.Generator().manual_seed(1)
    integers = torch.randint(0, 16, (64, 32), generator=generator, dtype=torch.uint8)
    scales = torch.rand(1, 64, generator=generator).half().T
    assert scales.stride() == (1, 64)
    matrix = Grouped(integers, scales, bits=4)
    weight = OWN(WeightSpec("a.weight", (WeightPart("a.weight", (64, 32)),), "linear"), matrix)
    assert isinstance(weight, NativeLinear) and torch.equal(looked_up(weight), matrix.numbers())


@pytest.mark.parametrize("layout", ("gptq 4", "packed 4", "packed 8", "int8 rows"))
def test_rows_that_stand_in_another_order_are_put_right(tmp_path: Path, layout: str) -> None:
    """Half of each of GLM's heads turns, and neighbours do, in files."""
    original = checkpoints.make("glm", tmp_path / "plain")
    checkpoint = open_checkpoint(quantize(original, *LAYOUTS[layout], tmp_path / "quantized"))
    declaration = declare(checkpoint.config)
    numbers = load_weights(checkpoint, declaration, torch.float32, packing=plain)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=OWN)
    queries = [spec.name for spec in declaration.weights if any(part.rows is not None for part in spec.parts)]
    queries = [name for name in queries if name.endswith("weight")]
    assert len(queries) == 3
    for name in queries:
        weight = weights[name]
        assert isinstance(weight, NativeLinear) and KEPT[layout] in str(weight.form)
        assert torch.equal(looked_up(weight), numbers[name])


@pytest.mark.parametrize("layout", NUMBERS)
def test_what_the_kernels_do_not_take_becomes_numbers(tmp_path: Path, layout: str) -> None:
    checkpoint = open_checkpoint(model(layout, tmp_path))
    declaration = declare(checkpoint.config)
    assert kept_integers(checkpoint, declaration) == KeptIntegers()
    weights = load_weights(checkpoint, declaration, torch.float32, packing=OWN)
    assert {weight.form for weight in weights.values() if isinstance(weight, NativeLinear)} == {NativeForm("float32")}


def test_inputs_that_stand_apart_are_put_together(tmp_path: Path) -> None:
    """Gate and up have orders of their own here, so that they are two matrices for the kernels."""
    checkpoint = open_checkpoint(model("gptq act-order", tmp_path))
    declaration = declare(checkpoint.config)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=OWN)
    found = {str(weight.form) for weight in weights.values() if isinstance(weight, NativeLinear)}
    one = "int4_float16 in groups of 16 with zero points and an order"
    assert found == {"float32", one, f"96 of {one}, 96 of {one}"}
    own = kept_integers(checkpoint, declaration)
    assert own.body_bytes == sum(
        weights[spec.name].memory.numel() for spec in declaration.weights if spec.role == "linear"
    )  # type: ignore[union-attr]


def test_groups_of_different_sizes_become_numbers(tmp_path: Path) -> None:
    path = model("gptq act-order", tmp_path)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("g_idx"):
            tensor[tensor.tolist().index(0)] = 1
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(path)
    assert kept_integers(checkpoint, declare(checkpoint.config)) == KeptIntegers()
    expected = torch.cat(list(all_logits(make_stepper(path), PROMPTS, None)))
    assert torch.equal(torch.cat(list(all_logits(make_stepper(path, packing=OWN), PROMPTS, None))), expected)


def test_what_differs_stays_as_it_is(tmp_path: Path) -> None:
    """Queries, keys and values are one projection, and more bits for one of them do not make numbers of the others."""
    checkpoint = open_checkpoint(model("Q4_K mixed", tmp_path))
    declaration = declare(checkpoint.config)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=OWN)
    forms = {name: weight.form for name, weight in weights.items() if isinstance(weight, NativeLinear)}
    spec = next(spec for spec in declaration.weights if len(spec.parts) == 3)
    queries, keys, values = (part.shape[0] for part in spec.parts)
    assert forms[spec.name] == StackedForm(((NativeForm("q4_k"), queries + keys), (NativeForm("q6_k"), values)))
    assert {str(form) for form in forms.values() if isinstance(form, StackedForm)} == {
        f"{queries + keys} of q4_k, {values} of q6_k",
        "256 of int4_float16 in groups of 32, 256 of q8_0",
    }
    own = kept_integers(checkpoint, declaration)
    assert own.body_bytes + own.head_bytes == sum(
        weight.memory.numel() for weight in weights.values() if isinstance(weight, NativeLinear)
    )


@pytest.mark.parametrize("layout", ["gptq 4", "Q4_K tied"])
def test_the_head_beside_integers_may_be_rounded(tmp_path: Path, layout: str) -> None:
    checkpoint = open_checkpoint(model(layout, tmp_path))
    declaration = declare(checkpoint.config)
    packing = PackedWeights("own", "int8", tied=layout.endswith("tied"))
    weights = load_weights(checkpoint, declaration, torch.float32, packing=packing)
    kept = load_weights(checkpoint, declaration, torch.float32, packing=OWN)
    head = declaration.decoder.output.weight.name
    assert str(weights[head].form) == "int8" and str(kept[head].form) != "int8"
    for spec in declaration.weights:
        if spec.role == "linear":
            assert weights[spec.name].form == kept[spec.name].form
    own = kept_integers(checkpoint, declaration)
    bodies = {spec.name for spec in declaration.weights if spec.role == "linear"}
    assert own.body_bytes == sum(weights[name].memory.numel() for name in bodies)


@pytest.mark.parametrize(
    "layout",
    (
        "gptq 4",
        "gptq act-order",
        "packed 4",
        "packed 4, act-order",
        "packed 2, symmetric",
        "packed 8",
        "int8 rows",
        "Q4_0",
        "Q8_0",
        "Q4_K",
        "Q4_K mixed",
        "Q6_K",
    ),
)
def test_logits_are_near_those_of_the_numbers(tmp_path: Path, layout: str) -> None:
    """They differ by the rounding of activations to 8 bits only."""
    path = model(layout, tmp_path)
    expected = torch.cat(list(all_logits(make_stepper(path), PROMPTS, None)))
    found = torch.cat(list(all_logits(make_stepper(path, packing=OWN), PROMPTS, None)))
    # Weights of blocks are random bytes here, so that little averages out.
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize(
    "layout", ("gptq 4", "gptq act-order", "packed 3", "packed 8", "int8 rows", "Q4_0", "Q4_K", "Q4_K mixed")
)
def test_they_are_kept_for_the_next_start(tmp_path: Path, layout: str) -> None:
    checkpoint = open_checkpoint(model(layout, tmp_path))
    declaration = declare(checkpoint.config)

    def load() -> tuple[dict[str, object], bool]:
        loaded = load_cached(tmp_path / "packed", checkpoint, declaration, torch.bfloat16, OWN, lambda done, all: None)
        return {
            name: looked_up(weight) if isinstance(weight, NativeLinear) else weight
            for name, weight in loaded.weights.items()
        }, loaded.mapped

    first, mapped = load()
    assert not mapped
    again, mapped = load()
    assert mapped
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "found"), [("auto", "own"), ("none", "none"), ("int8", "int8")])
def test_what_is_asked_for(tmp_path: Path, asked: str, found: str) -> None:
    path = model("gptq 4", tmp_path)
    prepared = prepare(EngineOptions.of(model=str(path), quantization=asked, threads=1), api_beside=False)
    assert prepared.config.model.quantization == found
    reason = next(each for each in prepared.reasons if each.setting == "quantization")
    assert reason.value == found
    assert ("own integers" in reason.why) == (found == "own")


def test_a_plain_checkpoint_has_none(tmp_path: Path) -> None:
    path = checkpoints.make("llama", tmp_path / "plain")
    assert prepare(EngineOptions.of(model=str(path)), api_beside=False).config.model.quantization == "none"


def test_a_norm_in_blocks_becomes_numbers(tmp_path: Path) -> None:
    path = model("Q8_0", tmp_path)
    checkpoint = open_checkpoint(path)
    declaration = declare(checkpoint.config)
    spec = next(spec for spec in declaration.weights if spec.role == "norm")
    entry = replace(checkpoint.tensors[spec.parts[0].tensor], dtype="Q8_0")
    assert not OWN.keeps(spec, [entry])
