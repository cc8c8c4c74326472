"""In which form a vector is given: how many of its numbers, and as what."""

import math
from array import array
from typing import Literal, get_args

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.core.vectors import VectorModules

OutputType = Literal["float", "int8", "binary", "ubinary"]
# What the numbers of an array are.
_FLOATS, _SIGNED, _UNSIGNED = "f", "b", "B"


class VectorForm(msgspec.Struct, frozen=True):
    """What is given of a vector.

    Attributes:
        size: how many numbers are kept, the first ones.
        shortened: whether that is not all, so that the vector gets length 1 again.
        output_dtype: "float"; "int8", each number times what makes the largest magnitude 127, rounded to the nearest
            integer, so that directions stay and lengths do not; "binary" or "ubinary", a bit for each number, 1 where
            it is positive, eight of them in a byte with the first as the highest, and zeros behind the last. A byte of
            "binary" is that of "ubinary" less 128.
    """

    size: int
    shortened: bool = False
    output_dtype: OutputType = "float"

    def of(self, vector: bytes) -> "array[float] | array[int]":
        """What is given of a vector of float32."""
        values: array[float] = array(_FLOATS, vector)
        if self.shortened:
            values = _of_length_1(values[: self.size])
        match self.output_dtype:
            case "int8":
                return _integers(values)
            case "ubinary":
                return array(_UNSIGNED, _bits(values))
            case "binary":
                return array(_SIGNED, (byte - 128 for byte in _bits(values)))
            case _:
                return values


def form_of(
    modules: VectorModules, size: int, dimensions: int | None = None, output_dtype: OutputType | None = None
) -> VectorForm:
    """The form of vectors of `size` numbers that a request asks for, or else that the checkpoint says.

    Raises InvalidParameter where these vectors have no such form.
    """
    dimensions = modules.dimensions if dimensions is None else dimensions
    kept = size if dimensions is None else dimensions
    if not 1 <= kept <= size:
        raise InvalidParameter("dimensions", f"{kept} is outside 1..{size}, the model's own.")
    output_dtype = output_dtype or "float"
    if output_dtype not in get_args(OutputType):
        raise InvalidParameter("output_dtype", f"must be one of {', '.join(get_args(OutputType))}.")
    if output_dtype == "int8" and kept == size and not modules.normalizes and modules.similarity != "cosine":
        raise InvalidParameter(
            "output_dtype",
            f"int8 keeps directions only, and the lengths of this model's vectors count ({modules.similarity}); "
            "ask for float.",
        )
    return VectorForm(kept, kept < size, output_dtype)


def _of_length_1(values: "array[float]") -> "array[float]":
    """The direction of a vector; one of zeros stays what it is."""
    norm = math.sqrt(math.fsum(value * value for value in values))
    return array(_FLOATS, (value / norm for value in values)) if norm else values


def _integers(values: "array[float]") -> "array[int]":
    largest = max(map(abs, values))
    return array(_SIGNED, (round(127 * (value / largest)) if largest else 0 for value in values))


def _bits(values: "array[float]") -> bytes:
    digits = "".join("1" if value > 0 else "0" for value in values)
    length = -(-len(digits) // 8)
    return int(digits.ljust(8 * length, "0"), 2).to_bytes(length, "big")
