"""Coefficients that hold where nothing of a machine was measured, and how far estimates by them were off.

`benchmarks/planning_public.py --write` makes this file from public measurements of engines on GPUs; how, and which of
these were left out, is in docs/benchmarks/planning.md.
"""

from penstock.planning.efficiency import Efficiency

TYPICAL = Efficiency(
    weights={
        "plain": 0.842,
        "fp8": 0.694,
        "fp8 in blocks": 0.686,
        "fp4": 0.797,
        "int4 weights": 0.649,
        "int8": 0.78,
        "int8 weights": 0.75,
        "gguf": 0.7,
    },
    products={
        "plain": 0.725,
        "fp8": 0.604,
        "fp8 in blocks": 0.426,
        "fp4": 0.346,
        "int4 weights": 0.593,
        "int8": 0.5,
        "int8 weights": 0.6,
        "gguf": 0.4,
    },
    half_part=0.657,
    overlap=32.0,
    cache=0.724,
    attention=0.434,
    link=0.447,
    message_seconds=7.11e-06,
    layer_seconds=1.94e-05,
    expert_seconds=4.34e-05,
    recurrent_seconds=1.34e-05,
    step_seconds=0.000334,
    row_seconds=6.46e-06,
    chunk_seconds=4.99e-06,
    stall=0.775,
    first_layer_seconds=0.00123,
    burst=0.0992,
)
# Estimates times these are the ends of an interval that held 90% of what was measured, each device left out
# in turn.
TPOT_INTERVAL = (0.66, 1.43)
TTFT_INTERVAL = (0.51, 4.12)
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
