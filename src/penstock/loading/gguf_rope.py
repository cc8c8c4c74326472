"""Rotary positions of GGUF files as config.json says them: factors that are metadata, and divisors that are tensors."""

import math
from collections.abc import Mapping
from typing import Any

from penstock.loading.gguf_values import Values

# Divisors of all frequencies, and those of longer and shorter contexts.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
# Parameters of the RoPE of all published models of Llama 3; a file has their effect only.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_KINDS = ("none", "linear", "yarn")


def rope_scaling(values: Values, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` of config.json, or None. A file has Llama 3's scaling as a divisor for each frequency."""
    kind = values.text("rope.scaling.type", "linear")
    # A factor of 0 stands for none; the second key is the older one.
    factor = values.number("rope.scaling.factor", values.number("rope.scale_linear", 1.0)) or 1.0
    if kind not in _KINDS:
        raise values.unsupported(f"scales rotary positions by {kind}; implemented: {', '.join(_KINDS)}.")
    scaling = yarn(values) if kind == "yarn" else None
    if kind == "linear" and factor != 1:
        scaling = {"rope_type": "linear", "factor": factor}
    divisors = values.numbers(ROPE_FACTORS)
    if divisors is None:
        return scaling
    if scaling:
        raise values.unsupported("scales rotary positions twice, which is not implemented.")
    head_dim, theta, factor = config["head_dim"], config["rope_theta"], max(divisors)
    alike = head_dim == 2 * len(divisors) and 0 < factor < math.inf and 0 < theta < math.inf
    if not alike or not all(map(_near, divisors, llama3_divisors(head_dim, theta, factor, _LOW, _HIGH, _ORIGINAL))):
        raise values.unsupported(
            f"divides the frequencies of rotary positions ({ROPE_FACTORS}) otherwise than Llama 3 does, which is not "
            "implemented; serve the checkpoint that it was made from."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4)


def llama3_divisors(head_dim: int, theta: float, factor: float, low: float, high: float, original: int) -> list[float]:
    """What each frequency is divided by; see `kernels.rope`."""
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        ramp = (original / wavelength - low) / (high - low)
        between = 1 / ((1 - ramp) / factor + ramp) if 0 <= ramp <= 1 else 1.0
        divisors.append(factor if wavelength > original / low else between)
    return divisors


def yarn(values: Values) -> dict[str, Any]:
    """YaRN's settings. Raises UnsupportedModel where the file scales otherwise, or by what llama.cpp alone has."""
    if values.text("rope.scaling.type", "none") != "yarn":
        raise values.refused("rope.scaling.type", "yarn")
    values.only("rope.scaling.yarn_ext_factor", 1.0)
    values.only("rope.scaling.attn_factor", 1.0)
    found = {
        "rope_type": "yarn",
        "factor": values.number("rope.scaling.factor"),
        "original_max_position_embeddings": values.integer("rope.scaling.original_context_length"),
        "beta_fast": values.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": values.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    all_parts = values.number("rope.scaling.yarn_log_multiplier", 0.0)
    if all_parts:
        # Of what a file says, this is the half: the other is 1 in all models.
        found |= {"mscale": 1.0, "mscale_all_dim": all_parts}
    amplitude = values.number("rope.scaling.yarn_attn_factor", None)
    return found if amplitude is None else {**found, "attention_factor": amplitude}


def longrope(values: Values, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """LongRoPE's settings, or None where the file has no divisors for it."""
    long, short = values.numbers(LONG_FACTORS), values.numbers(SHORT_FACTORS)
    if long is None and short is None:
        return None
    if long is None or short is None:
        missing = LONG_FACTORS if long is None else SHORT_FACTORS
        raise values.unsupported(f"has no tensor {missing}, which the other divisors of frequencies need.")
    original = values.integer("rope.scaling.original_context_length")
    found = {
        "rope_type": "longrope",
        "long_factor": list(long),
        "short_factor": list(short),
        "original_max_position_embeddings": original,
    }
    amplitude = values.number("rope.scaling.attn_factor", None)
    longer = config["max_position_embeddings"] / max(1, original)
    usual = math.sqrt(1 + math.log(longer) / math.log(original)) if longer > 1 and original > 1 else 1.0
    # What follows from both contexts is exact where it is not said: a file has it in float32.
    if amplitude is None or math.isclose(amplitude, usual, rel_tol=1e-6):
        return found
    return {**found, "attention_factor": amplitude}
