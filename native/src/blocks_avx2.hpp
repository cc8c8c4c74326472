// ggml's blocks, part of kernels_avx2.cpp.
namespace penstock {
namespace {

// Eight values of two bytes as floats.
inline __m256 halves(const void *eight) { return _mm256_cvtph_ps(_mm_load_si128(static_cast<const __m128i *>(eight))); }

// A block's integers times its scales (eight in float16) and those of the rows, of which each has `blocks`.
template <int R> void end_block(const Tile &tile, int64_t block, int64_t blocks, const __m256i (&counts)[R], const void *scales,
                                __m256 (&sums)[R]) {
    const __m256 scale = halves(scales);
    for (int r = 0; r < R; ++r) {
        const __m256 found = _mm256_mul_ps(_mm256_cvtepi32_ps(counts[r]), scale);
        sums[r] = _mm256_fmadd_ps(found, _mm256_set1_ps(tile.scales[r * blocks + block]), sums[r]);
    }
}

// Bytes are taken as two planes of nibbles, as of int8.
template <int R> void q8_0_part(const Tile &tile, int part) {
    const int64_t groups = tile.shape->groups();
    const uint8_t *weights = tile.panel;
    const uint32_t *values = tile.values;
    __m256 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
    for (int64_t group = 0; group < groups; ++group) {
        __m256i low[R], high[R], counts[R];
        for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_si256();
        for (int64_t line = 0; line < kLinesTogether; ++line, weights += 2 * kLine, values += R) {
            if (part < 2) ask(tile, (group * 17 + 2 * line) + part);
            const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i *>(weights + part * 32));
            const __m256i lows = nibbles(bytes, false), highs = nibbles(bytes, true);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const __m256i four = broadcast(values + r);
                low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(lows, four));
                high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(highs, four));
            }
        }
        for (int r = 0; r < R; ++r) {
            const __m256i start = _mm256_set1_epi32(128 * tile.sums[r * groups + group]);
            counts[r] = _mm256_add_epi32(start, _mm256_slli_epi32(widened(high[r]), 4));
            counts[r] = _mm256_add_epi32(counts[r], widened(low[r]));
        }
        end_block<R>(tile, group, groups, counts, weights + part * 16, sums);
        weights += kLine;
    }
    for (int r = 0; r < R; ++r) store(tile, r, part * kVector, sums[r]);
}

// A group's sums fit 16 bits, so that its multiples cost one product for all of it.
template <int R> void q4_k_part(const Tile &tile, int part) {
    const int64_t groups = tile.shape->groups(), blocks = tile.shape->scale_groups();
    const bool high = part >= 2;
    const uint8_t *weights = tile.panel;
    const uint32_t *values = tile.values;
    __m256 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
    for (int64_t block = 0; block < blocks; ++block) {
        const uint8_t *scales = weights + part * 16;
        __m256i totals[R], offsets[R];
        for (int r = 0; r < R; ++r) totals[r] = offsets[r] = _mm256_setzero_si256();
        weights += 2 * kLine;
        for (int64_t group = 0; group < 8; ++group) {
            const __m256i both = _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i *>(weights + part * 16)));
            const __m256i offset = _mm256_srli_epi32(both, 8);
            const __m256i one = _mm256_and_si256(both, _mm256_set1_epi32(255));
            const __m256i times = _mm256_or_si256(one, _mm256_slli_epi32(one, 16));
            weights += kLine;
            __m256i pairs[R];
            for (int r = 0; r < R; ++r) pairs[r] = _mm256_setzero_si256();
            for (int64_t line = 0; line < kLinesTogether; ++line, weights += kLine, values += R) {
                if (part == 0) ask(tile, block * kQ4kLines + 3 + group * 9 + line);
                const __m256i half = _mm256_load_si256(reinterpret_cast<const __m256i *>(weights + part % 2 * 32));
                const __m256i few = nibbles(half, high);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r)
                    pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(few, broadcast(values + r)));
            }
            for (int r = 0; r < R; ++r) {
                totals[r] = _mm256_add_epi32(totals[r], _mm256_madd_epi16(pairs[r], times));
                // The upper half of a lane of offsets is 0, whatever it meets.
                const __m256i sum = _mm256_set1_epi32(tile.sums[r * groups + block * 8 + group]);
                offsets[r] = _mm256_add_epi32(offsets[r], _mm256_madd_epi16(offset, sum));
            }
        }
        end_block<R>(tile, block, blocks, totals, scales, sums);
        end_block<R>(tile, block, blocks, offsets, scales + kLine, sums);
    }
    for (int r = 0; r < R; ++r) store(tile, r, part * kVector, sums[r]);
}

