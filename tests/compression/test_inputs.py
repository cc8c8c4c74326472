"""What experts are given, and which have too little of it."""

from pathlib import Path

import torch
from torch.nn import functional as F

from penstock.assembly.prepare import prepare
from penstock.compression.inputs import Inputs, Rare, Watch
from penstock.compression.projections import matrices, units
from penstock.configuration.options import EngineOptions
from support import checkpoints


def test_an_expert_is_given_its_own_rows(tmp_path: Path) -> None:
    model = checkpoints.make("mixtral", tmp_path)
    prepared = prepare(EngineOptions.of(model=str(model), speculative="off"), api_beside=False)
    block, entries = prepared.declaration.decoder.blocks[0], prepared.checkpoint.locate(prepared.declaration)
    gate_up, down = (spec for spec in matrices(block) if spec.experts > 1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 64, generator=generator)
    # Expert 2 has 20 rows, expert 4 has none.
    chosen = torch.tensor([[0.0, 2.0]] * 20 + [[1.0, 3.0]] * 30)
    watch = Watch([gate_up.name, down.name], torch.float32)
    for rows in (slice(0, 10), slice(10, 50)):
        watch.experts(gate_up.name, x[rows], chosen[rows])
    inputs = Inputs(block, entries, watch, lambda count: 25 if count == 64 else 10)
    first, second = (units(spec)[2] for spec in (gate_up, down))
    mlp = checkpoints.load_reference(model).model.layers[0].mlp.experts
    gate, up = F.linear(x[:20], mlp.gate_up_proj[2]).chunk(2, dim=1)
    inner = F.silu(gate) * up
    for unit, given in ((first, x[:20]), (second, inner)):
        seen = inputs.seen(unit)
        assert seen is not None and seen.rows == 20
        torch.testing.assert_close(seen.hessian, given.T @ given / 10, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen.largest, given.abs().amax(0))
    assert inputs.enough(first) is None and inputs.enough(second) is not None
    assert inputs.seen(units(gate_up)[4]) is None and inputs.enough(units(down)[4]) is None
    together = inputs.together(units(gate_up))
    assert together is not None and together.rows == 50
    assert inputs.rare(block) == (
        Rare(gate_up.name, (0, 2, 4), least=0, needed=25, count=5),
        Rare(down.name, (4,), least=0, needed=10, count=5),
    )
    inputs.divide(second, torch.full((96,), 2.0))
    torch.testing.assert_close(inputs.seen(second).hessian, inner.T @ inner / 40, rtol=1e-4, atol=1e-5)


def test_without_texts_nothing_is_known(tmp_path: Path) -> None:
    model = checkpoints.make("mixtral", tmp_path)
    prepared = prepare(EngineOptions.of(model=str(model), speculative="off"), api_beside=False)
    block, entries = prepared.declaration.decoder.blocks[0], prepared.checkpoint.locate(prepared.declaration)
    inputs = Inputs(block, entries, None, lambda count: count)
    each = [unit for spec in matrices(block) for unit in units(spec)]
    assert not any(inputs.seen(unit) or inputs.enough(unit) for unit in each) and inputs.rare(block) == ()
