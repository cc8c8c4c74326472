// What the files for AVX-512 share. A vector is 16 outputs or positions, so a lane's sum is the same in every tile.
#pragma once

#include "linear.hpp"

#include <cstring>
#include <immintrin.h>

namespace penstock {

// Attention's inner part (attention_avx512.cpp), without and with BF16.
void attend_block_avx512_vnni(const Block &block);
void attend_block_avx512(const Block &block);
// A cache's bytes and halves of bytes as bfloat16, and bfloat16 keys as values (kv_avx512.cpp).
void expand_avx512(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values);
void keys_as_values_avx512(const uint8_t *keys, int64_t size, uint8_t *values);

namespace {

inline __mmask16 first(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1); }

inline __m512i broadcast(const void *four) {
    int32_t value;
    std::memcpy(&value, four, sizeof value);
    return _mm512_set1_epi32(value);
}

// What one instruction makes of 16 lanes of four bytes: a product of float32, or two of bfloat16, added to each sum.
struct Float32Product {
    static __m512 add(__m512 sum, __m512i lanes, __m512i unit) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(unit), _mm512_castsi512_ps(lanes), sum);
    }
};

struct Bfloat16Product {
    static __m512 add(__m512 sum, __m512i lanes, __m512i unit) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(lanes), reinterpret_cast<__m512bh>(unit));
    }
};

// The first and the second of each pair of bfloat16 values, as floats.
inline __m512 first_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 second_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Without BF16.
struct WideBfloat16Product {
    static __m512 add(__m512 sum, __m512i lanes, __m512i unit) {
        const __m512 second = _mm512_fmadd_ps(second_of(unit), second_of(lanes), sum);
        return _mm512_fmadd_ps(first_of(unit), first_of(lanes), second);
    }
};

// 16 integers. As __m512i, which the compiler takes for 8 of them, sums would be moved about at each use.
typedef int32_t Int32s __attribute__((vector_size(64)));

// Four products of unsigned and signed bytes.
struct Int8Product {
    static Int32s add(Int32s sum, __m512i lanes, __m512i unit) {
        return reinterpret_cast<Int32s>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), lanes, unit));
    }
};

// Two products of signed 16-bit integers. For a lane whose sum fits 16 bits and a factor below 2^15 that is one product: the
// factor's upper half is zero.
struct Int16Product {
    static Int32s add(Int32s sum, Int32s lanes, __m512i factor) {
        return reinterpret_cast<Int32s>(
            _mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(lanes), factor));
    }
};

inline __m512 as_floats(Int32s values) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(values)); }

} // namespace
} // namespace penstock
