// x → x · weightᵀ + bias on packed weights.
//
// Every output is one chain of operations over the inputs in ascending order, the same for any number of rows, threads
// and neighbours: tiles are cut over rows and outputs only. AMX adds up each 32 inputs of bfloat16 by themselves. Integer
// weights meet activations that are quantized row by row to 8 bits, with one scale for a row, or for each group of grouped
// formats; bfloat16 weights meet activations rounded to bfloat16.
#pragma once

#include "formats.hpp"
#include "half.hpp"

#include <cstdint>
#include <limits>

namespace penstock {

// Rows of floats, `stride` apart.
struct Rows {
    const float *data;
    int64_t stride;

    PENSTOCK_INLINE const float *row(int64_t index) const { return data + index * stride; }
};

struct MutableRows {
    float *data;
    int64_t stride;

    PENSTOCK_INLINE float *row(int64_t index) const { return data + index * stride; }
};

// Into which cache a tile asks for weights early: for each line of them, or for the first ones of each page, where the
// processor follows by itself from there on. What is read once need not take the place of something else in the further ones.
enum class Ahead { lines_to_first, lines_once, lines_to_second, pages_to_second };

// Some rows times one panel. Values are in units of four bytes, which are as many inputs as one step of the weight's
// format takes: [steps][rows] units. For bfloat16 weights, where the kernels want it, each input is a unit of its own, a
// float: [steps][2][rows]. Where the kernels want rows apart, they are [rows][apart_units(steps)], filled up with zeros, and
// 15 rows more may be read behind the last tile's.
struct Tile {
    const Shape *shape;
    const uint8_t *panel;
    const uint32_t *values;
    int64_t rows;
    // For int8 values: the scale of each row, or of each of its Shape::scale_groups, −128 times the sum of its values, and for each row and group of the weight
    // the sum of its values there, times minus the middle for grouped formats without zero points and −1 otherwise (for int4 only up to
    // grouped_rows).
    const float *scales;
    const int32_t *totals;
    const int32_t *sums;
    // The tile's first row and column; as many columns as the panel has outputs.
    MutableRows output;
    int64_t columns;
    const float *bias; // of the panel's outputs; may be null
    // Weights that are needed later, how much of them to ask for with each line that is read, and how.
    const uint8_t *ahead;
    int64_t ahead_step;
    Ahead ahead_how;
    // int4, where the kernels unpack: memory for the panel as int8 has it; null where nobody wants that.
    uint8_t *unpacked;
};

// Units from row to row where rows are apart: whole lines, and an odd number of them, so that rows do not fall into few sets of a
// cache.
PENSTOCK_INLINE int64_t apart_units(int64_t units) {
    constexpr int64_t kUnits = kLine / 4;
    return ((units + kUnits - 1) / kUnits | 1) * kUnits;
}

struct Block;
struct HeadRows;
struct Cache;
struct CacheTile;

// What an instruction set provides.
struct Kernels {
    const char *name;
    // `inputs` numbers to int8, with zeros up to `padded`: values = round(x / scale), scale = max|x| / 127, and the sums of
    // so many equal groups of them. With NaN or infinities the scale is NaN.
    void (*quantize)(
        const float *row, int64_t inputs, int64_t padded, int64_t groups, int8_t *values, float *scale, int32_t *sums);
    // By Format: a tile, and how many rows it has at most.
    void (*tile[kFormats])(const Tile &tile);
    int64_t tile_rows[kFormats];
    // Up to so many rows meet int4 (Format::int4, not the grouped ones) as it is, group by group. For more of them a panel is
    // unpacked, and the first tile leaves it to the others as int8 has it. The sums are the same integers.
    int64_t grouped_rows;
    // Whether activations for bfloat16 weights are floats, rounded to bfloat16, instead of pairs.
    bool wide_bfloat16;
    // Attention's inner part (attention_block.hpp); null where it has none.
    void (*attend_block)(const Block &block);
    // What kv.hpp's `expand` makes of a bfloat16 cache whose heads' sizes are multiples of 16; null where it has none.
    void (*expand)(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values);
    // What kv.hpp's `keys_as_values` makes of bfloat16 keys whose size is a multiple of 16; null where it has none.
    void (*keys_as_values)(const uint8_t *keys, int64_t size, uint8_t *values);
    // Loops of nothing but products in registers, for int8, bfloat16 and float32 (see ceilings.hpp); null where it has none.
    int64_t (*compute[3])(int64_t rounds);
    // By Format: from so many rows on, a tile's values are row after row; 0 where they never are.
    int64_t apart_rows[kFormats] = {};
    // Attention over rows of tokens (attention_head.hpp) that multiplies bfloat16, of heads whose size is a multiple of 32; null
    // where it has none.
    void (*attend_head)(const HeadRows &rows) = nullptr;
    // GELU as it is, to 1e-6 (rows.hpp); null where it has none of its own.
    void (*exact_gelu)(float *values, int64_t count) = nullptr;
};

// The scale of a row whose largest magnitude has these bits: NaN where it is not finite, 0 where it is too small to be
// divided by.
static inline float quantized_scale(uint32_t largest) {
    if (largest >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
    const float magnitude = float_of(largest);
    return magnitude < 1e-30f ? 0.0f : magnitude / 127.0f;
}

const Kernels *portable_kernels();
// These are there where PENSTOCK_AVX2, PENSTOCK_AVX512 and PENSTOCK_AMX are defined.
const Kernels *avx2_kernels();
const Kernels *avx512_vnni_kernels();
const Kernels *avx512_kernels();
// Null where the processor has no AMX, or the system does not let this process use it.
const Kernels *amx_kernels();

// The instruction sets that this processor and this build have, the fastest first; and the one in use.
const Kernels *const *available_kernels();
const Kernels &kernels();
// Use the kernels called `name`; false where they are not available.
bool use_kernels(const char *name);

// What the outputs of a pair of panels become: output i is gate(i, i + half) of all outputs.
using Gate = void (*)(const float *gate, const float *up, float *output, int64_t count);

// `output` [rows, shape.outputs] from `x` [rows, shape.inputs].
void linear(const Shape &shape, const uint8_t *packed, const float *bias, const Rows &x, int64_t rows,
            const MutableRows &output);
// The same for outputs [gates | ups], whose halves are whole panels: `output` [rows, shape.outputs / 2] is `gate` of both.
void gated_linear(const Shape &shape, const uint8_t *packed, const float *bias, const Rows &x, int64_t rows, Gate gate,
                  const MutableRows &output);

} // namespace penstock
