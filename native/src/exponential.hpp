// The exponential of the plain kernels: the same bits wherever it is compiled. Vector kernels may have their own.
#pragma once

#include "half.hpp"

namespace penstock {

// e^x to about one unit in the last place; 0 below −87.3, and above 88 what it is there.
// Cody and Waite's reduction by ln 2 in two parts, then a polynomial.
static inline float exponential(float x) {
    x = x > 88.0f ? 88.0f : x;
    const float clamped = x < -87.3f ? -87.3f : x;
    // The nearest integer: the addition leaves no bits behind the point.
    const float power = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
    float rest = clamped - power * 0.693359375f;
    rest = rest - power * -2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    // What is not a number is one in the sum already; as an exponent it would be undefined.
    const float exponent = power == power ? power : 0.0f;
    const float scaled = sum * float_of(static_cast<uint32_t>(static_cast<int32_t>(exponent) + 127) << 23);
    return x < -87.3f ? 0.0f : scaled;
}

// 1 − erf(x) for x from 0 on, to 4e-7 of it up to 1 and 2e-6 up to 5: t · exp(−x² + a polynomial of t), where
// t = 1 / (1 + x / 2) (Press et al., Numerical Recipes in C, 1992, section 6.2).
static inline float complementary_error(float x) {
    const float t = 1.0f / (1.0f + 0.5f * x);
    float sum = 0.17087277f;
    sum = sum * t - 0.82215223f;
    sum = sum * t + 1.48851587f;
    sum = sum * t - 1.13520398f;
    sum = sum * t + 0.27886807f;
    sum = sum * t - 0.18628806f;
    sum = sum * t + 0.09678418f;
    sum = sum * t + 0.37409196f;
    sum = sum * t + 1.00002368f;
    sum = sum * t - 1.26551223f;
    return t * exponential(sum - x * x);
}

// cap · tanh(x / cap)
static inline float soft_capped(float x, float cap) {
    const float twice = exponential(2.0f * (x / cap));
    return cap * (1.0f - 2.0f / (twice + 1.0f));
}

} // namespace penstock
