// Conversions between float32 and the 16-bit formats, to the nearest, ties to even. Static, so that files compiled for
// other instruction sets keep their own.
#pragma once

#include <cstdint>
#include <cstring>

namespace penstock {

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_to_float(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

static inline uint16_t float_to_bf16(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
    // Subnormal: magnitude · 2^-24, exact in float32.
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    return float_of(sign | bits_of(value));
}

static inline uint16_t float_to_half(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    // 65520 and above round to infinity.
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    // Subnormal: adding 1/2 leaves the value's multiple of 2^-24 in the last bits.
    if (magnitude < 0x38800000u) return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
    const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | rounded >> 13);
}

// E4M3 without infinities (Micikevicius et al., "FP8 formats for deep learning", 2022), of magnitudes up to 448.
static inline uint8_t float_to_fp8(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 24 & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Subnormal: adding 2^14 leaves the value's multiple of 2^-9 in the last bits.
    if (magnitude < 0x3c800000u) return static_cast<uint8_t>(sign | (bits_of(float_of(magnitude) + 16384.0f) - 0x46800000u));
    const uint32_t rounded = magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1);
    return static_cast<uint8_t>(sign | rounded >> 20);
}

static inline float fp8_to_float(uint8_t byte) {
    const uint32_t bits = static_cast<uint32_t>(byte & 0x80u) << 24 | static_cast<uint32_t>(byte & 0x7fu) << 20;
    return float_of(bits) * 0x1p120f;
}

} // namespace penstock
