"""What a machine reaches at most: the bytes that it reads and the sums that it computes in a second."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

# Which arithmetic products of weights in a format are done in.
_INTEGERS = (
    "int8",
    "int4",
    "int4_float16",
    "int4_bfloat16",
    "int3_float16",
    "int3_bfloat16",
    "int2_float16",
    "int2_bfloat16",
    "mxfp4",
    "q8_0",
    "q4_k",
    "q6_k",
    "own",
)
ARITHMETIC_OF: Mapping[str, str] = MappingProxyType(
    {**dict.fromkeys(_INTEGERS, "int8"), "bfloat16": "bfloat16", "float32": "float32"}
)
TYPES = ("int8", "bfloat16", "float32")


class Ceilings(msgspec.Struct, frozen=True):
    """What the machine did with nothing else to do.

    Attributes:
        read: GB/s of memory reads on all threads.
        arithmetic: GOP/s (a product and a sum are two) by type; 0 where there is no loop to measure it with.
    """

    read: float
    arithmetic: dict[str, float]

    def peak(self, format: str) -> float:
        """GOP/s of products with weights of a format; types without arithmetic of their own are computed in float32."""
        return self.arithmetic.get(ARITHMETIC_OF.get(format, format)) or self.arithmetic.get("float32", 0.0)

    def of_memory(self, size: int, seconds: float) -> float:
        """`size` bytes as a share of the reads that are possible in `seconds`; above 1, some came from caches."""
        return size / (self.read * 1e9 * seconds) if self.read and seconds else 0.0
