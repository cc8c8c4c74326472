// x → x · weightᵀ + bias on packed weights.
//
// Every output is one chain of operations over the inputs in ascending order, the same for any number of rows, threads
// and neighbours: tiles are cut over rows and outputs only. Integer weights meet activations that are quantized row by
// row to 8 bits, with one scale for a row.
#pragma once

#include "formats.hpp"
#include "half.hpp"

#include <cstdint>
#include <limits>

namespace penstock {

enum class Type : int { float32, bfloat16 };

// Rows of values, `stride` elements apart.
struct Rows {
    const void *data;
    Type type;
    int64_t stride;
};

// Rows as a kernel reads them: float32, bfloat16 or int8 values, `stride` bytes apart, filled up with zeros to the
// weight's padded inputs.
struct Activations {
    const uint8_t *values;
    int64_t stride;
    // For int8 values: of each row its scale, and the sum of its values in each of the weight's groups.
    const float *scales;
    const int32_t *sums;
};

struct Output {
    void *data;
    Type type;
    int64_t stride;
    const float *bias; // may be null
};

// Some rows times one panel.
struct Tile {
    const Shape *shape;
    const uint8_t *panel;
    int64_t first_output;
    Activations activations;
    int64_t first_row, last_row;
    Output output;
};

struct Block;
struct Plane;

// What an instruction set provides.
struct Kernels {
    const char *name;
    // One row to int8 [padded inputs]: values = round(x / scale), scale = max|x| / 127; sums of `groups` equal groups.
    // A row with NaN or infinities gets a scale of NaN.
    void (*quantize)(const Rows &rows, int64_t row, const Shape &shape, int8_t *values, float *scale, int32_t *sums);
    void (*tile[4])(const Tile &tile); // by Format
    // Attention's inner part for head sizes that are a multiple of 16 (see attention_block.hpp); null where it has none.
    void (*attend_block)(const Block &block);
    void (*turn_keys)(const Plane &keys, int64_t size, int64_t count, float *columns);
    // Loops of nothing but products in registers, for int8, bfloat16 and float32 (see ceilings.hpp); null where it has none.
    int64_t (*compute[3])(int64_t rounds);
};

// The scale of a row whose largest magnitude has these bits: NaN where it is not finite, 0 where it is too small to be
// divided by.
static inline float quantized_scale(uint32_t largest) {
    if (largest >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
    const float magnitude = float_of(largest);
    return magnitude < 1e-30f ? 0.0f : magnitude / 127.0f;
}

const Kernels *portable_kernels();
// These are there where PENSTOCK_AVX2 and PENSTOCK_AVX512 are defined.
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();

// The instruction sets that this processor and this build have, the fastest first; and the one in use.
const Kernels *const *available_kernels();
const Kernels &kernels();
// Use the kernels called `name`; false where they are not available.
bool use_kernels(const char *name);

// `output` [rows, shape.outputs] from `x` [rows, shape.inputs].
void linear(const Shape &shape, const uint8_t *packed, const Rows &x, int64_t rows, const Output &output);

} // namespace penstock
