"""Ranks on devices meet, here by gloo: sums, columns beside each other, and the first one's tokens."""

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from penstock.parallel.places import create_meeting
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
    started: list[subprocess.Popen[bytes]] = []
    try:
        started += [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(meeting), str(rank), str(size), asked],
                pass_fds=[meeting],
                stdout=subprocess.PIPE,
            )
            for rank in range(size)
        ]
        found = [each.communicate(timeout=PATIENCE)[0] for each in started]
        assert [each.returncode for each in started] == [0] * size
        return [json.loads(each) for each in found]
    finally:
        for each in started:
            each.kill()
            each.wait()
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
    # Two gathers, a sum, and these tokens.
    assert [found["meetings"] for found in _in_order()] == [4] * 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_widths_may_differ_and_sums_are_of_one_type(dtype: str) -> None:
    found = _met([[[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]]], dtype)
    assert found[0]["gathered"]["False"] == [[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]
    alike = _met([[[1.0, 2.0]], [[0.5, 8.0]]], dtype)
    assert [each["sum"] for each in alike] == [[[1.5, 10.0]]] * 2


WAITING = """
import sys
import torch
from penstock.core.errors import EngineError
from penstock.parallel.device_ranks import DeviceRanks
descriptor, rank = map(int, sys.argv[1:3])
ranks = DeviceRanks(descriptor, rank, 2, torch.device("cpu"))
ranks.join()
print("joined", flush=True)
if rank == 1:
    sys.stdin.read()
for _ in range(2):
    try:
        ranks.sum(torch.ones(1, 8))
    except EngineError as error:
        print("parted:", error, flush=True)
    except RuntimeError:
        print("the other has ended", flush=True)
    ranks.part()
"""


def test_none_waits_for_a_rank_that_has_ended() -> None:
    meeting = create_meeting()
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(2):
            command = [sys.executable, "-c", WAITING, str(meeting), str(rank)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            started.append(subprocess.Popen(command, pass_fds=[meeting], text=True, **pipes))
        for each in started:
            assert each.stdout is not None and each.stdout.readline() == "joined\n"
        started[1].kill()
        said, _ = started[0].communicate(timeout=PATIENCE)
        ended, parted = said.splitlines()
        assert ended == "the other has ended" and "without which nothing can be computed" in parted
        assert started[0].returncode == 0
    finally:
        for each in started:
            each.kill()
            each.communicate()
        os.close(meeting)
