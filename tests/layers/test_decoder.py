"""What a decoder records: the order of operations, the life of values, and what only the last tokens need."""

import dataclasses

import pytest

from penstock.kernels.places import RopeSpec, WeightRef
from penstock.kernels.registers import last_uses
from penstock.kernels.signature import HeadLayout, Linear
from penstock.kernels.tape import Tape, Value
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import Decoder, DecoderBlock
from penstock.layers.layer_inputs import LayerInput, LayerInputs
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


def _borrowing(index: int) -> DecoderBlock:
    block = _block(index)
    own = LayerInput(f"layers.{index}", index, 16, 6, "silu", 1e-6)
    borrowed = dataclasses.replace(block.attention, layer=1, borrows=True)
    return dataclasses.replace(block, attention=borrowed, layer_input=own)


BORROWERS = dataclasses.replace(
    DECODER,
    blocks=(*DECODER.blocks, _borrowing(2), _borrowing(3)),
    layer_inputs=LayerInputs("table", "projection", "norms", 50, 16, 4, 6, 1e-6),
)


def test_blocks_that_store_nothing_are_reached_by_wanted_rows_alone() -> None:
    steps = _record(BORROWERS).steps
    stored = max(at for at, step in enumerate(steps) if step.operation.op == "write_kv")
    # Of the layers' inputs, of what attention mixed, and of the residual stream.
    assert [at > stored for at, step in enumerate(steps) if step.operation.op == "select_rows"] == [False, True, True]
    behind = [step for step in steps[stored:] if step.operation.op in ("attention", "rotary", "columns")]
    assert [(step.operation.op, step.inputs[0].selected) for step in behind] == [
        ("attention", False),
        *(("rotary", True), ("attention", True), ("columns", True)) * 2,
    ]


def test_of_first_layers_the_last_that_stores_selects() -> None:
    tape = Tape()
    BORROWERS.record(tape, layers=1)
    assert [step.operation.op for step in tape.steps].count("write_kv") == 1
    assert [step.inputs[0].selected for step in tape.steps if step.operation.op == "attention"] == [False]


def test_where_states_of_all_tokens_are_wanted_none_is_left_behind() -> None:
    tape = Tape()
    BORROWERS.record(tape, states="all")
    assert not any(step.inputs[0].selected for step in tape.steps if step.operation.op == "attention")


def test_late_weights_are_those_of_the_blocks_behind() -> None:
    assert DECODER.late_weights == ()
    assert BORROWERS.late_weights == tuple(weight for block in BORROWERS.blocks[2:] for weight in block.weights)


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
    with pytest.raises(ValueError, match="Layer 3 must store all tokens"):
        tape.write_kv(tape.linear(tape.select_rows(x), WeightRef("w"), HEADS.fused_width), HEADS, 3)
    with pytest.raises(ValueError, match="halved"):
        tape.gated_activation(tape.linear(x, WeightRef("w"), 7), "silu")
    with pytest.raises(ValueError, match="no result"):
        _ = tape.results
