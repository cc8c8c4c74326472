"""Tensor types of GGUF files, and how many bytes their blocks have; without torch, for those who read headers only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """One type.

    Attributes:
        code: its number in files.
        elements, nbytes: of a block.
    """

    name: str
    code: int
    elements: int
    nbytes: int


BLOCK_TYPES = {
    kind.name: kind
    for kind in (
        BlockType("F32", 0, 1, 4),
        BlockType("F16", 1, 1, 2),
        BlockType("Q4_0", 2, 32, 18),
        BlockType("Q4_1", 3, 32, 20),
        BlockType("Q5_0", 6, 32, 22),
        BlockType("Q5_1", 7, 32, 24),
        BlockType("Q8_0", 8, 32, 34),
        BlockType("Q2_K", 10, 256, 84),
        BlockType("Q3_K", 11, 256, 110),
        BlockType("Q4_K", 12, 256, 144),
        BlockType("Q5_K", 13, 256, 176),
        BlockType("Q6_K", 14, 256, 210),
        BlockType("IQ4_NL", 20, 32, 18),
        BlockType("IQ4_XS", 23, 256, 136),
        BlockType("BF16", 30, 1, 2),
        BlockType("MXFP4", 39, 32, 17),
    )
}
# Names of those that are not read.
OTHERS = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
}
BY_CODE = {kind.code: kind for kind in BLOCK_TYPES.values()}
