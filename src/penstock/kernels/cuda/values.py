"""What the kernels share: products of tiles, and numbers as bytes and back."""

import triton
import triton.language as tl


@triton.jit
def product(left, right, TYPE: tl.constexpr, WIDE: tl.constexpr):
    """left [M, K] · right [K, N] in TYPE, summed in float32.

    WIDE multiplies in float32 what TYPE holds, without rounding to fewer bits (no TF32): for float32, and where Triton
    is interpreted, which knows no arithmetic of bfloat16.
    """
    if WIDE:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(left.to(TYPE), right.to(TYPE))


@triton.jit
def fp8_values(byte):
    """float32 of E4M3 bytes, without the processor's conversions, which not every GPU has.

    The exponent's bias grows from 7 to 127 by a product, which is exact for subnormal numbers too.
    """
    bits = byte.to(tl.int32)
    wide = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
    return wide.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120


@triton.jit
def fp8_bytes(x):
    """E4M3 of float32 within ±448, to the nearest, ties to even, by integers: not every GPU has the conversion."""
    bits = x.to(tl.int32, bitcast=True)
    sign, magnitude = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    normal = (magnitude - 0x3C000000 + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    # Subnormal: adding 2^14 leaves the value's multiple of 2^-9 in the last bits.
    shifted = magnitude.to(tl.float32, bitcast=True) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    return (sign | tl.where(magnitude < 0x3C800000, subnormal, normal)).to(tl.uint8)


@triton.jit
def kept_values(
    plane, scales, offset, entry, inside, there, GUARDED: tl.constexpr, KEPT: tl.constexpr, TYPE: tl.constexpr
):
    """What attention reads of the cache, in TYPE: 0 where not `inside`; bytes (uint8) times their entry's scale.

    Not GUARDED, all are inside.
    """
    if KEPT == "plain":
        if GUARDED:
            return tl.load(plane + offset, mask=inside, other=0.0)
        else:
            return tl.load(plane + offset)
    else:
        byte = tl.load(plane + offset, mask=inside, other=0)
        scale = tl.load(scales + entry, mask=there, other=0.0)
        if KEPT == "int8":
            number = byte.to(tl.int8, bitcast=True).to(tl.float32)
        else:
            number = fp8_values(byte)
        return (number * scale[:, None]).to(TYPE)
