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

// erf(x) to 4e-7: a quotient of polynomials of x², fitted to the least greatest error up to 3.9, behind which it is 1.
static inline float error_function(float x) {
    const float low = x < -3.9f ? -3.9f : x, bounded = low > 3.9f ? 3.9f : low, square = bounded * bounded;
    float above = 2.05038903e-6f;
    above = above * square + 2.8745535e-4f;
    above = above * square + 3.83682008e-3f;
    above = above * square + 5.29667488e-2f;
    above = above * square + 1.91939787e-1f;
    above = above * square + 1.12837903f;
    float below = 3.82306587e-5f;
    below = below * square + 1.18171953e-3f;
    below = below * square + 1.51090947e-2f;
    below = below * square + 1.14757688e-1f;
    below = below * square + 5.03433986e-1f;
    below = below * square + 1.0f;
    return bounded * above / below;
}

// cap · tanh(x / cap)
static inline float soft_capped(float x, float cap) {
    const float twice = exponential(2.0f * (x / cap));
    return cap * (1.0f - 2.0f / (twice + 1.0f));
}

} // namespace penstock
