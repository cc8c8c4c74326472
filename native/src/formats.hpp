// Linear weights as the kernels read them: panels of 32 outputs, each one sequential stream.
//
//   float32   a line pair [2][16] for each input
//   bfloat16  a line pair [2][16][2] for each two inputs
//   int8      a line pair [2][16][4] of w + 128 for each four inputs; then 32 float32 scales, one for each output
//   int4      pairs of groups of 32 inputs; in each a line of multiples [16][4], those of the first group's outputs 0-15
//             and 16-31 and then of the second's, then one line [16][4] for each four inputs, outputs 0-15 in the low
//             nibbles of its bytes and 16-31 in the high ones, of q in 0..15; behind all pairs 32 float32 scales, one for
//             each output. A multiple's low nibble is m in 0..15, the bit above it moves the zero from 8 to 7: a weight is
//             scale · m · (q − 8) or scale · m · (q − 7). So all weights of an output are its scale times an integer
//             in -120..120, and whole rows of products are added up as integers, as for int8.
//   int4_float16, int4_bfloat16  groups of inputs, with scales of this type, as other programs' checkpoints have them; in
//             each one line for each four inputs, of nibbles as above; then 32 scales, then, with zero points, 32 int16
//             zeros. A weight is scale · (q − 8), with zero points scale · (q − zero). Activations have a scale for each
//             group, too. Where they are ordered, int32 [inputs] behind all panels say which input stands where: those that
//             share a scale need not be neighbours in the model (GPTQ with act-order), but are here.
//   int2_…, int3_…  the same of q in 0..3 and 0..7, around 2 and 4. Of two bits a line [16][4] for each eight inputs: a byte's
//             lowest bits are of outputs 0-15, then come those of 16-31, then both for the next four inputs. Of three bits three
//             lines for each 16 inputs, of which each has one of the first three fours in its bits 0-2 and 3-5; of the last four
//             the first line has the lower two bits for outputs 0-15 in bits 6-7, the second for 16-31, and the third the
//             upper bits, in bit 6 and bit 7.
//   mxfp4     ggml's blocks of 32 inputs, as int4_bfloat16 of codes in 0..15 that stand for kFp4Codes[code] − 12: twice the
//             numbers of OCP's MXFP4 (Microscaling Formats, 2023, section 5.3.3), whose scales are powers of two, here halved.
//
//   q8_0, q4_k, q6_k  ggml's blocks (ggml-common.h) of 32, 256 and 256 inputs, whose numbers they keep to the bit.
//             q8_0: for each block line pairs as of int8, then 32 float16 scales.
//             q4_k: for each block 32 float16 scales, 32 float16 scales of offsets; then for each 32 inputs a line of [32][2]
//             multiples of the one and the other, and eight lines of nibbles as above.
//             q6_k: for each block 32 float16 scales; then for each 32 inputs a line of [2][32] int8 multiples, those of the
//             first 16 inputs first, eight lines of nibbles, the low ones of q in 0..63, and four lines of what is above them:
//             of each byte of two lines of nibbles two bits, low before high, the first line's before the second's.
//             Activations have a scale for each block.
//
// Weights are unsigned where activations are signed, as the processors' dot products want it. Inputs are filled up with
// zeros to a whole line (int4: pair of groups; with scales for groups: group), outputs to a whole panel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

enum class Format : int {
    float32, bfloat16, int8, int4, int4_float16, int4_bfloat16, int3_float16, int3_bfloat16, int2_float16, int2_bfloat16, mxfp4,
    q8_0, q4_k, q6_k
};
constexpr int kFormats = 14;

// Inlined everywhere, so that no version of them that was compiled for one processor is used on another.
#define PENSTOCK_INLINE __attribute__((always_inline)) inline

constexpr int64_t kPanel = 32;
constexpr int64_t kLine = 64;
// int4: inputs that share a multiple; the largest multiple; the bit beside it.
constexpr int64_t kInt4Group = 32;
constexpr int kMostMultiple = 15, kZeroAtSeven = 16;
// int4: bytes of a pair of groups, and where in them a group's multiple for an output of the panel stands.
constexpr int64_t kInt4Pair = (1 + 2 * kInt4Group / 4) * kLine;
// Inputs of ggml's large blocks, and the lines that one takes.
constexpr int64_t kLargeBlock = 256;
constexpr int64_t kQ4kLines = 2 + 8 * 9, kQ6kLines = 1 + 8 * 13;
// mxfp4: what codes stand for, above the middle.
constexpr uint8_t kFp4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr int32_t kFp4Middle = 12;
constexpr int64_t multiple_at(int64_t column, int64_t group) { return column % 16 * 4 + group % 2 * 2 + column / 16; }

// Which input stands where; each in its place where there is none. Packed weights come from disk, where nothing has looked at
// them: none is beyond the last.
struct Order {
    const int32_t *inputs;
    uint32_t last;

    PENSTOCK_INLINE int64_t at(int64_t place) const {
        if (!inputs) return place;
        const auto input = static_cast<uint32_t>(inputs[place]);
        return input < last ? input : last;
    }
};

struct Shape {
    Format format;
    int64_t outputs;
    int64_t inputs;
    int64_t group = 0;        // of grouped formats and blocks only: inputs that share a scale, or a multiple of one
    bool zero_points = false; // of grouped formats without codes only
    bool ordered = false;     // of grouped formats without codes only

