"""What a decoder records: the order of operations, the life of values, and what only the last tokens need."""

import dataclasses

import pytest

from penstock.kernels.registers import last_uses
from penstock.kernels.signature import HeadLayout, Linear, RopeSpec, WeightRef
from penstock.kernels.tape import Tape, Value
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm

HEADS = HeadLayout(4, 2, 8)


def _block(index: int) -> DecoderBlock:
    name = f"layers.{index}"
    attention = SelfAttention(f"{name}.attn", index, 16, HEADS, RopeSpec(8, 1e4), 0.5, head_norm=(1e-6, False))
    return DecoderBlock(
        RmsNorm(f"{name}.first", 16, 1e-6),
        attention,
        RmsNorm(f"{name}.second", 16, 1e-6),
        GatedMlp(f"{name}.mlp", 16, 24, "silu"),
    )


DECODER = Decoder(50, 16, (_block(0), _block(1)), RmsNorm("norm", 16, 1e-6))


def _record(decoder: Decoder) -> Tape:
    tape = Tape()
    decoder.record(tape)
    return tape


def test_operations_in_order() -> None:
    block = [
        "linear",
        "head_norm",
        "rotary",
        "write_kv",
        "attention",
        "linear",
        "add_rms_norm",
        "linear",
        "gated_activation",
        "linear",
    ]
    last = [*block[:5], "select_rows", "select_rows", *block[5:]]
    expected = ["embedding", "rms_norm", *block, "add_rms_norm", *last, "add_rms_norm", "linear"]
    assert [step.operation.op for step in _record(DECODER).steps] == expected


def test_gemma_style_blocks_normalise_after_too() -> None:
    blocks = tuple(
        dataclasses.replace(block, after_attention=RmsNorm(f"{i}.a", 16, 1e-6), after_mlp=RmsNorm(f"{i}.b", 16, 1e-6))
        for i, block in enumerate(DECODER.blocks)
    )
    decoder = dataclasses.replace(DECODER, blocks=blocks, embedding_scale=4.0, logit_cap=30.0)
    operations = [step.operation.op for step in _record(decoder).steps]
    assert operations.count("rms_norm") == 1 + 2 * len(blocks)
    assert operations[1] == "scale" and operations[-1] == "soft_cap"
    assert {"0.a.weight", "1.b.weight"} <= {weight.name for weight in decoder.weights}


def test_every_weight_is_read_and_every_read_is_declared() -> None:
    read = set()
    for step in _record(DECODER).steps:
        fields = dataclasses.fields(step.operation)
        read |= {value.name for f in fields if isinstance(value := getattr(step.operation, f.name), WeightRef)}
    assert read == {weight.name for weight in DECODER.weights}
    assert len({weight.name for weight in DECODER.weights}) == len(DECODER.weights)


def test_values_die_once_and_never_before_their_last_use() -> None:
    tape = _record(DECODER)
    dead: set[Value] = set()
    for step, dying in zip(tape.steps, last_uses(tape.steps, tape.results), strict=True):
        assert not dead & {*step.inputs, *step.outputs}
        assert not dead & set(dying)
        dead |= set(dying)
    assert dead == {value for step in tape.steps for value in step.outputs} - {*tape.results}


def test_tied_head_reads_the_embedding_as_a_weight_of_its_own() -> None:
    tied = dataclasses.replace(DECODER, head=None)
    assert tied.output.weight.name == "lm_head.weight"
    assert tied.output.weight.parts == tied.embedding_weight.parts
    head = _record(tied).steps[-1].operation
    assert isinstance(head, Linear) and head.weight.name == "lm_head.weight"


def test_tape_refuses_what_does_not_fit() -> None:
    tape = Tape()
    x, y = tape.embedding(WeightRef("e"), 16), tape.embedding(WeightRef("e"), 18)
    with pytest.raises(ValueError, match="16 and 18"):
        tape.add_rms_norm(x, y, WeightRef("n"), 1e-6)
    with pytest.raises(ValueError, match="64 columns"):
        tape.write_kv(x, HEADS, 0)
    with pytest.raises(ValueError, match="halved"):
        tape.gated_activation(tape.linear(x, WeightRef("w"), 7), "silu")
    with pytest.raises(ValueError, match="no result"):
        _ = tape.results
