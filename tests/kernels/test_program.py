"""Choice of implementations, and what is compiled from them."""

import dataclasses

import pytest
import torch

from penstock.core.errors import ConfigurationError
from penstock.kernels.cases import Case
from penstock.kernels.dispatch import Binding, Dispatcher
from penstock.kernels.places import RopeSpec, WeightRef
from penstock.kernels.processor import this_processor
from penstock.kernels.program import compile_program
from penstock.kernels.rope import RopeTable, inverse_frequencies
from penstock.kernels.signature import Linear
from penstock.kernels.tape import Tape
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
