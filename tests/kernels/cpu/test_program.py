"""Native programs: registers, segments between other kernels, fused gates, and steps that do not fit."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from penstock.core.kv import LayerKV
from penstock.kernels.batch import StepBatch
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.cpu.weights import pack_dense
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.packing import Weight
from penstock.kernels.places import WeightRef
from penstock.kernels.processor import this_processor
from penstock.kernels.program import Program, compile_program
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import HeadLayout
from penstock.kernels.tape import Tape
from support.stepping import ShuffledStorage

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

VOCABULARY, WIDTH, INNER = 50, 64, 96


def record(gate_read_twice: bool = False) -> Tape:
    """A small model without attention: two gated blocks on a residual stream, and a head."""
    tape = Tape()
    residual = tape.embedding(WeightRef("embedding"), WIDTH)
    x = tape.rms_norm(residual, WeightRef("norm"), 1e-6)
    for block in range(2):
        both = tape.linear(x, WeightRef(f"up{block}"), 2 * INNER)
        inner = tape.gated_activation(both, "silu")
        if gate_read_twice:
            inner = tape.gated_activation(tape.linear(both, WeightRef("again"), 2 * INNER), "gelu_tanh")
        x, residual = tape.add_rms_norm(
            tape.linear(inner, WeightRef(f"down{block}"), WIDTH), residual, WeightRef("norm"), 1e-6
        )
    tape.finish(tape.soft_cap(tape.linear(tape.select_rows(x), WeightRef("embedding"), VOCABULARY), 5.0))
    return tape


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"embedding": (VOCABULARY, WIDTH), "norm": (WIDTH,), "again": (2 * INNER, 2 * INNER)}
    for block in range(2):
        shapes |= {f"up{block}": (2 * INNER, WIDTH), f"down{block}": (WIDTH, INNER)}
    return {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}


def batch(tokens: int = 5, *, ids: list[int] | None = None, blocks: list[int] | None = None) -> StepBatch:
    return StepBatch(
        token_ids=torch.tensor(ids or list(range(tokens))),
        positions=torch.arange(tokens),
        query_lengths=[tokens],
        context_lengths=[tokens],
        num_decodes=0,
        logit_rows=torch.tensor([0, tokens - 1]),
        block_tables=(torch.tensor([blocks or [1]], dtype=torch.int32),),
        block_size=16,
    )


def compiled(tape: Tape, packed: set[str], dtype: torch.dtype = torch.float32) -> Program:
    plain = weights()
    chosen: dict[str, Weight] = {name: pack_dense(w) if name in packed else w for name, w in plain.items()}
    storage = ShuffledStorage([LayerKV(1, 8)], dtype, 32, 1, layout="tiles")
    return compile_program(tape, chosen, storage, dtype, Dispatcher(this_processor().implementations))


def expected(tape: Tape) -> Tensor:
    storage = ShuffledStorage([LayerKV(1, 8)], torch.float32, 32, 1)
    return compile_program(tape, dict(weights()), storage, torch.float32, Dispatcher(REFERENCE)).run(batch())


MATRICES = {"embedding", "up0", "up1", "down0", "down1", "again"}


@pytest.mark.parametrize("gate_read_twice", [False, True])
def test_one_program_is_the_reference(gate_read_twice: bool) -> None:
    tape = record(gate_read_twice)
    program = compiled(tape, MATRICES)
    assert len(program._code) == 1 and program.row_function
    for _ in range(2):
        torch.testing.assert_close(program.run(batch()), expected(tape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packed", [set(), {"up0"}, {"embedding", "down0", "up1"}, MATRICES - {"down1"}])
def test_other_kernels_may_stand_between(packed: set[str]) -> None:
    tape = record()
    program = compiled(tape, packed)
    assert len(program._code) > 1
    torch.testing.assert_close(program.run(batch()), expected(tape), rtol=1e-4, atol=1e-4)


def test_a_gate_alone_gives_the_same_bits_as_with_its_projection() -> None:
    """Fusing is about passes over memory, not about results."""
    torch.manual_seed(0)
    weight, x = pack_dense(torch.randn(2 * INNER, WIDTH)), torch.randn(7, WIDTH)
    apart, together = native.Program(3), native.Program(2)
    apart.linear(weight.handle, None, 0, 1)
    apart.gated_activation("silu", 1, 2)
    together.gated_linear(weight.handle, None, "silu", 0, 1)
    one, other = torch.empty(7, INNER), torch.empty(7, INNER)
    for program, output, register in ((apart, one, 2), (together, other, 1)):
        none = torch.zeros(0, dtype=torch.int64)
        program.run(none, none, [], [], none, [], 16, none, [(0, x)], [(register, output)])
    assert torch.equal(one, other)


def test_projections_can_share_a_register_each_with_columns_of_its_own() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(7, WIDTH), torch.randn(70, WIDTH), torch.randn(70)
    whole, parts = native.Program(2), native.Program(2)
    whole.linear(pack_dense(weight).handle, bias, 0, 1)
    for first, end in ((0, 33), (33, 70)):
        parts.linear(pack_dense(weight[first:end]).handle, bias[first:end], 0, 1, first, 70)
    one, other = torch.empty(7, 70), torch.empty(7, 70)
    for program, output in ((whole, one), (parts, other)):
        none = torch.zeros(0, dtype=torch.int64)
        program.run(none, none, [], [], none, [], 16, none, [(0, x)], [(1, output)])
    assert torch.equal(one, other)
    for first, width in ((-1, 70), (38, 70), (0, 32)):
        with pytest.raises(ValueError, match="among the columns"):
            parts.linear(pack_dense(weight[:33]).handle, None, 0, 1, first, width)


def test_results_of_a_bfloat16_model_are_not_rounded_at_the_end() -> None:
    logits = compiled(record(), MATRICES, torch.bfloat16).run(batch())
    assert logits.dtype is torch.float32 and not torch.equal(logits, logits.bfloat16().float())


def attending() -> Program:
    from penstock.kernels.cases.attention import GROUPED

    tape = Tape()
    qkv = tape.linear(tape.embedding(WeightRef("embedding"), WIDTH), WeightRef("qkv"), GROUPED.fused_width)
    tape.write_kv(qkv, GROUPED, 0)
    tape.finish(tape.attention(qkv, GROUPED, 0, 0.3))
    plain = weights() | {"qkv": torch.randn(GROUPED.fused_width, WIDTH)}
    storage = ShuffledStorage([LayerKV(2, 8)], torch.float32, 32, 1, layout="tiles")
    storage.own(1)
    chosen: dict[str, Weight] = {name: pack_dense(plain[name]) for name in ("embedding", "qkv")}
    return compile_program(tape, chosen, storage, torch.float32, Dispatcher(NATIVE))


def test_steps_that_do_not_fit_are_refused_before_memory_is_touched() -> None:
    program = attending()
    assert program.run(batch()).isfinite().all()
    for wrong, cause in (
        (batch(ids=[1, 2, 3, 4, VOCABULARY]), "token id"),
        (batch(ids=[1, 2, 3, 4, -1]), "token id"),
        (batch(blocks=[9999]), "no such block"),
        (batch(blocks=[-1]), "no such block"),
        (batch(20), "block table"),
    ):
        with pytest.raises(ValueError, match=cause):
            program.run(wrong)
    assert program.run(batch()).isfinite().all()


def test_sources_that_do_not_fit_are_refused_before_memory_is_touched() -> None:
    heads = HeadLayout(2, 2, 8)
    tape = Tape()
    query = tape.linear(tape.embedding(WeightRef("embedding"), WIDTH), WeightRef("query"), heads.query_width)
    tape.finish(tape.source_attention(query, heads, 0, 0.3))
    plain = weights() | {"query": torch.randn(heads.query_width, WIDTH)}
    storage = ShuffledStorage([LayerKV(2, 8, source=True)], torch.float32, 32, 1, layout="tiles")
    storage.own(1)
    chosen: dict[str, Weight] = {name: pack_dense(plain[name]) for name in ("embedding", "query")}
    program = compile_program(tape, chosen, storage, torch.float32, Dispatcher(NATIVE))
    # A context may be longer than the table, which is the source's.
    assert program.run(replace(batch(40), sources=[7])).isfinite().all()
    for sources, cause in (
        ([], "must have a source"),
        ([7, 7], "must have a source"),
        ([0], "tokens"),
        ([17], "table"),
    ):
        with pytest.raises(ValueError, match=cause):
            program.run(replace(batch(40), sources=sources))
    with pytest.raises(ValueError, match="no such block"):
        program.run(replace(batch(40, blocks=[9999]), sources=[7]))


def test_rows_say_of_their_own_tokens_which_are_seen() -> None:
    heads = HeadLayout(2, 2, 8)
    tape = Tape()
    qkv = tape.linear(tape.embedding(WeightRef("embedding"), WIDTH), WeightRef("qkv"), heads.fused_width)
    tape.finish(tape.row_attention(qkv, heads, 0.3))
    plain = weights() | {"qkv": torch.randn(heads.fused_width, WIDTH)}
    chosen: dict[str, Weight] = {name: pack_dense(plain[name]) for name in ("embedding", "qkv")}
    storage = ShuffledStorage([], torch.float32, 1, 1)
    program = compile_program(tape, chosen, storage, torch.float32, Dispatcher(NATIVE))
    step = replace(batch(), block_tables=(), logit_rows=torch.arange(5))
    for seen in (1, 5):
        assert program.run(replace(step, seen=torch.tensor([seen]))).isfinite().all()
    for wrong, cause in (([0], "tokens of the step"), ([6], "tokens of the step"), ([5, 5], "must say what is seen")):
        with pytest.raises(ValueError, match=cause):
            program.run(replace(step, seen=torch.tensor(wrong)))


def test_a_program_is_built_of_operations_that_fit() -> None:
    program = native.Program(2)
    with pytest.raises(ValueError, match="no such register"):
        program.scale(1.0, 0, 2)
    with pytest.raises(ValueError, match="in place"):
        program.linear(pack_dense(torch.randn(32, 64)).handle, None, 1, 1)
    with pytest.raises(ValueError, match="whole panels"):
        program.gated_linear(pack_dense(torch.randn(32, 64)).handle, None, "silu", 0, 1)
    with pytest.raises(ValueError, match="multiple of 16"):
        program.write_kv(1, 1, [torch.zeros(1, 24, 1, 8)] * 2, "plain", "float32", 0, 0)
    apart = torch.zeros(3, 2, 16, 1, 8)
    with pytest.raises(ValueError, match="as far apart"):
        program.write_kv(1, 1, [apart[:, 0], torch.zeros(3, 16, 1, 8)], "plain", "float32", 0, 0)
    with pytest.raises(ValueError, match="not overlap"):
        program.write_kv(1, 1, [torch.zeros(1, 16, 1, 8).expand(3, -1, -1, -1)] * 2, "plain", "float32", 0, 0)
    with pytest.raises(ValueError, match="contiguous"):
        program.write_kv(
            1, 1, [torch.zeros(3, 1, 16, 8).transpose(1, 2).contiguous()[:, :, :, :4]] * 2, "plain", "float32", 0, 0
        )
