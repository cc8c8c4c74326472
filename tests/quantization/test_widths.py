"""How many bits each of several matrices gets."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quantization.widths import Sensitivity, allocate

WIDTHS = (2, 3, 4, 8)


@st.composite
def matrices(draw: st.DrawFn) -> dict[str, Sensitivity]:
    """Up to five whose losses fall as error does, by about a quarter for each bit."""
    found = {}
    for number in range(draw(st.integers(1, 5))):
        size, scale = draw(st.integers(1, 50)), draw(st.floats(1e-4, 10))
        noise = {bits: draw(st.floats(0.7, 1.3)) for bits in WIDTHS}
        found[str(number)] = Sensitivity(size, {bits: scale * 4.0**-bits * noise[bits] for bits in WIDTHS})
    return found


def loss(matrices: dict[str, Sensitivity], widths: dict[str, int]) -> float:
    return sum(matrix.loss[widths[name]] for name, matrix in matrices.items())


@given(matrices(), st.floats(2, 8))
def test_it_fits_and_is_no_worse_than_one_width_for_all(matrices: dict[str, Sensitivity], average: float) -> None:
    widths = allocate(matrices, average)
    budget = average * sum(matrix.size for matrix in matrices.values())
    cost = sum(matrix.size * widths[name] for name, matrix in matrices.items())
    assert widths.keys() == matrices.keys() and cost <= budget * (1 + 1e-12)
    for bits in WIDTHS:
        if bits <= average:
            assert loss(matrices, widths) <= loss(matrices, dict.fromkeys(matrices, bits))
    # What is left is not enough for any step that would gain something.
    for name, matrix in matrices.items():
        for bits in WIDTHS:
            step = matrix.size * (bits - widths[name])
            assert not (0 < step <= budget - cost - 1e-9 and matrix.loss[bits] < matrix.loss[widths[name]])


def test_it_is_the_best_where_sizes_are_equal_and_losses_are_convex() -> None:
    matrices = {
        str(number): Sensitivity(10, {bits: scale * 4.0**-bits for bits in WIDTHS})
        for number, scale in enumerate((0.01, 1, 3, 50))
    }
    for average in (2.5, 3, 3.5, 4, 5):
        fits = [
            dict(zip(matrices, widths, strict=True))
            for widths in itertools.product(WIDTHS, repeat=4)
            if sum(widths) <= average * 4
        ]
        # A step to 8 bits is as large as four others, so that it may leave less of the room unused.
        assert loss(matrices, allocate(matrices, average)) <= 1.5 * min(loss(matrices, widths) for widths in fits)


def test_fewer_bits_than_there_are_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"1\.5 bits"):
        allocate({"a": Sensitivity(1, {2: 1.0, 3: 0.5})}, 1.5)
