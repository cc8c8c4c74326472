"""Ranks meet: sums in their order, columns beside each other, and an end for those who wait in vain."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.cpu.native import native
from penstock.parallel.places import create_memory
from penstock.parallel.shared import SharedRanks
from penstock.planning.wire import RANKS
from support.ranks import shared_ranks, together
from support.waiting import until


def _values(rows: int, width: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(rows, width, generator=generator) * 10.0 ** (3 * rank)).to(dtype)


# Less and more than what goes at a time, which is 32,768 values.
@pytest.mark.parametrize("rows, width", [(1, 1), (3, 40), (64, 512), (65, 513), (7, 30000)])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_sum_is_in_the_order_of_ranks_everywhere(size: int, rows: int, width: int) -> None:
    each = [_values(rows, width, rank) for rank in range(size)]
    expected = each[0].clone()
    for more in each[1:]:
        expected += more
    with shared_ranks(size) as ranks:
        for _ in range(3):
            found = together(ranks, lambda rank: ranks[rank].sum(each[rank]))
            assert all(torch.equal(one, expected) for one in found)
        assert [rank.written for rank in ranks] == [3 * RANKS.summed(rows * width, size)] * size


def test_sums_of_two_bytes_are_added_in_four() -> None:
    each = [_values(5, 70, rank, torch.bfloat16) for rank in range(3)]
    with shared_ranks(3) as ranks:
        found = together(ranks, lambda rank: ranks[rank].sum(each[rank]))
    expected = (each[0].float() + each[1].float() + each[2].float()).bfloat16()
    assert all(torch.equal(one, expected) and one.dtype is torch.bfloat16 for one in found)


@given(
    rows=st.integers(1, 9),
    widths=st.lists(st.one_of(st.integers(1, 50), st.integers(8000, 40000)), min_size=2, max_size=4),
    everywhere=st.booleans(),
)
def test_columns_stand_beside_each_other(rows: int, widths: list[int], everywhere: bool) -> None:
    each = [_values(rows, width, rank) for rank, width in enumerate(widths)]
    whole = torch.cat(each, dim=1)
    with shared_ranks(len(widths)) as ranks:
        found = together(ranks, lambda rank: ranks[rank].gather(each[rank], widths, everywhere=everywhere))
        found += together(ranks, lambda rank: ranks[rank].sum(found[rank]))
        written = [rank.written - 4 * whole.numel() for rank in ranks]
    assert torch.equal(found[0], whole)
    others = [whole if everywhere else torch.zeros_like(whole)] * (len(widths) - 1)
    assert all(map(torch.equal, found[1 : len(widths)], others))
    # What is sent is what the others lack.
    sends = [everywhere or rank > 0 for rank in range(len(widths))]
    assert written == [RANKS.number * part.numel() * sent for part, sent in zip(each, sends, strict=True)]


def test_a_rank_that_parts_lets_others_end() -> None:
    with shared_ranks(3) as ranks:

        def work(rank: int) -> None:
            if rank == 1:
                raise KeyError("rank 1 goes")
            ranks[rank].sum(torch.ones(1, 8))

        with pytest.raises((RuntimeError, KeyError)):
            together(ranks, work)
        with pytest.raises(RuntimeError, match="has ended"):
            ranks[0].sum(torch.ones(1, 8))


def test_none_waits_for_longer_than_its_patience() -> None:
    memory = create_memory(2)
    ranks = SharedRanks(memory, 0, 2, patience=0.0)
    os.close(memory)
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        ranks.sum(torch.ones(1, 8))


CHILD = """
import sys, torch
from penstock.parallel.shared import SharedRanks
ranks = SharedRanks(int(sys.argv[1]), 1, 2)
for turn in range(200):
    assert float(ranks.sum(torch.full((1, 100), 2.0 * turn))[0, 0]) == 3.0 * turn
print("met")
"""


def test_processes_meet() -> None:
    """With pauses in which both sleep, and without."""
    memory = create_memory(2)
    try:
        command = [sys.executable, "-c", CHILD, str(memory)]
        with subprocess.Popen(command, pass_fds=[memory], stdout=subprocess.PIPE, text=True) as child:
            ranks = SharedRanks(memory, 0, 2)
            for turn in range(200):
                assert float(ranks.sum(torch.full((1, 100), 1.0 * turn))[0, 0]) == 3.0 * turn
            assert child.stdout is not None
            assert child.stdout.read() == "met\n"
    finally:
        os.close(memory)


def test_memory_must_fit() -> None:
    memory = torch.zeros(native.ranks_bytes(2) - 64, dtype=torch.uint8)
    with pytest.raises(ValueError, match="too small"):
        native.Ranks(memory.numpy(), 0, 2, 1.0)
    with pytest.raises(ValueError, match="must be one of them"):
        native.Ranks(memory.numpy(), 2, 2, 1.0)


BEATING = """
import sys
from penstock.kernels.progress import operations_done, pass_operation
from penstock.parallel.beating import begin_beating
for _ in range(3):
    pass_operation()
begin_beating(int(sys.argv[1]), 1, 2)
print(operations_done(), flush=True)
sys.stdin.read()
"""


def test_a_rank_shows_how_far_it_is() -> None:
    memory = create_memory(2)
    try:
        ranks = SharedRanks(memory, 0, 2)
        assert (ranks.beats(1), ranks.done(1)) == (0, 0)
        with subprocess.Popen(
            [sys.executable, "-c", BEATING, str(memory)],
            pass_fds=[memory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdin is not None and other.stdout is not None
            done = int(other.stdout.readline())
            until(lambda: ranks.beats(1) > 0)
            assert ranks.done(1) == done >= 3 and ranks.done(0) == 0
            other.stdin.close()
    finally:
        os.close(memory)
