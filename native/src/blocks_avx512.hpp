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

// What a tile has of one number for each row and part of it. How many parts there are is counted once: it takes divisions.
template <typename Value> struct PerPart {
    const Value *first;
    const int64_t parts;

    PENSTOCK_INLINE const Value &at(int r, int64_t part) const { return first[r * parts + part]; }
};

inline PerPart<int32_t> sums_of(const Tile &tile) { return {tile.sums, tile.shape->groups()}; }
inline PerPart<float> scales_of(const Tile &tile) { return {tile.scales, tile.shape->scale_groups()}; }

// A block's integers times its scales (a line of float16) and those of the rows.
template <int R>
inline void end_block(const PerPart<float> &row_scales, int64_t block, const Int32s (&counts)[R][2], const uint8_t *scales,
                      Floats (&sums)[R][2]) {
    const Floats scale[2] = {_mm512_cvtph_ps(half_line(scales, 0)), _mm512_cvtph_ps(half_line(scales, 1))};
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        const Floats factor = _mm512_set1_ps(row_scales.at(r, block));
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

inline Int32s everywhere(int32_t value) { return reinterpret_cast<Int32s>(_mm512_set1_epi32(value)); }

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
        // Minus the sums of values, which is what the weights' 128 adds up to.
        const PerPart<int32_t> value_sums = sums_of(tile);
        const PerPart<float> row_scales = scales_of(tile);
        for (int64_t group = 0; group < row_scales.parts; ++group) {
            Int32s counts[R][2];
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) counts[r][0] = counts[r][1] = everywhere(value_sums.at(r, group) * 128);
            for (int64_t line = 0; line < 8; ++line, weights += 2 * kLine, values += R) {
                asker.ask();
                asker.ask();
                add_halves<R>(_mm512_load_si512(weights), _mm512_load_si512(weights + kLine), values, counts);
            }
            asker.ask();
            end_block<R>(row_scales, group, counts, weights, sums);
            weights += kLine;
        }
        store_all<R>(tile, sums);
    }
};

// Sums of q − 8 fit 16 bits, so that a group's multiple costs one product. What 8 makes of it, and offsets, which are products
// of sums of values alone, come behind the block, for two groups at a time.
template <int R> struct Q4K {
    static void run(const Tile &tile) {
        const uint8_t *lines = tile.panel;
        const uint32_t *values = tile.values;
        Asker asker(tile);
        Floats sums[R][2];
        none<R>(sums);
        const PerPart<int32_t> value_sums = sums_of(tile);
        const PerPart<float> row_scales = scales_of(tile);
        for (int64_t block = 0; block < row_scales.parts; ++block, lines += kQ4kLines * kLine) {
            Int32s totals[R][2], offsets[R][2];
            none<R>(totals);
            asker.ask();
            asker.ask();
            for (int64_t group = 0; group < 8; ++group, values += 8 * R)
                add_group(value_sums, block * 8 + group, lines + (2 + 9 * group) * kLine, values, asker, totals);
            none<R>(offsets);
            for (int64_t group = 0; group < 8; group += 2)
                add_offsets(value_sums, block * 8 + group, lines + (2 + 9 * group) * kLine, totals, offsets);
            end_block<R>(row_scales, block, totals, lines, sums);
            end_block<R>(row_scales, block, offsets, lines + kLine, sums);
        }
        store_all<R>(tile, sums);
    }

private:
    PENSTOCK_INLINE static void add_group(const PerPart<int32_t> &value_sums, int64_t group, const uint8_t *lines,
                                          const uint32_t *values, Asker &asker, Int32s (&totals)[R][2]) {
        const __m512i nibble = _mm512_set1_epi8(15);
        const __m512i times[2] = {
            reinterpret_cast<__m512i>(wide_pairs(lines, 0) & 255), reinterpret_cast<__m512i>(wide_pairs(lines, 1) & 255)};
        Int32s counts[R][2];
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) counts[r][0] = counts[r][1] = everywhere(value_sums.at(r, group) * 8);
        asker.ask();
        for (int64_t line = 1; line < 9; ++line, values += R) {
            asker.ask();
            const __m512i bytes = _mm512_load_si512(lines + line * kLine);
            const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
            add_halves<R>(_mm512_and_si512(bytes, nibble), upper, values, counts);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r)
            for (int half = 0; half < 2; ++half)
                totals[r][half] = Int16Product::add(totals[r][half], counts[r][half], times[half]);
    }

    PENSTOCK_INLINE static void add_offsets(const PerPart<int32_t> &value_sums, int64_t group, const uint8_t *lines,
                                            Int32s (&totals)[R][2], Int32s (&offsets)[R][2]) {
        __m512i eights[2], offset_times[2];
        for (int half = 0; half < 2; ++half) {
            const __m512i both = reinterpret_cast<__m512i>(
                (wide_pairs(lines, half) & 0xffff) | wide_pairs(lines + 9 * kLine, half) << 16);
            const __m512i multiples = _mm512_and_si512(both, _mm512_set1_epi16(255));
            eights[half] = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(multiples, 3));
            offset_times[half] = _mm512_srli_epi16(both, 8);
        }
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const auto first = static_cast<uint32_t>(value_sums.at(r, group));
            const auto second = static_cast<uint32_t>(value_sums.at(r, group + 1));
            const Int32s pair = everywhere(static_cast<int32_t>((first & 0xffff) | second << 16));
            for (int half = 0; half < 2; ++half) {
                totals[r][half] = Int16Product::add(totals[r][half], pair, eights[half]);
                offsets[r][half] = Int16Product::add(offsets[r][half], pair, offset_times[half]);
            }
        }
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
        const PerPart<int32_t> value_sums = sums_of(tile);
        const PerPart<float> row_scales = scales_of(tile);
        for (int64_t block = 0; block < row_scales.parts; ++block) {
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
                        counts[r][0] = counts[r][1] = everywhere(value_sums.at(r, block * 16 + group * 2 + part) * 32);
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
            end_block<R>(row_scales, block, totals, scales, sums);
        }
        store_all<R>(tile, sums);
    }
};

} // namespace
} // namespace penstock
