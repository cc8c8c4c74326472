#include "quantize.hpp"

#include "clones.hpp"
#include "linear.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace penstock {

namespace {

constexpr int64_t kLanes = 16;
// The largest magnitude of a group becomes one of these many steps of its scale, with either sign: q − 8 is in -8..7.
constexpr float kSteps[] = {-8.5f, -8.0f, -7.5f, -7.0f, -6.5f, 6.5f, 7.0f, 7.5f, 8.0f, 8.5f};

// To the nearest integer, ties to even, for |x| < 2^22: the addition leaves no bits behind the point.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

inline float clamped(float x, float least, float most) {
    x = x > most ? most : x;
    return x < least ? least : x;
}

struct Fit {
    float along, size; // Σ w·q and Σ q·q
};

// How a group rounds with the inverse of a scale.
PENSTOCK_CLONES Fit fit(const float *values, float inverse) {
    float along[kLanes] = {}, size[kLanes] = {};
    for (int64_t i = 0; i < kInt4Group; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float q = clamped(nearest(values[i + lane] * inverse), -8.0f, 7.0f);
            along[lane] += values[i + lane] * q;
            size[lane] += q * q;
        }
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) {
            along[lane] += along[lane + half];
            size[lane] += size[lane + half];
        }
    return {along[0], size[0]};
}

// Bits of the largest magnitude: as integers, infinity and then NaN are behind all finite values.
uint32_t largest_of(const float *values, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t magnitude = bits_of(values[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

bool is_finite(uint32_t magnitude) { return magnitude < 0x7f800000u; }

float best_scale(const float *values) {
    const uint32_t bits = largest_of(values, kInt4Group);
    const float largest = float_of(bits);
    if (!is_finite(bits)) return std::numeric_limits<float>::quiet_NaN();
    if (largest < 1e-30f) return 0.0f;
    float best = 0.0f, scale = 0.0f;
    for (const float steps : kSteps) {
        const Fit found = fit(values, steps / largest);
        // What least squares takes off the squared error; a group whose values all round to zero gains nothing.
        if (found.size == 0.0f) continue;
        const float gain = found.along * (found.along / found.size);
        if (gain > best) {
            best = gain;
            scale = found.along / found.size;
        }
    }
    return scale;
}

// How a group is stored. Values are in units of their output's scale, in which even their squares are of a handy size.
struct Multiple {
    int times = 0, zero = 8;

    uint8_t stored() const { return static_cast<uint8_t>(times | (zero == 7 ? kZeroAtSeven : 0)); }

    float rounded(float value) const {
        if (times == 0) return 0.0f;
        const float steps = nearest(value / static_cast<float>(times));
        return clamped(steps, static_cast<float>(-zero), static_cast<float>(15 - zero));
    }

    float squared_error(const float *values, float scale) const {
        float sum = 0.0f;
        for (int64_t i = 0; i < kInt4Group; ++i) {
            const float value = values[i] / scale, error = value - rounded(value) * static_cast<float>(times);
            sum += error * error;
        }
        return sum;
    }
};

// For a group whose scale should be `wanted`. A negative one means the same steps the other way round, from 7 instead of 8.
Multiple best_multiple(const float *values, float wanted, float scale) {
    if (!(scale > 0.0f) || !is_finite(bits_of(scale)) || wanted == 0.0f) return {};
    const int zero = wanted < 0.0f ? 7 : 8, below = static_cast<int>(std::fabs(wanted) / scale);
    const Multiple less{std::clamp(below, 1, kMostMultiple), zero}, more{std::clamp(below + 1, 1, kMostMultiple), zero};
    return more.squared_error(values, scale) < less.squared_error(values, scale) ? more : less;
}

} // namespace

void round_int8(const Stored &weight, int64_t outputs, int64_t inputs, int8_t *values, float *scales) {
    pool()->run(outputs, [&](int64_t output) {
        thread_local std::vector<float> row;
        row.resize(static_cast<size_t>(inputs));
        read_values(weight, output * weight.stride, inputs, row.data());
        const uint32_t largest = largest_of(row.data(), inputs);
        scales[output] = quantized_scale(largest);
        if (!is_finite(largest)) row.assign(row.size(), 0.0f);
        const float inverse = scales[output] > 0.0f ? 127.0f / float_of(largest) : 0.0f;
        for (int64_t i = 0; i < inputs; ++i)
            values[output * inputs + i] = static_cast<int8_t>(nearest(row[static_cast<size_t>(i)] * inverse));
    });
}

void round_int4(const Stored &weight, int64_t outputs, int64_t inputs, uint8_t *values, uint8_t *multiples, float *scales) {
    const int64_t groups = (inputs + kInt4Group - 1) / kInt4Group;
    pool()->run(outputs, [&](int64_t output) {
        thread_local std::vector<float> row, wanted;
        row.assign(static_cast<size_t>(groups * kInt4Group), 0.0f);
        read_values(weight, output * weight.stride, inputs, row.data());
        wanted.resize(static_cast<size_t>(groups));
        float most = 0.0f;
        for (int64_t g = 0; g < groups; ++g) {
            wanted[static_cast<size_t>(g)] = best_scale(row.data() + g * kInt4Group);
            const float magnitude = std::fabs(wanted[static_cast<size_t>(g)]);
            most = magnitude > most || std::isnan(magnitude) ? magnitude : most;
        }
        scales[output] = most / kMostMultiple;
        for (int64_t g = 0; g < groups; ++g) {
            const float *part = row.data() + g * kInt4Group;
            const Multiple found = best_multiple(part, wanted[static_cast<size_t>(g)], scales[output]);
            multiples[output * groups + g] = found.stored();
            const int64_t begin = g * kInt4Group, count = std::min(kInt4Group, inputs - begin);
            for (int64_t i = 0; i < count; ++i) {
                const auto steps = static_cast<int>(found.rounded(part[i] / scales[output]));
                values[output * inputs + begin + i] = static_cast<uint8_t>(steps + found.zero);
            }
        }
    });
}

} // namespace penstock
