"""Calls are timed one by one, after one that warms up, by whichever clock the device has."""

import itertools
from functools import partial

import pytest
import torch

from penstock.runtime.gpu_clock import seconds_of
from support.device import DEVICE, needs_gpu

pytestmark = pytest.mark.cuda


def test_each_call_has_its_time() -> None:
    calls, matrix = itertools.count(), torch.ones((64, 64), device=DEVICE)

    def call() -> None:
        next(calls)
        torch.mm(matrix, matrix)

    times = seconds_of(call, 5, DEVICE)
    assert len(times) == 5 and all(seconds > 0 for seconds in times)
    assert next(calls) == 6, "one call to warm up and five that count"


@needs_gpu
def test_it_is_the_devices_time_and_not_what_it_takes_to_launch() -> None:
    with torch.cuda.device(DEVICE):
        short, long = (min(seconds_of(partial(torch.cuda._sleep, cycles), 3, DEVICE)) for cycles in (10**6, 10**8))
    assert long > 20 * short
