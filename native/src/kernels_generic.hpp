// The kernels in plain C++: the meaning of the vector ones, and what runs where there are none for the processor. The
// compiler vectorizes over outputs; each file that includes this is compiled for one instruction set.
#include "half.hpp"
#include "linear.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace penstock {
namespace {

constexpr int64_t kGenericRows = 4;

void quantize(
    const float *row, int64_t inputs, int64_t padded, int64_t groups, int8_t *values, float *scale, int32_t *sums) {
    // As integers, magnitudes are ordered with infinity and then NaN behind all finite ones.
    uint32_t largest = 0;
    for (int64_t i = 0; i < inputs; ++i) {
        const uint32_t magnitude = bits_of(row[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    std::fill(values, values + padded, int8_t{0});
    *scale = quantized_scale(largest);
    if (*scale > 0.0f) {
        const float inverse = 127.0f / float_of(largest);
        for (int64_t i = 0; i < inputs; ++i) values[i] = static_cast<int8_t>(std::nearbyint(row[i] * inverse));
    }
    for (int64_t group = 0; group < groups; ++group) {
        int32_t sum = 0;
        for (int64_t i = group * (padded / groups); i < (group + 1) * (padded / groups); ++i) sum += values[i];
        sums[group] = sum;
    }
}

template <int R> using Sums = float[R][kPanel];

template <int R> void store(const Tile &tile, const Sums<R> &sums) {
    for (int r = 0; r < R; ++r)
        for (int64_t i = 0; i < tile.columns; ++i)
            tile.output.row(r)[i] = tile.bias ? sums[r][i] + tile.bias[i] : sums[r][i];
}

// Whole rows' sums of integers end as floats, times the scales of outputs, which stand at `scales`, and of rows.
template <int R> void end(const Tile &tile, const int32_t (&counts)[R][kPanel], const uint8_t *scales) {
    const auto *scale = reinterpret_cast<const float *>(scales);
    Sums<R> sums;
    for (int r = 0; r < R; ++r)
        for (int64_t i = 0; i < kPanel; ++i) sums[r][i] = static_cast<float>(counts[r][i]) * scale[i] * tile.scales[r];
    store<R>(tile, sums);
}

// The inputs of a row that step `step` takes.
template <int R, typename Value> const Value *values_of(const Tile &tile, int64_t step, int r) {
    return reinterpret_cast<const Value *>(tile.values + step * R + r);
}

template <int R> struct Float32 {
    static void run(const Tile &tile) {
        Sums<R> sums = {};
        const auto *weights = reinterpret_cast<const float *>(tile.panel);
        for (int64_t k = 0; k < tile.shape->inputs; ++k, weights += kPanel)
            for (int r = 0; r < R; ++r) {
                const float x = *values_of<R, float>(tile, k, r);
                for (int64_t i = 0; i < kPanel; ++i) sums[r][i] = multiply_add(x, weights[i], sums[r][i]);
            }
        store<R>(tile, sums);
    }
};

template <int R> struct Bfloat16 {
    static void run(const Tile &tile) {
        Sums<R> sums = {};
        const auto *weights = reinterpret_cast<const uint16_t *>(tile.panel);
        for (int64_t k = 0; k < tile.shape->steps(); ++k, weights += 2 * kPanel)
            for (int r = 0; r < R; ++r) {
                const uint16_t *x = values_of<R, uint16_t>(tile, k, r);
                const float first = bf16_to_float(x[0]), second = bf16_to_float(x[1]);
                for (int64_t i = 0; i < kPanel; ++i) {
                    sums[r][i] = multiply_add(first, bf16_to_float(weights[2 * i]), sums[r][i]);
                    sums[r][i] = multiply_add(second, bf16_to_float(weights[2 * i + 1]), sums[r][i]);
                }
            }
        store<R>(tile, sums);
    }
};

template <int R> struct Int8 {
    static void run(const Tile &tile) {
        int32_t counts[R][kPanel];
        for (int r = 0; r < R; ++r)
            for (int64_t i = 0; i < kPanel; ++i) counts[r][i] = tile.totals[r];
        const uint8_t *weights = tile.panel;
        for (int64_t k = 0; k < tile.shape->steps(); ++k, weights += 2 * kLine)
            for (int r = 0; r < R; ++r) {
                const int8_t *x = values_of<R, int8_t>(tile, k, r);
                for (int64_t i = 0; i < kPanel; ++i)
                    counts[r][i] += weights[4 * i] * x[0] + weights[4 * i + 1] * x[1] + weights[4 * i + 2] * x[2] +
                                    weights[4 * i + 3] * x[3];
            }
        end<R>(tile, counts, weights);
    }
};

// Adds a line's products to the counts of the panel's outputs; nibbles may be codes of mxfp4.
template <int R, bool Coded = false>
void add_nibbles(const Tile &tile, int64_t step, const uint8_t *bytes, int32_t (&counts)[R][kPanel]) {
    const auto number = [](int nibble) { return Coded ? kFp4Codes[nibble] : nibble; };
    for (int r = 0; r < R; ++r) {
        const int8_t *x = values_of<R, int8_t>(tile, step, r);
        for (int64_t i = 0; i < 16; ++i)
            for (int64_t j = 0; j < 4; ++j) {
                counts[r][i] += number(bytes[4 * i + j] & 15) * x[j];
                counts[r][i + 16] += number(bytes[4 * i + j] >> 4) * x[j];
            }
    }
}

template <int R> struct Int4 {
    static void run(const Tile &tile) {
        int32_t counts[R][kPanel] = {};
        const int64_t groups = tile.shape->groups(), lines = kInt4Group / 4;
        for (int64_t group = 0; group < groups; ++group) {
            const uint8_t *pair = tile.panel + group / 2 * kInt4Pair;
            int32_t found[R][kPanel] = {};
            for (int64_t line = 0; line < lines; ++line)
                add_nibbles<R>(tile, group * lines + line, pair + (1 + group % 2 * lines + line) * kLine, found);
            for (int r = 0; r < R; ++r)
                for (int64_t i = 0; i < kPanel; ++i) {
                    const int multiple = pair[multiple_at(i, group)], zero = multiple & kZeroAtSeven ? 7 : 8;
                    counts[r][i] += (multiple & kMostMultiple) * (found[r][i] + zero * tile.sums[r * groups + group]);
                }
        }
        end<R>(tile, counts, tile.panel + tile.shape->scales_at());
    }
};

// Integers of two or three bits of a step as nibbles: a line of them.
inline void widen_bits(const Shape &shape, const uint8_t *lines, int64_t step, uint8_t *nibbles) {
    const int64_t four = step % 4;
    const uint8_t *first = lines + step / 4 * shape.bits() * kLine, *second = first + kLine, *third = second + kLine;
    for (int64_t i = 0; i < kLine; ++i) {
        int low, high;
        if (shape.bits() == 2) {
            const int pairs = (four < 2 ? first : second)[i] >> (four % 2 * 4);
            low = pairs & 3, high = pairs >> 2 & 3;
        } else if (four < 3) {
            low = first[four * kLine + i] & 7, high = first[four * kLine + i] >> 3 & 7;
        } else {
            low = first[i] >> 6 | (third[i] >> 4 & 4), high = second[i] >> 6 | (third[i] >> 5 & 4);
        }
        nibbles[i] = static_cast<uint8_t>(low | high << 4);
    }
}

template <int R> struct IntGrouped {
    static void run(const Tile &tile) {
        Sums<R> sums = {};
        const Shape &shape = *tile.shape;
        const int64_t groups = shape.groups(), lines = shape.group_lines(), steps = shape.group / 4;
        const uint8_t *weights = tile.panel;
        const auto widened = shape.half_scales() ? half_to_float : bf16_to_float;
        for (int64_t group = 0; group < groups; ++group, weights += shape.group_bytes()) {
            int32_t counts[R][kPanel];
            const auto *tail = reinterpret_cast<const uint16_t *>(weights + lines * kLine);
            const auto *zeros = reinterpret_cast<const int16_t *>(tail + kPanel);
            for (int r = 0; r < R; ++r)
                for (int64_t i = 0; i < kPanel; ++i)
                    counts[r][i] = tile.sums[r * groups + group] * (shape.zero_points ? zeros[i] : 1);
            for (int64_t step = 0; step < steps; ++step) {
                uint8_t nibbles[kLine];
                const uint8_t *bytes = weights + step * kLine;
                if (shape.bits() < 4) {
                    widen_bits(shape, weights, step, nibbles);
                    bytes = nibbles;
                }
                if (shape.coded()) add_nibbles<R, true>(tile, group * steps + step, bytes, counts);
                else add_nibbles<R>(tile, group * steps + step, bytes, counts);
            }
            for (int r = 0; r < R; ++r)
                for (int64_t i = 0; i < kPanel; ++i) {
                    const float found = static_cast<float>(counts[r][i]) * widened(tail[i]);
                    sums[r][i] = multiply_add(found, tile.scales[r * groups + group], sums[r][i]);
                }
        }
        store<R>(tile, sums);
    }
};

} // namespace
} // namespace penstock

#include "blocks_generic.hpp"

namespace penstock {
namespace {

template <template <int> class Kernel, int R = kGenericRows> void tile_of(const Tile &tile) {
    if (tile.rows == R) Kernel<R>::run(tile);
    else if constexpr (R > 1) tile_of<Kernel, R - 1>(tile);
}

} // namespace
} // namespace penstock
