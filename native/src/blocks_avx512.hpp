// ggml's blocks, part of kernels_avx512.cpp.
namespace penstock {
namespace {

using Floats = __m512;

// 16 bytes, or values of two, that belong to the outputs of half a panel.
inline Int32s wide_bytes(const uint8_t *bytes) {
    return reinterpret_cast<Int32s>(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i *>(bytes))));
}
inline Int32s wide_pairs(const uint8_t *line, int half) {
    return reinterpret_cast<Int32s>(_mm512_cvtepi16_epi32(half_line(line, half)));
}

// A block's integers times its scales (a line of float16) and those of the rows.
template <int R>
inline void end_block(const Tile &tile, int64_t block, const Int32s (&counts)[R][2], const uint8_t *scales, Floats (&sums)[R][2]) {
    const Floats scale[2] = {_mm512_cvtph_ps(half_line(scales, 0)), _mm512_cvtph_ps(half_line(scales, 1))};
    const int64_t blocks = tile.shape->scale_groups();
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        const Floats factor = _mm512_set1_ps(tile.scales[r * blocks + block]);
        for (int half = 0; half < 2; ++half)
            sums[r][half] = _mm512_fmadd_ps(_mm512_mul_ps(as_floats(counts[r][half]), scale[half]), factor, sums[r][half]);
    }
}

template <int R> inline void none(Floats (&sums)[R][2]) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
}

template <int R> inline void none(Int32s (&sums)[R][2]) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Int32s{};
}

// The sum of a group of a row's values, or rather minus it.
inline Int32s sum_of(const Tile &tile, int r, int64_t group) {
    return reinterpret_cast<Int32s>(broadcast(tile.sums + r * tile.shape->groups() + group));
}

template <int R> inline void store_all(const Tile &tile, const Floats (&sums)[R][2]) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) store(tile, r, sums[r][0], sums[r][1]);
}

template <int R> struct Q8_0 {
    static void run(const Tile &tile) {
        const uint8_t *weights = tile.panel;
        const uint32_t *values = tile.values;
        Asker asker(tile);
        Floats sums[R][2];
        none<R>(sums);
        for (int64_t group = 0; group < tile.shape->groups(); ++group) {
            Int32s counts[R][2];
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) counts[r][0] = counts[r][1] = sum_of(tile, r, group) * 128;
            for (int64_t line = 0; line < 8; ++line, weights += 2 * kLine, values += R) {
                asker.ask();
                asker.ask();
                add_halves<R>(_mm512_load_si512(weights), _mm512_load_si512(weights + kLine), values, counts);
            }
            asker.ask();
            end_block<R>(tile, group, counts, weights, sums);
            weights += kLine;
        }
        store_all<R>(tile, sums);
    }
};

template <int R> struct Q4K {
    static void run(const Tile &tile) {
        const __m512i nibble = _mm512_set1_epi8(15);
        const uint8_t *weights = tile.panel;
        const uint32_t *values = tile.values;
        Asker asker(tile);
        Floats sums[R][2];
        none<R>(sums);
        for (int64_t block = 0; block < tile.shape->scale_groups(); ++block) {
            const uint8_t *scales = weights;
            Int32s totals[R][2], offsets[R][2];
            none<R>(totals);
            none<R>(offsets);
            asker.ask();
            asker.ask();
            weights += 2 * kLine;
            for (int64_t group = 0; group < 8; ++group) {
                const Int32s both[2] = {wide_pairs(weights, 0), wide_pairs(weights, 1)};
                Int32s counts[R][2];
                none<R>(counts);
                asker.ask();
                weights += kLine;
                for (int64_t line = 0; line < 8; ++line, weights += kLine, values += R) {
                    asker.ask();
                    const __m512i bytes = _mm512_load_si512(weights);
                    add_halves<R>(_mm512_and_si512(bytes, nibble), _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble), values,
                                counts);
                }
#pragma GCC unroll 6
                for (int r = 0; r < R; ++r)
                    for (int half = 0; half < 2; ++half) {
                        totals[r][half] += counts[r][half] * (both[half] & 255);
                        offsets[r][half] += sum_of(tile, r, block * 8 + group) * (both[half] >> 8);
                    }
            }
            end_block<R>(tile, block, totals, scales, sums);
            end_block<R>(tile, block, offsets, scales + kLine, sums);
        }
        store_all<R>(tile, sums);
    }
};

// The lower four bits of one byte below bits 4 and 5 of another.
inline __m512i six_bits(__m512i low, __m512i high) {
    constexpr int kAndOr = 0xea; // (first and second) or third
    return _mm512_ternarylogic_epi32(high, _mm512_set1_epi8(0x30), _mm512_and_si512(low, _mm512_set1_epi8(15)), kAndOr);
}

template <int R> struct Q6K {
    static void run(const Tile &tile) {
        const uint8_t *weights = tile.panel;
        const uint32_t *values = tile.values;
        Asker asker(tile);
        Floats sums[R][2];
        none<R>(sums);
        for (int64_t block = 0; block < tile.shape->scale_groups(); ++block) {
            const uint8_t *scales = weights;
            Int32s totals[R][2];
            none<R>(totals);
            asker.ask();
            weights += kLine;
            for (int64_t group = 0; group < 8; ++group, weights += 13 * kLine) {
                asker.ask();
                for (int64_t part = 0; part < 2; ++part) {
                    Int32s counts[R][2];
#pragma GCC unroll 6
                    for (int r = 0; r < R; ++r)
                        counts[r][0] = counts[r][1] = sum_of(tile, r, block * 16 + group * 2 + part) * 32;
                    for (int64_t pair = part * 2; pair < part * 2 + 2; ++pair, values += 2 * R) {
                        asker.ask();
                        asker.ask();
                        asker.ask();
                        const __m512i first = _mm512_load_si512(weights + (1 + 2 * pair) * kLine);
                        const __m512i second = _mm512_load_si512(weights + (2 + 2 * pair) * kLine);
                        const __m512i above = _mm512_load_si512(weights + (9 + pair) * kLine);
                        add_halves<R>(six_bits(first, _mm512_slli_epi16(above, 4)),
                                    six_bits(_mm512_srli_epi16(first, 4), _mm512_slli_epi16(above, 2)), values, counts);
                        add_halves<R>(six_bits(second, above),
                                    six_bits(_mm512_srli_epi16(second, 4), _mm512_srli_epi16(above, 2)), values + R, counts);
                    }
                    const Int32s times[2] = {wide_bytes(weights + part * 32), wide_bytes(weights + part * 32 + 16)};
#pragma GCC unroll 6
                    for (int r = 0; r < R; ++r)
                        for (int half = 0; half < 2; ++half) totals[r][half] += counts[r][half] * times[half];
                }
            }
            end_block<R>(tile, block, totals, scales, sums);
        }
        store_all<R>(tile, sums);
    }
};

} // namespace
} // namespace penstock
