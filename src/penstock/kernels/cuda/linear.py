"""x · weightᵀ with weights of few bits, expanded on the way from memory to the multiplication.

A program makes a tile of outputs and goes through the inputs in ascending order, so that what it sums, and in which
order, follows from the weight alone. Sums of the same tile sizes are therefore the same bits in any batch.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.values import product

# The inputs of an int4 row come in runs of this many: the first half of a run are the low nibbles of its bytes.
NIBBLE_RUN = tl.constexpr(64)


@triton.jit
def weights_of(
    data,
    scales,
    zeros,
    row,
    there_row,
    k,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    TYPE: tl.constexpr,
):
    """[N, K] weights at inputs `k`, in TYPE: plain, or of integers less their zero, times the scale of their group."""
    inside = there_row[:, None] & (k < INPUTS)[None, :]
    if KIND == "plain":
        return tl.load(data + row[:, None] * INPUTS + k[None, :], mask=inside, other=0.0)
    else:
        GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
        group = row[:, None] * GROUPS + (k // GROUP)[None, :]
        scale = tl.load(scales + group, mask=inside, other=0.0).to(tl.float32)
        if KIND == "int4":
            HALF: tl.constexpr = NIBBLE_RUN // 2
            at = k // NIBBLE_RUN * HALF + k % HALF
            byte = tl.load(data + row[:, None] * (INPUTS // 2) + at[None, :], mask=inside, other=0).to(tl.int32)
            shift = tl.where(k % NIBBLE_RUN < HALF, 0, 4)
            number = ((byte >> shift[None, :]) & 15).to(tl.float32)
            number -= tl.load(zeros + group, mask=inside, other=0).to(tl.float32)
        else:
            byte = tl.load(data + row[:, None] * INPUTS + k[None, :], mask=inside, other=0)
            number = byte.to(tl.int8, bitcast=True).to(tl.float32)
        return (number * scale).to(TYPE)


# Compiled once for all numbers of rows.
@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x,
    data,
    scales,
    zeros,
    bias,
    y,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TYPE: tl.constexpr,
    WIDE: tl.constexpr,
    OUT: tl.constexpr,
):
    """Programs: (block of outputs, block of rows). x [rows, INPUTS] in TYPE → y [rows, OUTPUTS] in OUT.

    data: [OUTPUTS, INPUTS] in TYPE ("plain"), int8 as uint8, or two integers of 4 bits to a byte;
    scales [OUTPUTS, groups], zeros uint8 of the same shape for "int4".
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    there_row, there_token = row < OUTPUTS, token < rows
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for at in range(0, INPUTS, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        left = tl.load(
            x + token[:, None] * INPUTS + k[None, :], mask=there_token[:, None] & (k < INPUTS)[None, :], other=0.0
        )
        right = weights_of(data, scales, zeros, row, there_row, k, INPUTS, GROUP, KIND, TYPE)
        sums += product(left, tl.trans(right), TYPE, WIDE)
    if BIASED:
        sums += tl.load(bias + row, mask=there_row, other=0.0).to(tl.float32)[None, :]
    inside = there_token[:, None] & there_row[None, :]
    tl.store(y + token[:, None] * OUTPUTS + row[None, :], sums.to(OUT), mask=inside)


@triton.jit
def _loaded_run(data, scales, zeros, row, there_row, first, INPUTS: tl.constexpr, GROUP: tl.constexpr):
    """Of a run that begins at input `first` its bytes [N, half a run], and the scales and zeros [N] of both halves."""
    HALF: tl.constexpr = NIBBLE_RUN // 2
    GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
    inside = there_row & (first < INPUTS)
    place = data + row[:, None] * (INPUTS // 2) + first // 2 + tl.arange(0, HALF)[None, :]
    byte = tl.load(place, mask=inside[:, None], other=0)
    low, high = row * GROUPS + first // GROUP, row * GROUPS + (first + HALF) // GROUP
    low_scale = tl.load(scales + low, mask=inside, other=0.0).to(tl.float32)
    high_scale = tl.load(scales + high, mask=inside, other=0.0).to(tl.float32)
    low_zero = tl.load(zeros + low, mask=inside, other=0)
    high_zero = tl.load(zeros + high, mask=inside, other=0)
    return byte, low_scale, low_zero, high_scale, high_zero


@triton.jit
def _half_run(
    x, integers, scale, zero, token, there_token, first,
    INPUTS: tl.constexpr, TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What the inputs from `first` on add: integers [N, half a run] less their zero, multiplied, and then scaled."""
    k = first + tl.arange(0, NIBBLE_RUN // 2)
    left = tl.load(x + token[:, None] * INPUTS + k[None, :], mask=there_token[:, None] & (first < INPUTS), other=0.0)
    if WIDE or tl.bfloat16 != TYPE:
        number = (integers.to(tl.float32) - zero.to(tl.float32)[:, None]).to(TYPE)
    else:
        # With these bits above them, integers are the last bits of 128 and more in bfloat16: no conversion is faster.
        wide = (integers.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
        number = wide - (zero.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)[:, None]
    return product(left, tl.trans(number), TYPE, WIDE) * scale[None, :]


@triton.jit
def _run(
    x, byte, low_scale, low_zero, high_scale, high_zero, token, there_token, first,
    INPUTS: tl.constexpr, TYPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What both halves of a run add."""
    HALF: tl.constexpr = NIBBLE_RUN // 2
    low = _half_run(x, byte & 15, low_scale, low_zero, token, there_token, first, INPUTS, TYPE, WIDE)
    return low + _half_run(x, byte >> 4, high_scale, high_zero, token, there_token, first + HALF, INPUTS, TYPE, WIDE)


# Compiled once for all numbers of rows.
@triton.jit(do_not_specialize=["rows"])
def int4_linear_kernel(
    x, data, scales, zeros, bias, y, rows,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    TYPE: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Programs: (block of outputs, block of rows, part of the inputs). As `linear_kernel` of "int4".

    Groups have whole half runs. Each byte is read once, and each scale once for half a run: it is applied to what these
    inputs add up to. SPLIT: the parts, of whole fours of runs each, are left in y [parts, rows, OUTPUTS] in float32, to
    be added up.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    there_row, there_token = row < OUTPUTS, token < rows
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    FOUR: tl.constexpr = 4 * NIBBLE_RUN
    begin, end = 0, INPUTS
    if SPLIT > 1:
        LENGTH: tl.constexpr = ((INPUTS + FOUR - 1) // FOUR + SPLIT - 1) // SPLIT * FOUR
        begin = tl.program_id(2) * LENGTH
        end = tl.minimum(begin + LENGTH, INPUTS)
    for at in range(begin, end, FOUR):
        # All are on their way before the first is waited for.
        b0, s0, z0, t0, u0 = _loaded_run(data, scales, zeros, row, there_row, at, INPUTS, GROUP)
        b1, s1, z1, t1, u1 = _loaded_run(data, scales, zeros, row, there_row, at + NIBBLE_RUN, INPUTS, GROUP)
        b2, s2, z2, t2, u2 = _loaded_run(data, scales, zeros, row, there_row, at + 2 * NIBBLE_RUN, INPUTS, GROUP)
        b3, s3, z3, t3, u3 = _loaded_run(data, scales, zeros, row, there_row, at + 3 * NIBBLE_RUN, INPUTS, GROUP)
        sums += _run(x, b0, s0, z0, t0, u0, token, there_token, at, INPUTS, TYPE, WIDE)
        sums += _run(x, b1, s1, z1, t1, u1, token, there_token, at + NIBBLE_RUN, INPUTS, TYPE, WIDE)
        sums += _run(x, b2, s2, z2, t2, u2, token, there_token, at + 2 * NIBBLE_RUN, INPUTS, TYPE, WIDE)
        sums += _run(x, b3, s3, z3, t3, u3, token, there_token, at + 3 * NIBBLE_RUN, INPUTS, TYPE, WIDE)
    if BIASED:
        sums += tl.load(bias + row, mask=there_row, other=0.0).to(tl.float32)[None, :]
    inside = there_token[:, None] & there_row[None, :]
    place = token[:, None] * OUTPUTS + row[None, :]
    if SPLIT > 1:
        place += tl.program_id(2).to(tl.int64) * rows * OUTPUTS
    tl.store(y + place, sums.to(OUT), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def add_parts_kernel(
    parts, bias, y, rows,
    OUTPUTS: tl.constexpr, PARTS: tl.constexpr, BIASED: tl.constexpr, BLOCK: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Programs: (row, block of outputs). The sum of float32 [PARTS, rows, OUTPUTS] in ascending order, in OUT."""
    token = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = row < OUTPUTS
    sums = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        sums += tl.load(parts + (part * rows + token) * OUTPUTS + row, mask=there, other=0.0)
    if BIASED:
        sums += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    tl.store(y + token * OUTPUTS + row, sums.to(OUT), mask=there)


# Compiled once for all outputs.
@triton.jit(do_not_specialize=["first"])
def expand_int4_kernel(
    data, scales, zeros, numbers, first,
    INPUTS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Programs: (output, block of bytes). The numbers of an int4 weight's outputs from `first` on, [some, INPUTS]."""
    own = tl.program_id(0).to(tl.int64)
    row = own + first
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = place < INPUTS // 2
    HALF: tl.constexpr = NIBBLE_RUN // 2
    GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
    byte = tl.load(data + row * (INPUTS // 2) + place, mask=there, other=0)
    for high in tl.static_range(2):
        k = place // HALF * NIBBLE_RUN + place % HALF + high * HALF
        group = row * GROUPS + k // GROUP
        scale = tl.load(scales + group, mask=there, other=0.0).to(tl.float32)
        zero = tl.load(zeros + group, mask=there, other=0).to(tl.float32)
        number = ((byte >> 4 if high else byte & 15).to(tl.float32) - zero) * scale
        tl.store(numbers + own * INPUTS + k, number.to(OUT), mask=there)


@triton.jit
def round_rows_kernel(x, integers, scales, INPUTS: tl.constexpr, PADDED: tl.constexpr):
    """Programs: (row). int8 of a row [INPUTS] whose largest magnitude becomes 127, and what one of them stands for."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < INPUTS
    values = tl.load(x + row * INPUTS + column, mask=there, other=0.0).to(tl.float32)
    # What is not finite makes the scale so too, and with it every output of the row.
    scale = tl.div_rn(tl.max(tl.abs(values), 0), 127.0) + 0.0 * tl.sum(values, 0)
    quotient = tl.div_rn(values, tl.where(scale > 0.0, scale, 1.0) + tl.zeros_like(values))
    number = (tl.where(scale > 0.0, quotient, 0.0) + 12582912.0) - 12582912.0
    tl.store(integers + row * INPUTS + column, number.to(tl.int8), mask=there)
    tl.store(scales + row, scale)


@triton.jit(do_not_specialize=["rows"])
def integer_linear_kernel(
    integers,
    row_scales,
    data,
    scales,
    bias,
    y,
    rows,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EXACT: tl.constexpr,
    OUT: tl.constexpr,
):
    """Programs: (block of outputs, block of rows). int8 [rows, INPUTS] · int8 [OUTPUTS, INPUTS]ᵀ, summed exactly.

    Times both scales, float32 [rows] and [OUTPUTS]. EXACT multiplies in float32, which holds sums of
    1,040 such products, where Triton is interpreted.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    there_row, there_token = row < OUTPUTS, token < rows
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for at in range(0, INPUTS, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K)
        near = (k < INPUTS)[None, :]
        left = tl.load(integers + token[:, None] * INPUTS + k[None, :], mask=there_token[:, None] & near, other=0)
        right = tl.load(data + row[:, None] * INPUTS + k[None, :], mask=there_row[:, None] & near, other=0)
        right = tl.trans(right.to(tl.int8, bitcast=True))
        if EXACT:
            found = tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
            sums += found.to(tl.int32)
        else:
            sums = tl.dot(left, right, sums, out_dtype=tl.int32)
    factor = tl.load(row_scales + token, mask=there_token, other=0.0)[:, None]
    factor = factor * tl.load(scales + row, mask=there_row, other=0.0)[None, :]
    result = sums.to(tl.float32) * factor
    if BIASED:
        result += tl.load(bias + row, mask=there_row, other=0.0).to(tl.float32)[None, :]
    tl.store(
        y + token[:, None] * OUTPUTS + row[None, :], result.to(OUT), mask=there_token[:, None] & there_row[None, :]
    )
