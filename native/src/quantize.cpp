#include "quantize.hpp"

#include "clones.hpp"
#include "linear.hpp"
#include "pool.hpp"

#include <cstring>
#include <limits>
#include <vector>

namespace penstock {

namespace {

constexpr int64_t kLanes = 16;
// The largest magnitude of a group becomes one of these many steps of its scale, with either sign: q is in -8..7.
constexpr float kSteps[] = {-8.5f, -8.0f, -7.5f, -7.0f, -6.5f, 6.5f, 7.0f, 7.5f, 8.0f, 8.5f};

// To the nearest integer, ties to even, for |x| < 2^22: the addition leaves no bits behind the point.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

inline float clamped(float x) {
    x = x > 7.0f ? 7.0f : x;
    return x < -8.0f ? -8.0f : x;
}

struct Fit {
    float along, size; // Σ w·q and Σ q·q
};

// How `values`, zero behind `count`, round with the inverse of a scale. `padded` is a multiple of the lanes.
PENSTOCK_CLONES Fit fit(const float *values, int64_t padded, float inverse) {
    float along[kLanes] = {}, size[kLanes] = {};
    for (int64_t i = 0; i < padded; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float q = clamped(nearest(values[i + lane] * inverse));
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

float best_scale(const float *values, int64_t padded) {
    const uint32_t bits = largest_of(values, padded);
    const float largest = float_of(bits);
    if (!is_finite(bits)) return std::numeric_limits<float>::quiet_NaN();
    if (largest < 1e-30f) return 0.0f;
    float best = 0.0f, scale = 0.0f;
    for (const float steps : kSteps) {
        const Fit found = fit(values, padded, steps / largest);
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

void round_int4(
    const Stored &weight, int64_t outputs, int64_t inputs, int64_t group, uint8_t *values, uint16_t *scales) {
    const int64_t groups = (inputs + group - 1) / group;
    const int64_t padded = (group + kLanes - 1) / kLanes * kLanes;
    pool()->run(outputs, [&](int64_t output) {
        thread_local std::vector<float> row, part;
        row.resize(static_cast<size_t>(inputs));
        read_values(weight, output * weight.stride, inputs, row.data());
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t begin = g * group, count = inputs - begin < group ? inputs - begin : group;
            part.assign(static_cast<size_t>(padded), 0.0f);
            std::memcpy(part.data(), row.data() + begin, static_cast<size_t>(count) * sizeof(float));
            const uint16_t stored = float_to_half(best_scale(part.data(), padded));
            const float scale = half_to_float(stored);
            if (!is_finite(bits_of(scale) & 0x7fffffffu)) part.assign(part.size(), 0.0f);
            const float inverse = scale > 0.0f || scale < 0.0f ? 1.0f / scale : 0.0f;
            scales[output * groups + g] = stored;
            for (int64_t i = 0; i < count; ++i) {
                const float q = clamped(nearest(part[static_cast<size_t>(i)] * inverse)) + 8.0f;
                values[output * inputs + begin + i] = static_cast<uint8_t>(q);
            }
        }
    });
}

} // namespace penstock
