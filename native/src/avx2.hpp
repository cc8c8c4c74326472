// What the kernels for AVX2 share.
#pragma once

#include "formats.hpp"

#include <cstring>
#include <immintrin.h>

namespace penstock {

// Four bytes in each lane.
PENSTOCK_INLINE __m256i broadcast(const void *four) {
    int32_t value;
    std::memcpy(&value, four, sizeof value);
    return _mm256_set1_epi32(value);
}

// Pairs of bfloat16 as float32: the first and the second of each.
PENSTOCK_INLINE __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
PENSTOCK_INLINE __m256 odd(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
}

struct Block;
// attention_avx2.cpp
void attend_block_avx2(const Block &block);

} // namespace penstock
