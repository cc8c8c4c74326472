"""Choice of implementations, packing, and the plan of a step's attention."""

import dataclasses

import pytest
import torch

from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV
from penstock.kernels.batch import StepBatch
from penstock.kernels.cases import Case
from penstock.kernels.dispatch import Binding, Dispatcher
from penstock.kernels.processor import this_processor
from penstock.kernels.program import compile_program
from penstock.kernels.reference import REFERENCE
from penstock.kernels.rope import RopeTable, inverse_frequencies
from penstock.kernels.signature import Linear, RopeSpec, WeightRef
from penstock.kernels.tape import Tape
from penstock.kernels.torch.attention_plan import plan_attention
from penstock.kernels.torch.operations import TORCH
from penstock.kernels.torch.packing import PackedLinear, pack_linear, packing_obstacle
from support.operations import Bench

CASE = Case("projection", Linear(WeightRef("weight")), (8,), ((1, 1),) * 3, {"weight": (8, 8)})


def _storage() -> object:
    return Bench(CASE, torch.float32).storage


def test_first_that_fits_is_chosen_and_the_report_says_why_others_were_not() -> None:
    dispatcher = Dispatcher(this_processor().implementations)
    binding = Binding({"weight": torch.ones(8, 8)}, _storage(), torch.float32)
    for _ in range(2):
        assert dispatcher.choose(CASE.operation, binding).name == "reference"
    (choice,) = dispatcher.report()
    assert (choice.operation, choice.implementation, choice.count) == ("linear", "reference", 2)
    rejected = dict(choice.rejected)
    assert "not packed" in rejected["native"] and "without packing" in rejected["onednn_packed"]
    assert not choice.row_function


def test_nothing_fits() -> None:
    binding = Binding({"weight": torch.ones(8, 8)}, _storage(), torch.float32)
    with pytest.raises(ConfigurationError, match="no implementation"):
        Dispatcher(()).choose(CASE.operation, binding)


@pytest.mark.skipif(packing_obstacle(torch.float32) is not None, reason="nothing is packed here")
def test_packed_weights_are_used_where_they_are() -> None:
    packed = pack_linear(torch.ones(8, 8))
    assert isinstance(packed, PackedLinear) and packed.shape == (8, 8)
    dispatcher = Dispatcher(this_processor().implementations)
    assert dispatcher.choose(CASE.operation, Binding({"weight": packed}, _storage(), torch.float32)).name == (
        "onednn_packed"
    )
    with pytest.raises(ConfigurationError, match="the weight is packed"):
        Dispatcher(REFERENCE).choose(CASE.operation, Binding({"weight": packed}, _storage(), torch.float32))


def test_packing_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "float16" in (packing_obstacle(torch.float16) or "")
    weight = torch.ones(4, 4, dtype=torch.float16)
    assert pack_linear(weight) is weight
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert "oneDNN" in (packing_obstacle(torch.float32) or "")


def test_program_frees_values_and_reports() -> None:
    tape = Tape()
    x = tape.embedding(WeightRef("weight"), 8)
    tape.finish(tape.linear(tape.rms_norm(x, WeightRef("norm"), 1e-6), WeightRef("weight"), 8))
    bench = Bench(CASE, torch.float32)
    weights = {"weight": torch.eye(8), "norm": torch.ones(8)}
    program = compile_program(tape, weights, bench.storage, torch.float32, Dispatcher(this_processor().implementations))
    batch, _ = bench._batch([0, 1, 2])
    batch = dataclasses.replace(batch, token_ids=torch.tensor([1, 0, 5]))
    logits = program.run(batch)
    assert torch.allclose(logits, torch.eye(8)[[1, 0, 5]] * 8**0.5, atol=1e-4)
    assert not program.row_function
    assert {choice.operation for choice in program.choices} == {"embedding", "rms_norm", "linear"}


def test_rope_table_grows_and_stays_the_same() -> None:
    spec = RopeSpec(8, 10000.0)
    table = RopeTable(spec, torch.float32)
    positions = torch.tensor([0, 3, 2000])
    before = [rows.clone() for rows in table.rows(positions, 2000)]
    cos, sin = table.rows(torch.tensor([70000]), 70000)
    angles = 70000.0 * inverse_frequencies(spec)
    assert torch.equal(cos[0, 0], torch.cat((angles.cos(), angles.cos())))
    assert torch.equal(sin[0, 0], torch.cat((-angles.sin(), angles.sin())))
    after = table.rows(positions, 2000)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def _plan(rows: list[tuple[int, int]], window: int | None = None, score_heads: int = 0) -> object:
    longest = max(context for _, context in rows)
    batch = StepBatch(
        token_ids=torch.zeros(0),
        positions=torch.tensor([place for added, context in rows for place in range(context - added, context)]),
        query_lengths=[added for added, _ in rows],
        context_lengths=[context for _, context in rows],
        num_decodes=sum(added == 1 for added, _ in rows),
        logit_rows=torch.zeros(0),
        block_tables=(torch.zeros((len(rows), -(-longest // 16)), dtype=torch.int32),),
        block_size=16,
    )
    return plan_attention(batch, 0, window, torch.float32, 2, score_heads)


def test_long_prompts_never_make_large_masks() -> None:
    for rows, window in (([(8000, 8000)], None), ([(2048, 16000)], None), ([(8000, 8000)], 1024)):
        (row,) = _plan(rows, window).long_rows
        masks = [piece.mask.numel() for piece in row.pieces if piece.mask is not None]
        assert max(masks, default=0) <= 1 << 21
        assert [piece.tokens[0] for piece in row.pieces] == [0, *(piece.tokens[1] for piece in row.pieces[:-1])]
        assert row.pieces[-1].tokens[1] == rows[0][0]
        if window is not None:
            assert all(piece.keys[1] - piece.keys[0] <= 2 * window for piece in row.pieces)
    (capped,) = _plan([(8000, 8000)], None, score_heads=8).long_rows
    assert all(piece.mask is not None and piece.mask.numel() * 8 <= 1 << 22 for piece in capped.pieces)


def test_decodes_of_very_different_length_are_not_padded_to_the_longest() -> None:
    contexts = [9000, 20, 8800, 35, 17, 8990]
    buckets = _plan([(1, context) for context in contexts]).buckets
    assert sorted(row for bucket in buckets for row in bucket.rows.tolist()) == list(range(6))
    assert sum(bucket.count * bucket.keep[1] for bucket in buckets) < 1.2 * sum(contexts)
    (together,) = _plan([(1, 100), (1, 90), (1, 95)]).buckets
    assert together.rows is None and together.count == 3
    (slid,) = _plan([(1, 9000), (1, 20)], window=64).buckets
    assert slid.blocks.numel() <= 2 * 5


def test_many_long_decodes_are_gathered_in_parts() -> None:
    buckets = _plan([(1, 9000)] * 12).buckets
    assert len(buckets) > 1 and sum(bucket.count for bucket in buckets) == 12
    assert all(bucket.count * bucket.keep[1] <= 1 << 15 for bucket in buckets)


def test_storage_of_another_type_is_refused_by_torchs_kernels() -> None:
    from penstock.kernels.cases.attention import CASES

    case = CASES[0]
    storage = Bench(dataclasses.replace(case, kv=LayerKV(2, 8)), torch.bfloat16).storage
    binding = Binding({}, storage, torch.float32, (True,))
    choice = Dispatcher((*TORCH, *REFERENCE)).choose(case.operation, binding)
    assert choice.name == "reference"
