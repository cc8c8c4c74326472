"""Packed linear weights: right by exact arithmetic, and the same bits for a row whatever is beside it."""

import itertools
import re

import pytest
import torch
from torch import Tensor

from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import (
    INT4_GROUP,
    NativeLinear,
    pack_blocks,
    pack_dense,
    pack_grouped,
    pack_int4,
    pack_int8,
)
from penstock.quantization.gguf_blocks import dequantize
from penstock.quantization.gguf_types import BLOCK_TYPES
from support.pairing import paired

if OBSTACLE is not None:
    pytest.skip(OBSTACLE, allow_module_level=True)

from penstock.kernels.cpu.native import native

GROUPED = tuple(
    f"int{bits}_{scales}{zeros}"
    for bits in (4, 3, 2)
    for scales in ("float16", "bfloat16")
    for zeros in ("", " zero points")
)
# Where blocks have scales in float16.
SCALES_AT = {"MXFP4": (), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
ORDERED = ("int4_float16 zero points, ordered", "int3_bfloat16, ordered", "int2_float16, ordered")
BLOCKS = {"MXFP4": 32, "Q8_0": 32, "Q4_K": 256, "Q6_K": 256}
FORMATS = ("float32", "bfloat16", "int8", "int4", *GROUPED, *ORDERED, *BLOCKS)
# (outputs, inputs, group): whole panels and lines, and what must be filled up.
SHAPES = ((96, 64, 32), (47, 35, 32), (100, 256, 128), (33, 96, 64), (1, 1, 32), (40, 80, 16))
ROWS = (*range(1, 14), 24, 25, 64, 192)
MOST_ROWS = 193


def random_blocks(kind: str, outputs: int, count: int, generator: torch.Generator) -> Tensor:
    """Blocks of any bytes but for their scales in float16, which are numbers."""
    blocks = torch.randint(0, 256, (outputs, count, BLOCK_TYPES[kind].nbytes), generator=generator, dtype=torch.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = torch.randint(120, 135, (outputs, count), generator=generator, dtype=torch.uint8)
    for place in SCALES_AT[kind]:
        scales = torch.randn(outputs, count, 1, generator=generator).half()
        blocks[..., place : place + 2] = scales.view(torch.uint8)
    return blocks.flatten(1)


def fitting(format: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The shape, its inputs filled up to whole blocks."""
    outputs, inputs, group = shape
    block = group if format in ORDERED else BLOCKS.get(format, 1)
    return outputs, -(-inputs // block) * block, group


def order_of(format: str, inputs: int) -> Tensor:
    """In which order the weight has its inputs."""
    if format not in ORDERED:
        return torch.arange(inputs)
    return torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))


def packed(format: str, shape: tuple[int, int, int]) -> tuple[NativeLinear, Tensor]:
    """A random weight of a format, and what its values are exactly, in float64."""
    outputs, inputs, group = fitting(format, shape)
    generator = torch.Generator().manual_seed(outputs)
    groups = -(-inputs // group)
    if format in ("float32", "bfloat16"):
        weight = torch.randn(outputs, inputs, generator=generator).to(getattr(torch, format))
        return pack_dense(weight), weight.double()
    if format in BLOCKS:
        raw = random_blocks(format, outputs, inputs // BLOCKS[format], generator)
        return pack_blocks(raw, format, inputs), dequantize(raw, format).double()
    if format == "int8":
        integers = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        scales = torch.rand(outputs, generator=generator)
        return pack_int8(integers, scales), integers.double() * scales.double()[:, None]
    nibbles = torch.randint(0, 16, (outputs, inputs), generator=generator, dtype=torch.uint8)
    if format == "int4":
        multiples = torch.randint(0, 32, (outputs, -(-inputs // INT4_GROUP)), generator=generator, dtype=torch.uint8)
        scales = torch.rand(outputs, generator=generator)
        wide = multiples.repeat_interleave(INT4_GROUP, dim=1)[:, :inputs].double()
        exact = (wide % 16) * (nibbles.double() - 8 + wide.div(16, rounding_mode="floor"))
        return pack_int4(nibbles, multiples, scales), exact * scales.double()[:, None]
    bits = int(format[3])
    integers = nibbles % (1 << bits)
    dtype = getattr(torch, re.split("[ ,]", format)[0][len("int4_") :])
    scale = torch.randn(outputs, groups, generator=generator).to(dtype)
    zeros = (
        torch.randint(0, 17, (outputs, groups), generator=generator, dtype=torch.int16) if "zero" in format else None
    )

    order = order_of(format, inputs)

    def spread(values: Tensor) -> Tensor:
        return values.double().repeat_interleave(group, dim=1)[:, order.argsort()]

    exact = spread(scale) * (integers.double() - (1 << (bits - 1) if zeros is None else spread(zeros)))
    ordered = order.to(torch.int32) if format in ORDERED else None
    return pack_grouped(integers, scale, group, zeros, bits, ordered), exact


def rounded(x: Tensor, group: int | None = None) -> Tensor:
    """What the integer kernels make of activations: 8 bits and a scale for each row, or group, in float64."""
    if group is not None:
        return torch.cat([rounded(part) for part in x.split(group, dim=1)], dim=1)
    largest = x.abs().amax(1, keepdim=True)
    # A number over a tensor would be the number times the reciprocal, which rounds twice.
    return (x * (torch.tensor(127.0) / largest)).round().nan_to_num().double() * (largest / 127.0).double()


def multiply(weight: NativeLinear, x: Tensor) -> Tensor:
    output = torch.full((x.shape[0], weight.shape[0]), 7.0)
    weight.handle.multiply(x, output)
    return output


def inputs_for(format: str, inputs: int) -> Tensor:
    x = torch.randn(MOST_ROWS, inputs, generator=torch.Generator().manual_seed(1))
    x[5] = 0.0
    # What a bfloat16 weight meets is rounded; these values are exact.
    return x.bfloat16().float() if format == "bfloat16" else x


@pytest.mark.one_in(6)
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", FORMATS)
def test_products_are_right(format: str, shape: tuple[int, int, int]) -> None:
    weight, exact = packed(format, shape)
    x = inputs_for(format, weight.shape[1])
    group = shape[2] if format in (*GROUPED, *ORDERED) else BLOCKS.get(format)
    order = order_of(format, weight.shape[1])
    met = rounded(x[:, order], group)[:, order.argsort()] if format.startswith(("int", "Q", "MX")) else x.double()
    expected = met @ exact.T
    bound = 1e-5 * expected.abs().max()
    assert (multiply(weight, x) - expected).abs().max() <= bound
    bias = torch.randn(shape[0])
    output = torch.empty(MOST_ROWS, shape[0])
    weight.handle.multiply(x, output, bias)
    assert (output - (expected + bias)).abs().max() <= bound


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format, shape", paired([(format,) for format in FORMATS], SHAPES[:4]))
def test_a_rows_bits_do_not_depend_on_its_neighbours(format: str, shape: tuple[int, int, int]) -> None:
    weight, _ = packed(format, shape)
    x = inputs_for(format, weight.shape[1])
    for threads in (1, 2, 3):
        native.set_threads(threads)
        together = multiply(weight, x)
        for rows in ROWS:
            assert torch.equal(multiply(weight, x[:rows]), together[:rows])
            assert torch.equal(multiply(weight, x[-rows:]), together[-rows:])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("format", FORMATS)
def test_threads_do_not_change_bits(format: str, shape: tuple[int, int, int]) -> None:
    weight, _ = packed(format, shape)
    x = inputs_for(format, weight.shape[1])
    found = []
    for threads in (1, 2, 4):
        native.set_threads(threads)
        found.append(multiply(weight, x))
    assert all(torch.equal(one, other) for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("format", ("int8", "int4", *GROUPED, *ORDERED, *BLOCKS))
def test_integer_sums_agree_between_instruction_sets(format: str) -> None:
    """To the bit where all of a row is added up as integers, elsewhere but for the order of products and scales."""
    weight, _ = packed(format, SHAPES[2])
    x = inputs_for(format, weight.shape[1])
    before = native.instruction_set()
    found = []
    for name in native.instruction_sets():
        native.use_instruction_set(name)
        found.append(multiply(weight, x))
    native.use_instruction_set(before)
    for other in found[1:]:
        if format in ("int8", "int4"):
            assert torch.equal(found[0], other)
        torch.testing.assert_close(found[0], other, rtol=1e-5, atol=float(1e-6 * found[0].abs().max()))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("format", ("int8", "int4", "bfloat16"))
def test_other_libraries_may_change_registers_between_products(format: str) -> None:
    """Torch's products of bfloat16 leave AMX's registers configured as they need them, or not at all."""
    weight, _ = packed(format, SHAPES[2])
    x = inputs_for(format, weight.shape[1])
    before = multiply(weight, x)
    other = torch.randn(64, 96).bfloat16()
    for rows in (1, 7, 64):
        other[:rows] @ other.T
        assert torch.equal(multiply(weight, x), before)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("format", ("int8", "int4", "int4_float16", "int3_float16", "Q4_K"))
def test_a_broken_row_breaks_alone(format: str, broken: float) -> None:
    weight, _ = packed(format, SHAPES[0])
    x = inputs_for(format, weight.shape[1])
    whole = multiply(weight, x)
    x[3, 17] = broken
    found = multiply(weight, x)
    assert found[3].isnan().all()
    others = [row for row in range(MOST_ROWS) if row != 3]
    assert torch.equal(found[others], whole[others])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", FORMATS)
def test_rows_can_be_looked_up(format: str, shape: tuple[int, int, int]) -> None:
    weight, exact = packed(format, shape)
    ids = torch.tensor([0, shape[0] - 1, shape[0] // 2])
    rows = torch.empty(3, weight.shape[1])
    weight.handle.look_up(ids, rows)
    torch.testing.assert_close(rows.double(), exact[ids], rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="no row"):
        weight.handle.look_up(torch.tensor([shape[0]]), rows[:1])


def test_wrong_arguments_are_refused() -> None:
    weight, _ = packed("int8", SHAPES[0])
    with pytest.raises(ValueError, match="rows, inputs"):
        weight.handle.multiply(torch.zeros(2, 63), torch.empty(2, 96))
    with pytest.raises(ValueError, match="rows, outputs"):
        weight.handle.multiply(torch.zeros(2, 64), torch.empty(3, 96))
    with pytest.raises(TypeError):
        weight.handle.multiply(torch.zeros(2, 64, dtype=torch.float64), torch.empty(2, 96))
    with pytest.raises(ValueError, match="format"):
        native.packed_bytes("int3", 4, 4)
    with pytest.raises(ValueError, match="multiple of 16"):
        native.packed_bytes("int4_float16", 4, 4, 24)
    with pytest.raises(ValueError, match="whole groups"):
        native.packed_bytes("int4_float16", 4, 48, 32, ordered=True)
    with pytest.raises(ValueError, match="or an order"):
        native.packed_bytes("int4", 4, 64, ordered=True)


@pytest.mark.parametrize("order", [[0, 1, *range(1, 31)], [*range(1, 33)], [-1, *range(1, 32)], [*range(31)]])
def test_what_is_no_order_is_refused(order: list[int]) -> None:
    integers, scales = torch.zeros(4, 32, dtype=torch.uint8), torch.ones(4, 2, dtype=torch.float16)
    with pytest.raises(ValueError, match="each input once"):
        pack_grouped(integers, scales, 16, order=torch.tensor(order, dtype=torch.int32))


@pytest.mark.usefixtures("instruction_set")
def test_no_order_reads_beyond_a_row() -> None:
    """Packed weights may come from a file that was damaged since."""
    weight, _ = packed(ORDERED[0], SHAPES[0])
    weight.memory[-4 * weight.shape[1] :] = 255
    assert multiply(weight, torch.ones(3, weight.shape[1])).isfinite().all()
    found = torch.full((5, weight.shape[1]), 7.0)
    weight.handle.look_up(torch.tensor([0, 1, 2]), found[1:4])
    # All land on the last place.
    assert (found[[0, 4]] == 7.0).all() and (found[1:4, :-1] == 7.0).all()


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("integers", [0x00, 0xFF])
@pytest.mark.parametrize("kind", BLOCKS)
def test_the_largest_sums_fit(kind: str, integers: int) -> None:
    """All integers, multiples and offsets at an end of what they can be, and all values."""
    outputs, inputs = 40, 512
    blocks = torch.full((outputs, inputs // BLOCKS[kind], BLOCK_TYPES[kind].nbytes), integers, dtype=torch.uint8)
    one = torch.ones(1, dtype=torch.float16).view(torch.uint8)
    if kind == "Q8_0":
        blocks[..., 2:] = 0x80 if integers else 0x7F
    if kind == "MXFP4":
        # The least and the largest number.
        blocks[..., 0], blocks[..., 1:] = 127, 0xFF if integers else 0x77
    for place in SCALES_AT[kind]:
        blocks[..., place : place + 2] = one
    # Multiples of 63 of both kinds; of Q6_K, which are signed, -128 and 127.
    if kind == "Q4_K":
        blocks[..., 4:16] = 0xFF
    elif kind == "Q6_K":
        blocks[..., 192:208] = torch.tensor([0x80, 0x7F] * 8, dtype=torch.uint8)
    raw = blocks.flatten(1)
    x = torch.ones(13, inputs)
    x[1::3], x[2::3, ::2] = -1.0, -1.0
    expected = x.double() @ dequantize(raw, kind).double().T
    found = multiply(pack_blocks(raw, kind, inputs), x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_no_rows_are_no_work() -> None:
    weight, _ = packed("int4", SHAPES[0])
    assert multiply(weight, torch.zeros(0, 64)).shape == (0, 96)
