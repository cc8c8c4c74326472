"""Coefficients that hold where nothing of a machine was measured, and how far estimates by them were off.

`benchmarks/planning_public.py --write` makes this file from public measurements of engines on GPUs; how, and which of
these were left out, is in docs/benchmarks/planning.md.
"""

from penstock.planning.efficiency import Efficiency

TYPICAL = Efficiency(
    weights={
        "plain": 0.873,
        "fp8": 0.767,
        "fp8 in blocks": 0.696,
        "fp4": 0.846,
        "int4 weights": 0.694,
        "int8": 0.78,
        "int8 weights": 0.75,
        "gguf": 0.7,
    },
    products={
        "plain": 0.684,
        "fp8": 0.645,
        "fp8 in blocks": 0.396,
        "fp4": 0.363,
        "int4 weights": 0.6,
        "int8": 0.5,
        "int8 weights": 0.6,
        "gguf": 0.4,
    },
    half_part=0.621,
    cache=0.772,
    attention=0.444,
    link=0.455,
    message_seconds=1.54e-05,
    layer_seconds=2.16e-05,
    expert_seconds=3.9e-05,
    recurrent_seconds=1.22e-05,
    step_seconds=0.000617,
    row_seconds=4.23e-06,
    chunk_seconds=4.23e-06,
    stall=0.655,
    first_layer_seconds=0.0015,
    burst=0.0884,
)
# Estimates times these are the ends of an interval that held 90% of what was measured, each device left out
# in turn.
TPOT_INTERVAL = (0.67, 1.58)
TTFT_INTERVAL = (0.49, 4.45)
# Devices and formats that were measured.
MEASURED = frozenset(
    [
        ("B200 SXM", "fp4"),
        ("B200 SXM", "fp8"),
        ("B200 SXM", "fp8 in blocks"),
        ("B200 SXM", "int4 weights"),
        ("B200 SXM", "plain"),
        ("B300 SXM", "fp4"),
        ("B300 SXM", "fp8"),
        ("B300 SXM", "fp8 in blocks"),
        ("B300 SXM", "plain"),
        ("H100 SXM", "fp4"),
        ("H100 SXM", "fp8"),
        ("H100 SXM", "fp8 in blocks"),
        ("H100 SXM", "plain"),
        ("H200 SXM", "fp4"),
        ("H200 SXM", "fp8"),
        ("H200 SXM", "fp8 in blocks"),
        ("H200 SXM", "int4 weights"),
    ]
)
