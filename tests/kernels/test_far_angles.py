"""Angles far beyond a table: the same bits, in memory that does not grow with the positions."""

import random

import psutil
import pytest
import torch

from penstock.kernels.far_angles import MOST_PAGES, PAGE
from penstock.kernels.places import Llama3Rope, RopeSpec, YarnRope
from penstock.kernels.rope import LONGEST_TABLE, RopeTable

SPECS = [
    RopeSpec(64, 10000.0),
    RopeSpec(32, 500000.0, Llama3Rope(8.0, 1.0, 4.0, 8192)),
    RopeSpec(64, 10000.0, YarnRope(4.0, 4096, 1.2)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_bits_are_those_of_a_table_wherever_steps_are(spec: RopeSpec, dtype: torch.dtype) -> None:
    table, whole = RopeTable(spec, dtype), RopeTable(spec, dtype)
    right = whole.reaching(2 * LONGEST_TABLE).float()
    rng = random.Random(1)
    for _ in range(20):
        starts = [rng.randrange(2 * LONGEST_TABLE) for _ in range(rng.choice([1, 5, 2 * MOST_PAGES]))]
        spans = [(start, start + rng.choice([1, 1, 700])) for start in [*starts, LONGEST_TABLE]]
        found = table.spanning(spans)
        assert all(torch.equal(found[first:end], right[first:end]) for first, end in spans)
        positions = torch.tensor(starts)
        cos, signed_sin = table.rows(positions, max(starts))
        assert torch.equal(torch.cat((cos, signed_sin), dim=1).float(), right[positions])
    near = [(0, 5), (1000, 1001)]
    assert all(torch.equal(table.spanning(near)[first:end], right[first:end]) for first, end in near)


def test_memory_does_not_grow_with_a_stream() -> None:
    """A table of all these positions has 512 MiB."""
    table, last = RopeTable(SPECS[0], torch.float32), (1 << 20) - 1
    table.spanning([(last, last + 1)])
    before = psutil.Process().memory_info().rss
    for position in range(LONGEST_TABLE, last, PAGE // 2):
        table.spanning([(position, position + 1)])
    assert psutil.Process().memory_info().rss - before < 3 * MOST_PAGES * PAGE * 512
