"""Which device the tests of the kernels for GPUs use: the first that can be used, else this process's memory.

`tests/conftest.py` lets Triton interpret its kernels where there is none, so that the same tests run either way. Those
of them that exercise the device have the mark `cuda`; `needs_gpu` is for what no interpreter has.
"""

from collections.abc import Callable

import pytest
import torch

from penstock.configuration.devices import resolve_device
from penstock.runtime.gpus import find_gpus
from support import interpreter

_GPU = resolve_device("auto", find_gpus(), lambda *_note: None)
INTERPRETED = interpreter.INTERPRETED
DEVICE = torch.device("cpu" if _GPU is None else _GPU.device)

needs_gpu: Callable[..., pytest.MarkDecorator] = pytest.mark.skipif(
    DEVICE.type != "cuda", reason="needs a GPU: pinned memory, events and captured graphs are of hardware alone"
)
