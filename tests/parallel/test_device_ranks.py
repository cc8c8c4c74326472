"""Ranks on devices meet, here by gloo: sums, columns beside each other, and the first one's tokens."""

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from penstock.parallel.device_ranks import create_meeting
from support.waiting import PATIENCE

# A rank: what it has is told, and what it finds.
PROGRAM = """
import json, sys
import torch
from penstock.parallel.device_ranks import DeviceRanks
descriptor, rank, size = map(int, sys.argv[1:4])
asked = json.loads(sys.argv[4])
ranks = DeviceRanks(descriptor, rank, size, torch.device("cpu"), deterministic=asked["deterministic"])
meetings = []
ranks.at_meeting(lambda: meetings.append(rank))
ranks.join()
dtype = getattr(torch, asked["dtype"])
own = torch.tensor(asked["values"][rank], dtype=dtype)
kept = own.clone()
widths = [len(each[0]) for each in asked["values"]]
found = {"gathered": {}}
for everywhere in (True, False):
    whole = ranks.gather(own, widths, everywhere=everywhere)
    assert whole.shape == (len(own), sum(widths)) and whole.dtype is dtype
    if everywhere or rank == 0:
        found["gathered"][str(everywhere)] = whole.tolist()
if len(set(widths)) == 1:
    found["sum"] = ranks.sum(own).tolist()
assert torch.equal(own, kept), "what was given has changed"
ids = torch.tensor([7, 8, 9] if rank == 0 else [-1, 8, -2], dtype=torch.int32)
ranks.share(ids)
found["shared"] = ids.tolist()
found["meetings"] = len(meetings)
print(json.dumps(found))
"""


def _met(
    values: list[list[list[float]]], dtype: str = "float32", *, deterministic: bool = False
) -> list[dict[str, Any]]:
    """What each rank finds where each has its own values."""
    asked = json.dumps({"values": values, "dtype": dtype, "deterministic": deterministic})
    meeting, size = create_meeting(), len(values)
    try:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(meeting), str(rank), str(size), asked],
                pass_fds=[meeting],
                stdout=subprocess.PIPE,
            )
            for rank in range(size)
        ]
        return [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in started]
    finally:
        os.close(meeting)


# Sums of these depend on their order.
VALUES = [[[1e8, 1.0, -3.0]], [[1.0, 1e-8, 5.0]], [[-1e8, -1.0, 0.5]]]


@functools.cache
def _in_order() -> list[dict[str, Any]]:
    return _met(VALUES, deterministic=True)


def test_a_deterministic_sum_is_in_the_order_of_ranks_everywhere() -> None:
    first, second, third = (torch.tensor(each) for each in VALUES)
    for found in _in_order():
        assert found["sum"] == (first + second + third).tolist()


def test_columns_stand_beside_each_other_in_all_or_in_the_first() -> None:
    whole = [sum((each[0] for each in VALUES), [])]
    whole = torch.tensor(whole).tolist()
    first, *others = (found["gathered"] for found in _in_order())
    assert first == {"True": whole, "False": whole}
    assert others == [{"True": whole}] * 2


def test_all_get_the_tokens_that_the_first_knows() -> None:
    assert [found["shared"] for found in _in_order()] == [[7, 8, 9]] * 3
    # Two gathers and a sum.
    assert [found["meetings"] for found in _in_order()] == [3] * 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_widths_may_differ_and_sums_are_of_one_type(dtype: str) -> None:
    found = _met([[[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]]], dtype)
    assert found[0]["gathered"]["False"] == [[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]
    alike = _met([[[1.0, 2.0]], [[0.5, 8.0]]], dtype)
    assert [each["sum"] for each in alike] == [[[1.5, 10.0]]] * 2
