"""Metadata of a GGUF file's architecture, taken by name and type, and the small tensors that belong to them."""

import reprlib
from array import array
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.gguf import GgufFile, Texts

_ABSENT = object()
_MOST_NUMBERS = 4096


class Values:
    """Metadata of an architecture, taken by name and type."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def integer(self, name: str, default: Any = _ABSENT) -> Any:
        """A whole number; one for each layer only where all are the same."""
        value = self._take(name, default)
        if isinstance(value, array) and len(set(value)) == 1:
            value = value[0]
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.refused(name, "a whole number")
        return value

    def of_layers(self, name: str, layers: int) -> list[int]:
        """A whole number for each layer; a single one is that of all."""
        value = self._take(name, _ABSENT)
        if isinstance(value, int) and not isinstance(value, bool):
            return [value] * layers
        if not isinstance(value, array) or len(value) < layers or value.typecode in "fd":
            raise self.refused(name, f"a whole number, or one for each of {layers} layers")
        return list(value[:layers])

    def number(self, name: str, default: Any = _ABSENT) -> Any:
        """A number, whole or not."""
        value = self._take(name, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise self.refused(name, "a number")
        return value

    def text(self, name: str, default: Any = _ABSENT) -> Any:
        """A text, such as a name."""
        value = self._take(name, default)
        if value is not default and not isinstance(value, str):
            raise self.refused(name, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false, by its name."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false")
        return value

    def kinds_of_layers(self, layers: int, every: int) -> list[str]:
        """`layer_types` of config.json: one layer in `every` sees the whole context where the file does not say it."""
        name = "attention.sliding_window_pattern"
        value = self._take(name, every)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            value = [(index + 1) % value != 0 for index in range(layers)]
        if not isinstance(value, Sequence) or len(value) < layers or not set(value) <= {0, 1}:
            raise self.refused(name, f"a whole number, or one of 0 and 1 for each of {layers} layers")
        return ["sliding_attention" if slides else "full_attention" for slides in value[:layers]]

    def pattern(self, default: int) -> "int | list[bool]":
        """Of this number of layers one sees everything; or for each layer, whether it does not."""
        name = "attention.sliding_window_pattern"
        value = self._take(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if not isinstance(value, Sequence) or not set(value) <= {0, 1}:
            raise self.refused(name, "a whole number above 0, or one of 0 and 1 for each layer")
        return [bool(each) for each in value]

    def rows(self, tensor: str) -> int:
        """Rows of a matrix by its whole name. Raises ModelFileError where there is none."""
        entry = self._file.tensors.get(tensor)
        if entry is None or len(entry.shape) != 2:
            raise ModelFileError(f"{self._file.path.name} has no matrix {tensor}, which its architecture needs.")
        return entry.shape[0]

    def only(self, name: str, *accepted: float) -> None:
        """Raise UnsupportedModel for another number than these; where there is none, it is the first."""
        if self.number(name, accepted[0]) not in accepted:
            raise self.refused(name, " or ".join(f"{each:g}" for each in accepted))

    def lacks(self, name: str) -> None:
        """Raise UnsupportedModel where the file has this value, whatever it is."""
        if self._take(name, None) is not None:
            raise self.refused(name, "none")

    def has_tensor(self, name: str, layer: int = 0) -> bool:
        """Whether a layer has a tensor, by the name within its block."""
        return f"blk.{layer}.{name}" in self._file.tensors

    def numbers(self, tensor: str) -> "array[float] | None":
        """The numbers of a small tensor by its whole name; None where the file has none of it."""
        entry = self._file.tensors.get(tensor)
        if entry is None:
            return None
        if entry.dtype != "float32" or entry.nbytes > _MOST_NUMBERS * 4:
            raise UnsupportedModel(
                f"Tensor {entry.name} is {entry.dtype} {list(entry.shape)}; implemented: a float32 row."
            )
        numbers = array("f")
        with entry.file.open("rb") as stream:
            stream.seek(entry.offset)
            numbers.frombytes(stream.read(entry.nbytes))
        return numbers

    def refused(self, name: str, expected: str) -> UnsupportedModel:
        """The error for a value that is not implemented."""
        value = self._file.metadata.get(f"{self._architecture}.{name}")
        shown = f"an array of {len(value)}" if isinstance(value, (array, Texts)) else reprlib.repr(value)
        return self.unsupported(f"has {self._architecture}.{name} = {shown}; implemented: {expected}.")

    def unsupported(self, trouble: str) -> UnsupportedModel:
        """The error for what the file is or has, in words that follow its name."""
        return UnsupportedModel(f"{self._file.path.name} {trouble}")

    def _take(self, name: str, default: Any) -> Any:
        value = self._file.metadata.get(f"{self._architecture}.{name}", default)
        if value is _ABSENT:
            raise ModelFileError(
                f"{self._file.path.name} has no {self._architecture}.{name}, which its architecture needs."
            )
        return value
