"""Torch is imported without what only its compilers need, and computes all the same."""

import subprocess
import sys
import textwrap

from penstock.runtime.torch_import import leave_out_meta_kernels
from support.waiting import PATIENCE

PROGRAM = """
    import sys
    from penstock.runtime.torch_import import leave_out_meta_kernels

    leave_out_meta_kernels()
    import torch
    from penstock.assembly.build import build_engine

    left = {"torch._decomp.decompositions", "torch._refs"} & sys.modules.keys()
    ones = torch.ones(2, 3, dtype=torch.bfloat16)
    print(left or "none", (ones @ ones.T).tolist(), torch.empty((2, 3), device="meta").stride())
"""


def test_a_process_computes_without_them() -> None:
    """Where this fails with a newer torch, that needs them, and the call has to go."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == "" and done.stdout == "none [[3.0, 3.0], [3.0, 3.0]] (3, 1)\n"


def test_where_torch_is_there_already_nothing_is_left_out() -> None:
    """As in a program that uses the package beside something else of torch."""
    import torch

    leave_out_meta_kernels()
    assert sys.modules["torch._meta_registrations"].__file__ is not None
    assert torch._meta_registrations.__file__ is not None
