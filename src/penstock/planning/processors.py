"""Coefficients of a processor that was not measured; a calibration begins with them."""

import msgspec

from penstock.planning.priors import TYPICAL

# What is between devices, and on the way to clients, is not known.
PROCESSOR = msgspec.structs.replace(
    TYPICAL,
    weights=dict.fromkeys(TYPICAL.weights, 1.0),
    products=dict.fromkeys(TYPICAL.products, 0.9),
    half_part=0.05,
    overlap=2.0,
    cache=0.5,
    attention=0.3,
    layer_seconds=5e-6,
    step_seconds=3e-4,
    row_seconds=1e-5,
    chunk_seconds=2e-4,
    stall=1.0,
    first_layer_seconds=1e-5,
)
