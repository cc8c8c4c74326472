#include "sampling_blocks.hpp"

#include "clones.hpp"
#include "exponential.hpp"

#include <limits>

namespace penstock {

namespace {

constexpr int64_t kLanes = 16;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What a logarithm at least is, from a float's bits (see TokenDraw in draw.py): the noise is at most
// bits · −ln 2 / 2^23 + 159 ln 2.
constexpr float kNegativeLn2Step = static_cast<float>(-0.6931471805599453 / 8388608.0);
constexpr float kLn2Times159 = static_cast<float>(0.6931471805599453 * 159);

inline float noise_bound(uint32_t word) {
    const auto number = static_cast<float>(word);
    int32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return static_cast<float>(bits) * kNegativeLn2Step + kLn2Times159;
}

inline float larger(float a, float b) { return a > b ? a : b; }

inline float largest_of(float *lanes) {
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) lanes[lane] = larger(lanes[lane], lanes[lane + half]);
    return lanes[0];
}

// Float sums of eight values each, which are then added in float64.
inline double sum_of(const float *weights) {
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[i + lane];
    double sums[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] = static_cast<double>(lanes[lane]);
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0];
}

} // namespace

PENSTOCK_CLONES float block_maximum(const float *values, bool &unordered) {
    float lanes[kLanes];
    int32_t strange[kLanes] = {};
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = kNothing;
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float value = values[i + lane];
            lanes[lane] = larger(value, lanes[lane]);
            strange[lane] |= value != value ? -1 : 0;
        }
    int32_t any = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) any |= strange[lane];
    if (any) unordered = true;
    return largest_of(lanes);
}

PENSTOCK_CLONES float block_bounds(const float *values, const Scale &scale, const PositionKey &key, uint32_t first,
                                   float least, float *bounds) {
    const Scale scaling = scale;
    const PositionKey keys = key;
    for (uint32_t i = 0; i < kBlock; ++i) {
        const float bound = (values[i] - scaling.peak) * scaling.inverse + noise_bound(random_word(keys, first + i));
        bounds[i] = values[i] >= least ? bound : kNothing;
    }
    float lanes[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = kNothing;
    for (int64_t i = 0; i < kBlock; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(bounds[i + lane], lanes[lane]);
    return largest_of(lanes);
}

PENSTOCK_CLONES double block_weight(const float *values, const Scale &scale) {
    const Scale scaling = scale;
    float weights[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) weights[i] = exponential((values[i] - scaling.peak) * scaling.inverse);
    return sum_of(weights);
}

PENSTOCK_CLONES double block_weight_before(const float *values, const Scale &scale, float value, int64_t id,
                                           int64_t first) {
    const Scale scaling = scale;
    const auto own = static_cast<int32_t>(id - first < 0 ? 0 : id - first > kBlock ? kBlock : id - first);
    float weights[kBlock];
    for (int32_t i = 0; i < static_cast<int32_t>(kBlock); ++i) {
        const float weight = exponential((values[i] - scaling.peak) * scaling.inverse);
        const bool before = (values[i] > value) | ((values[i] == value) & (i < own));
        weights[i] = before ? weight : 0.0f;
    }
    return sum_of(weights);
}

PENSTOCK_CLONES void block_steps(const float *values, const Scale &scale, float *weights, int32_t *steps) {
    const Scale scaling = scale;
    for (int64_t i = 0; i < kBlock; ++i) {
        const float below = (scaling.peak - values[i]) * scaling.inverse;
        weights[i] = exponential(-below);
        const float step = below * 8.0f;
        steps[i] = static_cast<int32_t>(step < static_cast<float>(kSteps - 1) ? step : static_cast<float>(kSteps - 1));
    }
}

} // namespace penstock
