"""Decode steps by graphs of a ladder of sizes give what they give without, and padding leaves no trace.

On a GPU they are captured; where Triton is interpreted, their numbers are put in the same places and launched.
"""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.kernels.batch import Weighing
from penstock.kernels.cases.attention import GROUPED
from penstock.kernels.dispatch import Dispatcher
from penstock.kernels.places import RopeSpec, WeightRef
from penstock.kernels.program import Program, compile_program
from penstock.kernels.tape import Tape
from support.bounded import moved_up
from support.device import DEVICE
from support.stepping import ShuffledStorage, Stepper

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.core.kv import LayerKV
from penstock.kernels.cuda.graphs import LADDER
from penstock.kernels.cuda.operations import implementations
from penstock.kernels.cuda.place import place_on
from penstock.kernels.cuda.program import DeviceProgram
from penstock.kernels.cuda.step import carry

# Rows of padding have what memory had; interpreted, numpy tells where that is too large to be multiplied.
pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")]

PLACE = place_on(DEVICE, 96, most_rows=5)
WIDTH, VOCABULARY = 24, 40
# Of prompts: more than a tile's queries, and all of a block, so that the next token begins another.
LENGTHS = (3, 16, 22, 1, 2, 6)


def stepper(deterministic: bool = False) -> Stepper:
    """A model of one layer, whose storage has room for six rows."""
    tape = Tape()
    states = tape.embedding(WeightRef("embedding"), WIDTH)
    qkv = tape.rotary(tape.linear(states, WeightRef("qkv"), GROUPED.fused_width), GROUPED, RopeSpec(8, 10000.0))
    tape.write_kv(qkv, GROUPED, 0)
    mixed = tape.linear(tape.attention(qkv, GROUPED, 0, 0.4), WeightRef("out"), WIDTH)
    tape.finish(tape.linear(tape.select_rows(tape.add(states, mixed)), WeightRef("head"), VOCABULARY))
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "qkv": (GROUPED.fused_width, WIDTH),
        "out": (WIDTH, GROUPED.query_width),
        "head": (VOCABULARY, WIDTH),
    }
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator).to(PLACE.device) for name, shape in shapes.items()}
    storage = ShuffledStorage([LayerKV(2, 8)], torch.float32, 96, 6, device=PLACE.device)
    place = replace(PLACE, deterministic=deterministic)
    program = compile_program(tape, weights, storage, torch.float32, Dispatcher(implementations(place)))
    return Stepper(program, storage)


def device_program(program: Program) -> DeviceProgram:
    (found,) = [function for function, *_ in program._code if isinstance(function, DeviceProgram)]
    return found


def same(mine: torch.Tensor, right: torch.Tensor, deterministic: bool) -> None:
    """Equal bits where sums have one order; else torch's products depend on how many rows a graph is padded to, which
    they do on some processors, too.
    """
    atol = 0.0 if deterministic else 1e-5 * float(right.nan_to_num().abs().max())
    torch.testing.assert_close(mine, right, equal_nan=True, rtol=0, atol=atol)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_gives_what_a_launch_gives(deterministic: bool) -> None:
    plain, graphed = stepper(deterministic), stepper(deterministic)
    prompts = {row: [(7 * row + at) % VOCABULARY for at in range(length)] for row, length in enumerate(LENGTHS)}
    for each in (plain, graphed):
        each.step(prompts)
    captured = device_program(graphed.program)
    assert max(LENGTHS) > max(captured._queries) and graphed.storage.block_size in LENGTHS
    while graphed.program.use_idle_time():
        pass
    sizes = [*(size for size in LADDER if size < PLACE.most_rows), PLACE.most_rows]
    assert captured._graphs is not None and list(captured._graphs._captured) == sizes == [1, 2, 4, 5]
    for rows in ([2], [0, 5], [1, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]):
        added = {row: [(row + 3) % VOCABULARY] for row in rows}
        batch, _ = graphed.batch(added, rows, "all")
        assert captured._graphs.fits(batch) == next((size for size in sizes if size >= len(rows)), None)
        mine, right = graphed.step(added), plain.step(added)
        for row in rows:
            same(mine[row], right[row], deterministic)
    for mine, right in zip(graphed.storage.planes(0).values(), plain.storage.planes(0).values(), strict=True):
        same(mine, right, deterministic)


