"""Forms of vectors: integers keep directions, bits keep signs, and what a model's vectors are compared by counts."""

import math
import random
from array import array

import numpy as np
import pytest

from penstock.core.errors import InvalidParameter
from penstock.core.vector_form import OutputType, VectorForm, form_of
from penstock.core.vectors import Dense, Normalize, VectorModules


def vector(size: int) -> list[float]:
    luck = random.Random(size)
    return array("f", [luck.gauss(0, 1) for _ in range(size)]).tolist()


def given(values: list[float], output_dtype: OutputType, size: int | None = None) -> list[float]:
    size = size or len(values)
    form = VectorForm(size, size < len(values), output_dtype)
    return list(form.of(array("f", values).tobytes()))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 384])
def test_bits_are_those_of_numpy(size: int) -> None:
    values = vector(size)
    bits = np.packbits(np.array(values) > 0)
    assert given(values, "ubinary") == bits.tolist()
    assert given(values, "binary") == (bits.astype(int) - 128).tolist()


@pytest.mark.parametrize("size", [1, 8, 384])
def test_integers_are_nearly_the_direction(size: int) -> None:
    values = np.array(vector(size))
    integers = np.array(given(values.tolist(), "int8"))
    assert np.abs(integers).max() == 127
    np.testing.assert_allclose(integers / 127, values / np.abs(values).max(), atol=0.5 / 127 + 1e-9)
    assert integers.tolist() == given((1e-3 * values).tolist(), "int8")


def test_zeros_stay() -> None:
    assert given([0.0, 0.0, 1.0], "float", 2) == [0.0, 0.0] == given([0.0, 0.0], "int8")
    assert given([0.0, -1.0], "ubinary") == [0]


def test_what_is_cut_is_rounded_behind_that() -> None:
    assert given([3.0, 4.0, 100.0], "int8", 2) == [95, 127]
    assert math.hypot(*given([3.0, 4.0, 100.0], "float", 2)) == pytest.approx(1.0)


def test_int8_is_refused_where_lengths_count() -> None:
    for modules in (
        VectorModules(similarity="dot"),
        VectorModules(steps=(), similarity="cosine"),
        VectorModules(steps=(Normalize(), Dense("2_Dense", 4, 4))),
    ):
        assert form_of(modules, 4, None, "int8") == VectorForm(4, output_dtype="int8")
    counts = VectorModules(steps=(), similarity="dot")
    with pytest.raises(InvalidParameter, match="int8 keeps directions only"):
        form_of(counts, 4, None, "int8")
    assert form_of(counts, 4, 2, "int8") == VectorForm(2, True, "int8")
    assert form_of(counts, 4, None, "binary") == VectorForm(4, output_dtype="binary")


def test_what_a_request_asks_for_comes_before_what_the_checkpoint_says() -> None:
    modules = VectorModules(dimensions=3)
    assert form_of(modules, 4) == VectorForm(3, True)
    assert form_of(modules, 4, 4) == VectorForm(4)
    for wrong in (0, 5):
        with pytest.raises(InvalidParameter, match="outside 1..4"):
            form_of(modules, 4, wrong)
    with pytest.raises(InvalidParameter, match="float, int8, binary, ubinary"):
        form_of(modules, 4, None, "uint8")  # type: ignore[arg-type]
