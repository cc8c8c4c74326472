#include "sampling_blocks.hpp"

#include "clones.hpp"
#include "exponential.hpp"

#include <limits>
#include <type_traits>

namespace penstock {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What a logarithm at least is, from a float's bits (see TokenDraw in draw.py): the noise is at most
// bits · −ln 2 / 2^23 + 159 ln 2.
constexpr float kNegativeLn2Step = static_cast<float>(-0.6931471805599453 / 8388608.0);
constexpr float kLn2Times159 = static_cast<float>(0.6931471805599453 * 159);

// What a clone calls has to be inlined: else it is compiled for the default instructions.

[[gnu::always_inline]] inline float noise_bound(uint32_t word) {
    const auto number = static_cast<float>(word);
    int32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return static_cast<float>(bits) * kNegativeLn2Step + kLn2Times159;
}

[[gnu::always_inline]] inline float larger(float a, float b) { return a > b ? a : b; }

// The largest of `count` values, a power of two, by halves: loops of fixed length, which become vector instructions.
template <int count> [[gnu::always_inline]] inline float largest_of(const float *values) {
    constexpr int half = count / 2;
    float larger_ones[half];
    for (int i = 0; i < half; ++i) larger_ones[i] = larger(values[i], values[i + half]);
    if constexpr (half == 1) return larger_ones[0];
    else return largest_of<half>(larger_ones);
}

// Their sum, by halves too.
template <int count, typename Number> [[gnu::always_inline]] inline double sum_of(const Number *values) {
    constexpr int half = count / 2;
    // Up to eight floats are added as such.
    using Sum = std::conditional_t<(count > kBlock / 8), Number, double>;
    Sum sums[half];
    for (int i = 0; i < half; ++i) sums[i] = static_cast<Sum>(values[i]) + static_cast<Sum>(values[i + half]);
    if constexpr (half == 1) return sums[0];
    else return sum_of<half>(sums);
}

} // namespace

PENSTOCK_CLONES float block_maximum(const float *values, bool &unordered) {
    int32_t strange = 0;
    for (int64_t i = 0; i < kBlock; ++i) strange |= values[i] != values[i] ? 1 : 0;
    if (strange) unordered = true;
    return largest_of<kBlock>(values);
}

PENSTOCK_CLONES float block_bounds(const float *values, const Scale &scale, const PositionKey &key, uint32_t first,
                                   float least, float *bounds) {
    const Scale scaling = scale;
    const PositionKey keys = key;
    for (uint32_t i = 0; i < kBlock; ++i) {
        const float bound = (values[i] - scaling.peak) * scaling.inverse + noise_bound(random_word(keys, first + i));
        bounds[i] = values[i] >= least ? bound : kNothing;
    }
    return largest_of<kBlock>(bounds);
}

PENSTOCK_CLONES double block_weight(const float *values, const Scale &scale) {
    const Scale scaling = scale;
    float weights[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) weights[i] = exponential((values[i] - scaling.peak) * scaling.inverse);
    return sum_of<kBlock>(weights);
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
    return sum_of<kBlock>(weights);
}

PENSTOCK_CLONES void block_steps(const float *values, const Scale &scale, float *weights, int32_t *steps) {
    const Scale scaling = scale;
    for (int64_t i = 0; i < kBlock; ++i) {
        const float below = (scaling.peak - values[i]) * scaling.inverse;
        weights[i] = exponential(-below);
        const float step = below * kStepsPerUnit;
        steps[i] = static_cast<int32_t>(step < static_cast<float>(kSteps - 1) ? step : static_cast<float>(kSteps - 1));
    }
}

} // namespace penstock