@pytest.mark.parametrize("graphs", [False, True])
def test_tokens_of_the_step_before_are_taken_where_they_are(graphs: bool) -> None:
    """By a graph and by a launch; those that are known stand among them."""
    known, carrying = stepper(deterministic=True), stepper(deterministic=True)
    prompts = {row: [(7 * row + at) % VOCABULARY for at in range(length)] for row, length in enumerate(LENGTHS[:3])}
    for each in (known, carrying):
        each.step(prompts)
    while graphs and carrying.program.use_idle_time():
        pass
    for tokens in ([4, 0, 39], [17, 5, 5]):
        added = {row: [token] for row, token in enumerate(tokens)}
        right = known.step(added)
        batch, counts = carrying.batch(added, [0, 1, 2], "all")
        carried = torch.tensor([float(tokens[2]), 11.0, float(tokens[0])], dtype=torch.float64, device=PLACE.device)
        ids = torch.tensor([-1 - 2, tokens[1], -1 - 0])
        mine = carrying.program.run(dataclasses.replace(batch, token_ids=ids, carried=carried)).cpu().split(counts)
        assert all(torch.equal(mine[row], right[row]) for row in range(3))
        for row in range(3):
            carrying.lengths[row] += 1


def test_many_tokens_are_taken_from_the_step_before() -> None:
    """More than one program's, in a step with a chunk behind the decodes."""
    ids = torch.arange(700, dtype=torch.int32)
    ids[::3] = -1 - torch.arange(len(ids[::3]), dtype=torch.int32).flip(0)
    carried = torch.arange(1000, 1000 + len(ids[::3]), dtype=torch.float64)
    expected = ids.clone()
    expected[::3] = carried.flip(0).to(torch.int32)
    found = ids.to(PLACE.device)
    carry(found, carried.to(PLACE.device), None)
    assert torch.equal(found.cpu(), expected)


def test_what_a_graph_cannot_do_is_launched() -> None:
    graphed = stepper()
    graphed.step({0: [1, 2, 3], 1: [4, 5]})
    assert graphed.program.use_idle_time()
    captured = device_program(graphed.program)._graphs
    assert captured is not None
    for added, wanted in (({0: [1, 2]}, "all"), ({0: [1, 2]}, "last"), ({0: [1], 1: [2]}, "all")):
        assert captured.fits(graphed.batch(added, sorted(added), wanted)[0]) is None
    alone = graphed.batch({0: [1]}, [0], "all")[0]
    assert captured.fits(alone) == 1
    weighing = Weighing([1], (np.zeros((1, 1), np.float32),))
    assert captured.fits(dataclasses.replace(alone, weighing=weighing)) is None
    assert captured.fits(dataclasses.replace(alone, context_lengths=[PLACE.longest + 1])) is None


def test_a_graph_takes_what_rows_have_dropped() -> None:
    """Tables are as they were, and positions as if there had been more before them: at first none, then some."""
    plain, graphed = stepper(deterministic=True), stepper(deterministic=True)
    for each in (plain, graphed):
        each.step({0: [1, 2, 3], 1: [4, 5]})
    while graphed.program.use_idle_time():
        pass
    captured, found = device_program(graphed.program)._graphs, []
    for change in (lambda batch: batch, moved_up):
        batch = change(graphed.batch({0: [7], 1: [8]}, [0, 1], "all")[0])
        assert captured is not None and captured.fits(batch) == 2
        mine, right = (each.program.run(batch).cpu() for each in (graphed, plain))
        assert torch.equal(mine, right)
        found.append(right)
    assert not torch.equal(*found)