// Of two lines at a time the sums of q in 0..63 fit 16 bits: 2 · 2 · 63 · 127 is below 2^15.
template <int R> void q6_k_part(const Tile &tile, int part) {
    const int64_t groups = tile.shape->groups(), blocks = tile.shape->scale_groups();
    const bool high = part >= 2;
    const uint8_t *weights = tile.panel;
    const uint32_t *values = tile.values;
    __m256 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
    for (int64_t block = 0; block < blocks; ++block) {
        const uint8_t *scales = weights + part * 16;
        __m256i totals[R], offsets[R];
        for (int r = 0; r < R; ++r) totals[r] = offsets[r] = _mm256_setzero_si256();
        weights += kLine;
        for (int64_t half = 0; half < 16; ++half) {
            const uint8_t *multiples = weights + half % 2 * 32 + part * kVector;
            const __m256i one = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(multiples)));
            const __m256i times = _mm256_or_si256(_mm256_and_si256(one, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(one, 16));
            for (int64_t two = 0; two < 2; ++two) {
                const int64_t line = half % 2 * 4 + two * 2;
                const __m256i above = _mm256_load_si256(
                    reinterpret_cast<const __m256i *>(weights + (9 + line / 2) * kLine + part % 2 * 32));
                __m256i pairs[R];
                for (int r = 0; r < R; ++r) pairs[r] = _mm256_setzero_si256();
                for (int64_t each = 0; each < 2; ++each, values += R) {
                    if (part == 0) ask(tile, block * kQ6kLines + 2 + half / 2 * 13 + line + each);
                    const __m256i low = nibbles(_mm256_load_si256(reinterpret_cast<const __m256i *>(
                                                    weights + (1 + line + each) * kLine + part % 2 * 32)),
                                                high);
                    const int shift = static_cast<int>(each) * 4 + (high ? 2 : 0);
                    const __m256i two_bits = _mm256_and_si256(_mm256_srl_epi16(above, _mm_cvtsi32_si128(shift)), _mm256_set1_epi8(3));
                    const __m256i six = _mm256_or_si256(low, _mm256_slli_epi16(two_bits, 4));
#pragma GCC unroll 4
                    for (int r = 0; r < R; ++r)
                        pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(six, broadcast(values + r)));
                }
                for (int r = 0; r < R; ++r)
                    totals[r] = _mm256_add_epi32(totals[r], _mm256_madd_epi16(pairs[r], times));
            }
            for (int r = 0; r < R; ++r) {
                const __m256i sum = _mm256_set1_epi32(tile.sums[r * groups + block * 16 + half] & 0xffff);
                offsets[r] = _mm256_add_epi32(offsets[r], _mm256_madd_epi16(one, sum));
            }
            if (half % 2 == 1) weights += 13 * kLine;
        }
        for (int r = 0; r < R; ++r) totals[r] = _mm256_add_epi32(totals[r], _mm256_slli_epi32(offsets[r], 5));
        end_block<R>(tile, block, blocks, totals, scales, sums);
    }
    for (int r = 0; r < R; ++r) store(tile, r, part * kVector, sums[r]);
}

template <int R> struct NibbleQ8_0 {
    static void run(const Tile &tile) {
        for (int part = 0; part < 4; ++part) q8_0_part<R>(tile, part);
    }
};

template <int R> struct NibbleQ4K {
    static void run(const Tile &tile) {
        for (int part = 0; part < 4; ++part) q4_k_part<R>(tile, part);
    }
};

template <int R> struct NibbleQ6K {
    static void run(const Tile &tile) {
        for (int part = 0; part < 4; ++part) q6_k_part<R>(tile, part);
    }
};

} // namespace
} // namespace penstock
