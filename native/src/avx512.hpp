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

// Writes 32 sums of row r, with the bias, as far as there are outputs. Some processors are slow at masked stores.
inline void store(const Tile &tile, int64_t r, __m512 low, __m512 high) {
    const __m512 sums[2] = {low, high};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        float *output = tile.output.row(r) + half * 16;
        const __mmask16 mask = tile.columns > half * 16 ? first(tile.columns - half * 16) : 0;
        __m512 value = sums[half];
        if (tile.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, tile.bias + half * 16));
        if (mask == 0xffff) _mm512_storeu_ps(output, value);
        else _mm512_mask_storeu_ps(output, mask, value);
    }
}

// Asks for what is needed later; a tile does it once for each of its lines.
struct Asker {
    static constexpr uintptr_t kPage = 4096, kStart = 4 * kLine;

    const uint8_t *place;
    int64_t step;
    Ahead how;

    explicit Asker(const Tile &tile) : place(tile.ahead), step(tile.ahead_step), how(tile.ahead_how) {}
    void ask() {
        if (how == Ahead::lines_to_first) _mm_prefetch(reinterpret_cast<const char *>(place), _MM_HINT_T0);
        else if (how == Ahead::lines_once) _mm_prefetch(reinterpret_cast<const char *>(place), _MM_HINT_NTA);
        else if (how == Ahead::lines_to_second || reinterpret_cast<uintptr_t>(place) % kPage < kStart)
            _mm_prefetch(reinterpret_cast<const char *>(place), _MM_HINT_T1);
        place += step;
    }
};

// Makes a group's nibbles the bytes that int8 has: multiple · (q − zero) + 128. Two nibbles in 16 bits are multiplied at
// once, since neither product leaves its byte.
struct Unpack {
    __m512i times, offset;

    // Of the group whose multiples are byte `byte` of each output's four.
    Unpack(__m512i multiples, int byte) {
        const __m512i outputs = _mm512_set4_epi32(12 * 0x01010101, 8 * 0x01010101, 4 * 0x01010101, 0);
        const __m512i place = _mm512_add_epi8(outputs, _mm512_set1_epi8(static_cast<char>(byte)));
        const __m512i multiple = _mm512_shuffle_epi8(multiples, place);
        const __m512i bytes = _mm512_and_si512(multiple, _mm512_set1_epi8(kMostMultiple));
        const __m512i eight = _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(128)), _mm512_slli_epi16(bytes, 3));
        const __mmask64 seven = _mm512_test_epi8_mask(multiple, _mm512_set1_epi8(kZeroAtSeven));
        offset = _mm512_mask_add_epi8(eight, seven, eight, bytes);
        times = _mm512_and_si512(bytes, _mm512_set1_epi16(255));
    }

    __m512i operator()(__m512i nibbles) const { return _mm512_add_epi8(_mm512_mullo_epi16(nibbles, times), offset); }
};

} // namespace
} // namespace penstock
