"""What forms of packed matrices there are, and how large they are; without torch, for those who read headers only."""

from dataclasses import dataclass
from typing import Literal

from penstock.kernels.cpu.native import native

GroupedFormat = Literal[
    "int4_float16", "int4_bfloat16", "int3_float16", "int3_bfloat16", "int2_float16", "int2_bfloat16"
]
NativeFormat = Literal["float32", "bfloat16", "int8", "int4", GroupedFormat, "mxfp4", "q8_0", "q4_k", "q6_k"]
# Those whose groups have scales of their own, by how many bits they have and what scales are.
GROUPED_FORMATS: dict[tuple[int, str], GroupedFormat] = {
    (4, "float16"): "int4_float16",
    (4, "bfloat16"): "int4_bfloat16",
    (3, "float16"): "int3_float16",
    (3, "bfloat16"): "int3_bfloat16",
    (2, "float16"): "int2_float16",
    (2, "bfloat16"): "int2_bfloat16",
}
# Outputs that stand together in a packed matrix.
PANEL = 32
# Those that are blocks of GGUF files.
BLOCK_FORMATS: dict[str, NativeFormat] = {
    "MXFP4": "mxfp4",
    "Q8_0": "q8_0",
    "Q4_K": "q4_k",
    "Q6_K": "q6_k",
}


@dataclass(frozen=True, slots=True)
class NativeForm:
    """How a matrix is packed.

    Attributes:
        format: of its numbers.
        group: where inputs in groups share a scale, how many do.
        zero_points: whether each group has a zero point of its own.
        ordered: whether inputs of a group stand elsewhere in the model, and an order says where.
    """

    format: NativeFormat
    group: int = 0
    zero_points: bool = False
    ordered: bool = False

    def __str__(self) -> str:
        groups = f" in groups of {self.group}" if self.group else ""
        zeros = " with zero points" if self.zero_points else ""
        return f"{self.format}{groups}{zeros}{' and an order' if self.ordered else ''}"

    def nbytes(self, outputs: int, inputs: int) -> int:
        """Bytes of a packed matrix of this size."""
        return native.packed_bytes(self.format, outputs, inputs, self.group, self.zero_points, self.ordered)

    def pieces(self, outputs: int) -> "tuple[tuple[NativeForm, int], ...]":
        """The forms that a matrix of `outputs` outputs is made of, as `StackedForm.parts`."""
        return ((self, outputs),)


@dataclass(frozen=True, slots=True)
class StackedForm:
    """Matrices of different forms, one below the other, as a projection to queries, keys and values may be.

    Attributes:
        parts: each form, and how many outputs have it.
    """

    parts: tuple[tuple[NativeForm, int], ...]

    def __str__(self) -> str:
        return ", ".join(f"{outputs} of {form}" for form, outputs in self.parts)

    def nbytes(self, _outputs: int, inputs: int) -> int:
        """Bytes of all packed parts, whose outputs the form knows."""
        return sum(form.nbytes(outputs, inputs) for form, outputs in self.parts)

    def pieces(self, _outputs: int) -> tuple[tuple[NativeForm, int], ...]:
        """What it is made of."""
        return self.parts


Form = NativeForm | StackedForm
