"""Coefficients that hold where nothing of a machine was measured, and how far estimates by them were off.

`benchmarks/planning_public.py --write` makes this file from public measurements of engines on GPUs; how, and which of
these were left out, is in docs/benchmarks/planning.md.
"""

from penstock.planning.efficiency import Efficiency

TYPICAL = Efficiency(
    weights={
        "plain": 0.872,
        "fp8": 0.757,
        "fp8 in blocks": 0.695,
        "fp4": 0.842,
        "int4 weights": 0.699,
        "int8": 0.78,
        "int8 weights": 0.75,
        "gguf": 0.7,
    },
    products={
        "plain": 0.676,
        "fp8": 0.663,
        "fp8 in blocks": 0.402,
        "fp4": 0.369,
        "int4 weights": 0.593,
        "int8": 0.5,
        "int8 weights": 0.6,
        "gguf": 0.4,
    },
    half_rows=178.0,
    cache=0.774,
    attention=0.446,
    link=0.472,
    message_seconds=1.64e-05,
    layer_seconds=2.14e-05,
    expert_seconds=3.54e-05,
    recurrent_seconds=1.29e-05,
    step_seconds=0.000581,
    row_seconds=4.27e-06,
    stall=0.645,
    first_layer_seconds=0.00147,
    burst=0.0867,
)
# Estimates times these are the ends of an interval that held 90% of what was measured, each device left out
# in turn.
TPOT_INTERVAL = (0.67, 1.59)
TTFT_INTERVAL = (0.51, 4.48)
# What was measured.
MEASURED_KINDS = frozenset(["fp4", "fp8", "fp8 in blocks", "int4 weights", "plain"])
MEASURED_DEVICES = frozenset(["B200 SXM", "B300 SXM", "H100 SXM", "H200 SXM"])
