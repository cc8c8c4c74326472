// The numbers that decide which token is drawn: src/penstock/sampling/noise.py and exponential.py in C++. They define
// what a seed reproduces, so every operation is theirs, in their order, and never fused.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace penstock {

// The words that key the permutation of token ids at one output position.
struct PositionKey {
    uint32_t first, second, third;
};

struct Stream {
    uint64_t seed;
    uint32_t sample, purpose;
};

// Philox4x32 with 10 rounds.
inline PositionKey position_key(const Stream &stream, uint32_t position) {
    uint32_t counter[4] = {position, stream.sample, stream.purpose, 0};
    auto low = static_cast<uint32_t>(stream.seed), high = static_cast<uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t product_0 = uint64_t{0xD2511F53} * counter[0], product_1 = uint64_t{0xCD9E8D57} * counter[2];
        const uint32_t next[4] = {static_cast<uint32_t>(product_1 >> 32) ^ counter[1] ^ low,
                                  static_cast<uint32_t>(product_1),
                                  static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ high,
                                  static_cast<uint32_t>(product_0)};
        std::memcpy(counter, next, sizeof counter);
        low += 0x9E3779B9;
        high += 0xBB67AE85;
    }
    return {counter[0], counter[1], counter[2]};
}

inline uint32_t random_word(const PositionKey &key, uint32_t token) {
    uint32_t word = token * 0x9E3779B9 + key.first;
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) ^ key.second;
    word = (word ^ (word >> 15)) * 0x735A2D97 + key.third;
    return word ^ (word >> 15);
}

constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;

// The natural logarithm of a positive normal number.
inline double exact_log(double x) {
    int exponent;
    double mantissa = std::frexp(x, &exponent);
    if (mantissa < 0x1.6a09e667f3bcdp-1) {
        mantissa *= 2.0;
        --exponent;
    }
    const double s = (mantissa - 1.0) / (mantissa + 1.0), z = s * s;
    double series = 1.0 / 21;
    for (int odd = 19; odd > 1; odd -= 2) series = series * z + 1.0 / odd;
    const double twice = s + s, power = exponent;
    return power * kLn2High + (twice + (twice * (z * series) + power * kLn2Low));
}

// Standard Gumbel noise of a random word.
inline double gumbel(uint32_t word) {
    return -exact_log(-exact_log(1.0 - (static_cast<double>(word) + 0.5) * 0x1p-32));
}

// e^x of a number that is not positive; 0 below −700.
inline double exact_exp(double x) {
    if (x < -700.0) return 0.0;
    static constexpr std::array<double, 12> inverse_factorials = [] {
        std::array<double, 12> values{};
        double factorial = 1.0;
        for (int n = 2; n < 14; ++n) values[static_cast<size_t>(n - 2)] = 1.0 / (factorial *= n);
        return values;
    }();
    const double power = std::nearbyint(x * 0x1.71547652b82fep+0);
    const double rest = (x - power * kLn2High) - power * kLn2Low;
    double series = inverse_factorials[11];
    for (size_t n = 11; n-- > 0;) series = series * rest + inverse_factorials[n];
    return std::ldexp(1.0 + (rest + rest * rest * series), static_cast<int>(power));
}

// A float just below `value`; minus infinity where it is no larger than the lowest finite one.
inline float float_below(double value) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    if (value <= static_cast<double>(std::numeric_limits<float>::lowest())) return -infinity;
    return std::nextafter(static_cast<float>(value), -infinity);
}

} // namespace penstock
