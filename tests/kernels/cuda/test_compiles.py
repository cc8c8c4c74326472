"""Triton's compiler makes machine code of every kernel, for GPUs that need not be here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

TESTS = Path(__file__).parents[2]
# Kept from run to run: the compiler finds there what it made of the same source, by the same version, for the same GPU.
MADE = TESTS.parent / "build" / "triton"
KERNELS = {
    "attend_kernel",
    "merge_kernel",
    "weigh_kernel",
    "rotate_and_store_kernel",
    "norm_kernel",
    "layer_norm_kernel",
    "head_norm_kernel",
    "gated_kernel",
    "linear_kernel",
    "grouped_linear_kernel",
    "add_experts_kernel",
    "route_kernel",
    "sort_experts_kernel",
    "int4_linear_kernel",
    "add_parts_kernel",
    "expand_int4_kernel",
    "round_rows_kernel",
    "integer_linear_kernel",
    "carry_kernel",
    "scan_kernel",
    "narrow_kernel",
    "choose_kernel",
}
# Where the GPU has instructions for it.
FP8_KERNELS = {"round_fp8_kernel", "fp8_linear_kernel"}
# What a program may have on every GPU that the kernels are for: 8.6 and 8.9 have the least.
SHARED_BYTES = 99 << 10


def compiled(capability: int, how_many: str) -> list[dict[str, object]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "support.compiling", str(capability), how_many],
        cwd=TESTS,
        env=environment | {"TRITON_CACHE_DIR": str(MADE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "capability, how_many",
    [
        (90, "some"),
        *(pytest.param(capability, "all", marks=pytest.mark.slow) for capability in (80, 86, 89, 90, 100, 120)),
    ],
)
def test_machine_code_is_made(capability: int, how_many: str) -> None:
    found = compiled(capability, how_many)
    assert {line["kernel"] for line in found} == (KERNELS | FP8_KERNELS if capability >= 89 else KERNELS)
    for line in found:
        assert "error" not in line, line
        assert isinstance(line["bytes"], int) and line["bytes"] > 0
        assert isinstance(line["shared"], int) and line["shared"] <= SHARED_BYTES
    if how_many == "some":
        # All in bfloat16, whose products are the tensor cores': nothing is left that could be rounded once in one
        # kernel and twice in another, where sums have to be the same.
        unfused = [line for line in found if not line["fuses"]]
        assert {line["kernel"] for line in unfused} == {"attend_kernel", "merge_kernel", "integer_linear_kernel"}
        assert [line["fused"] for line in unfused] == [0] * len(unfused)
