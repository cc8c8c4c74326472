// What kv.cpp's `expand` and `keys_as_values` make of a bfloat16 cache, by hand: compiled from plain C++ the first takes five times
// as long, the second almost twice. A lane is a pair of values, the first in its lower half. What is expanded becomes floats, which
// are rounded as they are there.
#include "avx512.hpp"
#include "half.hpp"
#include "kv.hpp"

namespace penstock {
namespace {

constexpr int64_t kPairs = 16;

// 32 bytes, one in each half of a lane.
inline __m512i bytes_in_pairs(const uint8_t *bytes) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(bytes)));
}

// To bfloat16 in the upper half of a lane, ties to even; below is what is left over.
inline __m512i rounded(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

inline void store_pairs(__m512 first, __m512 second, uint16_t *into) {
    constexpr int kSelect = 0xca; // of the second where the first has a bit, else of the third
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512i pairs = _mm512_ternarylogic_epi32(upper, rounded(second), _mm512_srli_epi32(rounded(first), 16), kSelect);
    _mm512_storeu_si512(into, pairs);
}

// E4M3 in the uppermost byte of a lane, as half.hpp has it.
inline __m512 from_fp8(__m512i lanes) {
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(lanes, 4), _mm512_set1_epi32(static_cast<int>(0x87f00000u)));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
}

// What the two values of each lane are multiplied by, and added to.
struct Factors {
    __m512 first, second;
};

// Of a pair of positions.
inline Factors of_positions(float first, float second) { return {_mm512_set1_ps(first), _mm512_set1_ps(second)}; }

void expand_fp8(const uint8_t *bytes, int64_t count, const Factors &scales, uint16_t *into) {
    for (int64_t at = 0; at < count; at += 2 * kPairs) {
        const __m512i pairs = bytes_in_pairs(bytes + at);
        const __m512 first = from_fp8(_mm512_slli_epi32(pairs, 24)), second = from_fp8(_mm512_slli_epi32(pairs, 8));
        store_pairs(_mm512_mul_ps(first, scales.first), _mm512_mul_ps(second, scales.second), into + at);
    }
}

void expand_all_fp8(const Cache &cache, const CacheTile &tile, int64_t head, uint16_t *keys, uint16_t *values) {
    const int64_t scales = cache.scales_at(tile, head), place = cache.place(tile, head), width = 2 * cache.size;
    const __m512 of_lanes = _mm512_loadu_ps(cache.key_scales + scales);
    expand_fp8(cache.keys + place, cache.size * kStep, {of_lanes, of_lanes}, keys);
    const auto *of_values = reinterpret_cast<const float *>(cache.value_scales + scales);
    for (int64_t step = 0; step < kStep / 2; ++step)
        expand_fp8(cache.values + place + step * width, width, of_positions(of_values[2 * step], of_values[2 * step + 1]),
                   values + step * width);
}

// Integers of four bits, from bit `shift` of each half of a lane on. Products and sums are rounded each.
template <int Shift> inline void expand_nibbles(__m512i pairs, const Factors &scales, const Factors &least, uint16_t *into) {
    const __m512i nibble = _mm512_set1_epi32(15);
    const __m512i first = _mm512_and_si512(_mm512_srli_epi32(pairs, Shift), nibble);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi32(pairs, 16 + Shift), nibble);
    store_pairs(_mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(first), scales.first), least.first),
                _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(second), scales.second), least.second), into);
}

// 32 bytes to 64 values: those in the low nibbles, and behind them those in the high ones.
inline void expand_run(const uint8_t *bytes, const Factors &scales, const Factors &least, uint16_t *into) {
    const __m512i pairs = bytes_in_pairs(bytes);
    expand_nibbles<0>(pairs, scales, least, into);
    expand_nibbles<4>(pairs, scales, least, into + 2 * kPairs);
}

inline __m512 from_bfloat16(const uint16_t *numbers) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(numbers));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

void expand_all_int4(const Cache &cache, const CacheTile &tile, int64_t head, uint16_t *keys, uint16_t *values) {
    const int64_t scales = cache.scales_at(tile, head), place = cache.place(tile, head), groups = cache.size / kKvGroup;
    const uint8_t *bytes = cache.keys + place;
    const auto *numbers = reinterpret_cast<const uint16_t *>(cache.key_scales + scales);
    for (int64_t group = 0; group < groups; ++group, numbers += 2 * kStep) {
        const __m512 scale = from_bfloat16(numbers), least = from_bfloat16(numbers + kStep);
        for (int64_t four = 0; four < kKvGroup; four += 4, bytes += 2 * kPairs, keys += 4 * kPairs)
            expand_run(bytes, {scale, scale}, {least, least}, keys);
    }
    bytes = cache.values + place;
    const auto *of_values = reinterpret_cast<const uint16_t *>(cache.value_scales + scales);
    for (int64_t step = 0; step < kStep / 2; ++step)
        for (int64_t group = 0; group < groups; ++group, bytes += 2 * kPairs, values += 4 * kPairs) {
            const uint16_t *pair = of_values + group * 2 * kStep + 2 * step;
            expand_run(bytes, of_positions(bf16_to_float(pair[0]), bf16_to_float(pair[1])),
                       of_positions(bf16_to_float(pair[kStep]), bf16_to_float(pair[kStep + 1])), values);
        }
}

constexpr int kPositionPairs = kStep / 2;

// Of eight pairs of columns, a vector each, the 8 bytes at each pair of positions: turned[p] is that of all eight.
inline void turn_eight(const __m512i (&columns)[8], __m512i (&turned)[kPositionPairs]) {
    __m512i quarters[8], halves[8];
    for (int i = 0; i < 8; i += 2) {
        quarters[i] = _mm512_unpacklo_epi64(columns[i], columns[i + 1]);
        quarters[i + 1] = _mm512_unpackhi_epi64(columns[i], columns[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int odd = 0; odd < 2; ++odd) {
            halves[i + odd] = _mm512_shuffle_i64x2(quarters[i + odd], quarters[i + 2 + odd], 0x88);
            halves[i + 2 + odd] = _mm512_shuffle_i64x2(quarters[i + odd], quarters[i + 2 + odd], 0xdd);
        }
    for (int i = 0; i < 4; ++i) {
        turned[i] = _mm512_shuffle_i64x2(halves[i], halves[i + 4], 0x88);
        turned[i + 4] = _mm512_shuffle_i64x2(halves[i], halves[i + 4], 0xdd);
    }
}

} // namespace

void keys_as_values_avx512(const uint8_t *keys, int64_t size, uint8_t *values) {
    // Of a pair of positions and a pair of columns, the second value and the third change places.
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    const int64_t line = size * kUnit;
    for (int64_t i = 0; i < size; i += 16, keys += 8 * 64, values += 64) {
        __m512i columns[8], turned[kPositionPairs];
        for (int j = 0; j < 8; ++j) columns[j] = _mm512_shuffle_epi8(_mm512_loadu_si512(keys + j * 64), order);
        turn_eight(columns, turned);
        for (int p = 0; p < kPositionPairs; ++p) _mm512_storeu_si512(values + p * line, turned[p]);
    }
}

void expand_avx512(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values) {
    const auto all = cache.kept == Kept::int4 ? expand_all_int4 : expand_all_fp8;
    all(cache, tile, head, reinterpret_cast<uint16_t *>(keys), reinterpret_cast<uint16_t *>(values));
}

} // namespace penstock