    // Whether groups of inputs have scales of their own.
    PENSTOCK_INLINE bool grouped() const { return format >= Format::int4_float16 && format <= Format::mxfp4; }

    // Of grouped formats: the bits of an integer, the one that stands for zero where there are no zero points, and whether
    // scales are float16.
    PENSTOCK_INLINE int64_t bits() const {
        return format <= Format::int4_bfloat16 || coded() ? 4 : format <= Format::int3_bfloat16 ? 3 : 2;
    }
    PENSTOCK_INLINE int32_t middle() const { return coded() ? kFp4Middle : 1 << (bits() - 1); }
    // Whether integers are what a table has for those that are packed.
    PENSTOCK_INLINE bool coded() const { return format == Format::mxfp4; }
    PENSTOCK_INLINE bool half_scales() const {
        return format == Format::int4_float16 || format == Format::int3_float16 || format == Format::int2_float16;
    }

    PENSTOCK_INLINE bool large() const { return format == Format::q4_k || format == Format::q6_k; }

    PENSTOCK_INLINE int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }

    // Inputs that one step of the inner loop takes.
    PENSTOCK_INLINE int64_t inputs_per_step() const {
        switch (format) {
        case Format::float32: return 1;
        case Format::bfloat16: return 2;
        default: return 4;
        }
    }

    // Inputs with their filling.
    PENSTOCK_INLINE int64_t padded_inputs() const {
        const int64_t unit = format == Format::int4 ? 2 * kInt4Group
                             : large()              ? kLargeBlock
                             : group > 0            ? group
                                                    : inputs_per_step();
        return (inputs + unit - 1) / unit * unit;
    }

    PENSTOCK_INLINE int64_t steps() const { return padded_inputs() / inputs_per_step(); }
    // Parts of a row whose activations are added up, since the weights there share a zero.
    PENSTOCK_INLINE int64_t groups() const {
        switch (format) {
        case Format::int4: return padded_inputs() / kInt4Group;
        default: return group > 0 ? padded_inputs() / group : 1;
        }
    }
    // Parts of a row whose activations have a scale of their own.
    PENSTOCK_INLINE int64_t scale_groups() const {
        if (large()) return padded_inputs() / kLargeBlock;
        return group > 0 ? groups() : 1;
    }
    // Of grouped formats: lines of a group's integers, and bytes of all of the group.
    PENSTOCK_INLINE int64_t group_lines() const { return group * bits() / 16; }
    PENSTOCK_INLINE int64_t group_bytes() const { return (group_lines() + 1 + (zero_points ? 1 : 0)) * kLine; }

    // Bytes of a panel without the scales of its outputs, which stand behind them.
    PENSTOCK_INLINE int64_t scales_at() const {
        switch (format) {
        case Format::int4: return groups() / 2 * kInt4Pair;
        case Format::int4_float16:
        case Format::int4_bfloat16:
        case Format::int3_float16:
        case Format::int3_bfloat16:
        case Format::int2_float16:
        case Format::int2_bfloat16:
        case Format::mxfp4: return groups() * group_bytes();
        case Format::q8_0: return groups() * (2 * group / 4 + 1) * kLine;
        case Format::q4_k: return scale_groups() * kQ4kLines * kLine;
        case Format::q6_k: return scale_groups() * kQ6kLines * kLine;
        default: return steps() * 2 * kLine;
        }
    }

    PENSTOCK_INLINE int64_t panel_bytes() const {
        const bool scales = format == Format::int8 || format == Format::int4;
        return scales_at() + (scales ? 2 * kLine : 0);
    }

    PENSTOCK_INLINE int64_t order_bytes() const { return ordered ? (inputs * 4 + kLine - 1) / kLine * kLine : 0; }

    PENSTOCK_INLINE int64_t bytes() const { return panels() * panel_bytes() + order_bytes(); }

    PENSTOCK_INLINE Order order(const uint8_t *packed) const {
        const uint8_t *behind = packed + panels() * panel_bytes();
        return {ordered ? reinterpret_cast<const int32_t *>(behind) : nullptr, static_cast<uint32_t>(inputs - 1)};
    }
};

// Packs a dense weight [outputs, inputs] of float32 or bfloat16 values into `packed`.
void pack_float32(const Shape &shape, const float *weight, uint8_t *packed);
void pack_bfloat16(const Shape &shape, const uint16_t *weight, uint8_t *packed);
// Packs signed integers [outputs, inputs] with a scale for each output.
void pack_int8(const Shape &shape, const int8_t *weight, const float *scales, uint8_t *packed);
// Packs integers in 0..15 [outputs, inputs] with multiples [outputs, groups of 32] and a scale for each output.
void pack_int4(const Shape &shape, const uint8_t *weight, const uint8_t *multiples, const float *scales, uint8_t *packed);
// Packs integers of the format's bits [outputs, inputs] with scales of the format's type [outputs, groups], and zeros of the
// same shape where the shape has zero points. Where it is ordered, group g is of the inputs order[g · group] and so on.
void pack_grouped(const Shape &shape, const uint8_t *weight, const uint16_t *scales, const int16_t *zeros,
                  const int32_t *order, uint8_t *packed);

// Bytes of a row of ggml's blocks, and packs rows of them.
int64_t block_row_bytes(const Shape &shape);
void pack_blocks(const Shape &shape, const uint8_t *raw, uint8_t *packed);

// The weights of output `output`, in float32: what an embedding looks up.
void unpack_row(const Shape &shape, const uint8_t *packed, int64_t output, float *row);

} // namespace penstock
