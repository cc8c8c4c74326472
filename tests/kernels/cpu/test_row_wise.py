"""Operations that threads take parts of rows through: which they are, and that bits are those of one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu import row_wise
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.cpu.row_wise import Piece, pieces_of
from penstock.kernels.cpu.weights import pack_dense, pack_int8
from penstock.kernels.dispatch import Dispatcher, FusedStep
from penstock.kernels.packing import Weight
from penstock.kernels.places import RopeSpec, WeightRef
from penstock.kernels.program import Program, compile_program
from penstock.kernels.signature import HeadLayout
from penstock.kernels.tape import Tape, Value
from support.stepping import ShuffledStorage

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

HEADS = HeadLayout(2, 1, 16)
WIDTHS = (32, 64, 96)
VOCABULARY = 40


@dataclass(frozen=True)
class Part:
    by_row: bool = True
    weight_bytes: int = 0
    unpacks: bool = False


def values(count: int, **which: bool) -> list[Value]:
    return [Value(index, 8, **which) for index in range(count)]


def step(part: Part, inputs: list[Value], outputs: list[Value]) -> FusedStep:
    return FusedStep(part, tuple(inputs), tuple(outputs))


def test_neighbours_go_together_and_only_what_others_read_leaves_them() -> None:
    a, b, c, d, e = values(5)
    steps = [
        step(Part(), [a], [b]),
        step(Part(), [b], [c]),
        step(Part(by_row=False), [c], [d]),
        step(Part(), [d, a], [e]),
    ]
    assert pieces_of(steps, [e]) == [
        Piece(tuple(steps[:2]), (a,), (c,)),
        Piece((steps[2],), (c,), (d,)),
        Piece((steps[3],), (d, a), (e,)),
    ]
    assert [piece.outputs for piece in pieces_of(steps, [e, b])] == [(b, c), (d,), (e,)]


def test_weights_that_are_large_or_unpacked_and_selected_rows_are_everyones() -> None:
    a, b, c = values(3)
    half = Part(weight_bytes=row_wise.MOST_WEIGHT_BYTES // 2)
    fitting = [step(half, [a], [b]), step(half, [b], [c])]
    assert len(pieces_of(fitting, [c])) == 1
    larger = [step(half, [a], [b]), step(Part(weight_bytes=half.weight_bytes + 1), [b], [c])]
    assert len(pieces_of(larger, [c])) == 2
    unpacked = [step(Part(weight_bytes=1, unpacks=True), [a], [b]), step(Part(), [b], [c])]
    assert len(pieces_of(unpacked, [c])) == 2
    a, b, c = values(3, selected=True)
    assert len(pieces_of([step(Part(), [a], [b]), step(Part(), [b], [c])], [c])) == 2


class Recorder:
    """Draws a tape: each operation reads what is there, so that values live for as long as it happens."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.tape = Tape()
        self.weights: dict[str, Weight] = {}
        self.generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
        table = torch.randn(VOCABULARY, WIDTHS[0], generator=self.generator)
        self.weights["embedding"] = pack_dense(table)
        self.values = [self.tape.embedding(WeightRef("embedding"), WIDTHS[0])]

    def plain(self, *shape: int) -> WeightRef:
        name = f"w{len(self.weights)}"
        self.weights[name] = torch.randn(shape, generator=self.generator) / 4
        return WeightRef(name)

    def matrix(self, outputs: int, inputs: int) -> WeightRef:
        name = f"w{len(self.weights)}"
        weight = torch.randn(outputs, inputs, generator=self.generator) / inputs**0.5
        if self.draw(st.booleans()):
            self.weights[name] = pack_dense(weight)
        else:
            integers = (weight * 40).round().clamp(-127, 127).char()
            self.weights[name] = pack_int8(integers, torch.full((outputs,), 1 / 40))
        return WeightRef(name)

    def operation(self) -> None:
        x = self.draw(st.sampled_from(self.values[-4:]))
        # Sums are of different values.
        like = [value for value in self.values if value.width == x.width and value is not x]
        like = like or [self.tape.scale(x, 2.0)]
        kinds = {
            "linear": self.linear,
            "norm": lambda x: self.tape.rms_norm(x, self.plain(x.width), 1e-6),
            "layer_norm": lambda x: self.tape.layer_norm(x, self.plain(x.width), 1e-6, self.plain(x.width)),
            "activation": lambda x: self.tape.activation(x, "gelu"),
            "scale": lambda x: self.tape.scale(x, 0.5),
            "add": lambda x: self.tape.add(x, self.draw(st.sampled_from(like))),
            "add_norm": lambda x: self.add_norm(x, self.draw(st.sampled_from(like))),
            "gate": lambda x: self.tape.gated_activation(self.tape.linear(x, self.matrix(128, x.width), 128), "silu"),
            "columns": lambda x: self.tape.columns(x, 0, x.width // 2) if x.width == WIDTHS[1] else x,
            "positions": lambda x: self.tape.add(x, self.tape.positions(self.plain(300, x.width), x.width)),
            "types": lambda x: self.tape.add(x, self.tape.types(self.plain(2, x.width), x.width)),
            "attention": self.attention,
        }
        made = kinds[self.draw(st.sampled_from(sorted(kinds)))](x)
        if made.width in WIDTHS:
            self.values.append(made)

    def linear(self, x: Value) -> Value:
        width = self.draw(st.sampled_from(WIDTHS))
        return self.tape.linear(x, self.matrix(width, x.width), width, self.plain(width))

    def add_norm(self, x: Value, residual: Value) -> Value:
        normed, total = self.tape.add_rms_norm(x, residual, self.plain(x.width), 1e-6)
        self.values.append(total)
        return normed

    def attention(self, x: Value) -> Value:
        qkv = self.tape.linear(x, self.matrix(HEADS.fused_width, x.width), HEADS.fused_width)
        turned = self.tape.rotary(qkv, HEADS, RopeSpec(HEADS.head_dim, 10000.0))
        return self.tape.row_attention(turned, HEADS, 0.25)


@st.composite
def recorded(draw: st.DrawFn) -> tuple[Tape, dict[str, Weight]]:
    recorder = Recorder(draw)
    for _ in range(draw(st.integers(2, 12))):
        recorder.operation()
    wanted = draw(st.sampled_from(recorder.values))
    recorder.tape.finish(*dict.fromkeys((recorder.values[-1], wanted)))
    return recorder.tape, recorder.weights


def batch(lengths: list[int]) -> StepBatch:
    tokens = sum(lengths)
    return StepBatch(
        token_ids=torch.arange(tokens) * 7 % VOCABULARY,
        positions=torch.cat([torch.arange(length) for length in lengths]),
        query_lengths=lengths,
        context_lengths=lengths,
        num_decodes=0,
        logit_rows=torch.arange(tokens),
        block_tables=(),
        block_size=16,
        types=torch.arange(tokens) % 2,
    )


def compiled(tape: Tape, weights: dict[str, Weight]) -> Program:
    return compile_program(tape, weights, ShuffledStorage([], torch.float32, 1, 1), torch.float32, Dispatcher(NATIVE))


@pytest.fixture
def threads() -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recorded(), st.lists(st.integers(1, 150), min_size=1, max_size=4), st.sampled_from([1, 2, 3]))
@pytest.mark.usefixtures("threads")
def test_bits_are_those_of_one_operation_at_a_time(
    model: tuple[Tape, dict[str, Weight]], lengths: list[int], count: int
) -> None:
    native.set_threads(count)
    together = compiled(*model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_wise, "MOST_WEIGHT_BYTES", -1)
        apart = compiled(*model)
    # The second step has what the first has left in the registers.
    for each in (lengths, lengths[::-1]):
        for one, other in zip(together.results(batch(each)), apart.results(batch(each)), strict=True):
            assert torch.equal(one, other)


def test_runs_are_begun_and_ended() -> None:
    program = native.Program(2)
    with pytest.raises(ValueError, match="no run to end"):
        program.end_rows()
    program.begin_rows([(0, 0)], [(1, 1, 8)])
    with pytest.raises(ValueError, match="within each other"):
        program.begin_rows([], [])
    with pytest.raises(ValueError, match="no such register"):
        native.Program(1).begin_rows([(0, 1)], [])


def test_a_step_of_few_rows_and_one_of_many_take_turns() -> None:
    tape = Tape()
    x = tape.embedding(WeightRef("embedding"), WIDTHS[0])
    tape.finish(tape.scale(tape.activation(x, "gelu"), 2.0))
    program = compiled(tape, {"embedding": pack_dense(torch.randn(VOCABULARY, WIDTHS[0]))})
    few, many = batch([3]), batch([200])
    first = program.run(few)
    rest = program.run(many)
    assert torch.equal(rest[:3], first) and torch.equal(program.run(replace(few)), first)
