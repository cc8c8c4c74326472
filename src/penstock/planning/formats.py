"""Number formats of weights and of the cache: what a value takes, and which of a device's rates multiplies it."""

from typing import Literal

import msgspec

from penstock.core.errors import ConfigurationError

# The rates of a device's table. Weights of fewer bits are multiplied in 16, unless the format says otherwise.
Rate = Literal["fp32", "bf16", "fp8", "int8", "fp4"]


class Format(msgspec.Struct, frozen=True):
    """A format of numbers.

    Attributes:
        bits: of one number, with its part of scales and zero points.
        rate: what it is multiplied at, where a device has that rate.
        kind: formats whose kernels reach about the same part of a device are one kind.
    """

    bits: float
    rate: Rate
    kind: str

    @property
    def bytes(self) -> float:
        """Bytes that one number takes, with its part of scales and zero points."""
        return self.bits / 8


# Scales: fp8 has one a channel or a tensor, blocks of 128 x 128 one each; NVFP4 8 bits for 16 numbers, MXFP4 8 for 32;
# groups of 128 have 16 bits, and asymmetric ones a zero of 4. GGUF's blocks are as ggml lays them out.
FORMATS: dict[str, Format] = {
    "float32": Format(32, "fp32", "plain"),
    "bfloat16": Format(16, "bf16", "plain"),
    "float16": Format(16, "bf16", "plain"),
    "fp8": Format(8, "fp8", "fp8"),
    "fp8_block": Format(8.002, "fp8", "fp8 in blocks"),
    "int8": Format(8, "int8", "int8"),
    "int8_weights": Format(8, "bf16", "int8 weights"),
    "int4": Format(4 + 20 / 128, "bf16", "int4 weights"),
    "nvfp4": Format(4.5, "fp4", "fp4"),
    "mxfp4": Format(4.25, "fp4", "fp4"),
    "q8_0": Format(8.5, "bf16", "gguf"),
    "q6_k": Format(6.5625, "bf16", "gguf"),
    "q5_k_m": Format(5.69, "bf16", "gguf"),
    "q4_k_m": Format(4.89, "bf16", "gguf"),
    "q4_0": Format(4.5, "bf16", "gguf"),
}
_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "e4m3": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "w8a8": "int8",
    "fp4": "nvfp4",
    "int4_wo": "int4",
    "awq": "int4",
    "gptq": "int4",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
}


def format_of(name: str, option: str = "--dtype") -> Format:
    """The format of a name, or of one of its usual other names. Raises ConfigurationError."""
    lowered = name.strip().lower().replace("-", "_")
    found = FORMATS.get(_NAMES.get(lowered, lowered))
    if found is None:
        raise ConfigurationError(
            f"{option} {name!r} is not a format that is known here; known are {', '.join(FORMATS)}."
        )
    return found
