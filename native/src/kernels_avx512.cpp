// For processors with AVX-512 and VNNI, with BF16 or without: some that have it multiply floats twice as fast. A vector is 16
// outputs, so a lane's sum is the same in every tile.
#include "avx512.hpp"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

// Bits of the largest magnitude: as integers, infinity and then NaN are behind all finite values.
uint32_t largest_of(const float *values, int64_t count) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most[4] = {};
    const auto meet = [&](int i, __m512 x) {
        most[i] = _mm512_max_epu32(most[i], _mm512_and_si512(_mm512_castps_si512(x), magnitude));
    };
    int64_t at = 0;
    for (; at + 64 <= count; at += 64)
        for (int i = 0; i < 4; ++i) meet(i, _mm512_loadu_ps(values + at + i * 16));
    for (; at < count; at += 16) meet(0, _mm512_maskz_loadu_ps(first(count - at), values + at));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3])));
}

void quantize(
    const float *row, int64_t inputs, int64_t padded, int64_t groups, int8_t *values, float *scale, int32_t *sums) {
    const uint32_t largest = largest_of(row, inputs);
    *scale = quantized_scale(largest);
    const int64_t group = padded / groups;
    if (!(*scale > 0.0f)) {
        std::memset(values, 0, static_cast<size_t>(padded));
        std::memset(sums, 0, static_cast<size_t>(groups) * 4);
        return;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / float_of(largest));
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), ones = _mm512_set1_epi8(1);
    for (int64_t g = 0; g < groups; ++g) {
        __m512i sum = _mm512_setzero_si512();
        int64_t i = g * group;
        const int64_t end = i + group, there = std::min(end, inputs);
        for (; i + 64 <= there; i += 64) {
            const auto rounded = [&](int64_t at) {
                return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(row + i + at), inverse));
            };
            const __m512i low = _mm512_packs_epi32(rounded(0), rounded(16)), high = _mm512_packs_epi32(rounded(32), rounded(48));
            const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
            sum = _mm512_dpbusd_epi32(sum, ones, bytes);
            _mm512_storeu_si512(values + i, bytes);
        }
        for (; i < end; i += 16) {
            const __m512 x = _mm512_maskz_loadu_ps(i < inputs ? first(inputs - i) : 0, row + i);
            const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
            sum = _mm512_add_epi32(sum, q);
            _mm_mask_storeu_epi8(values + i, first(end - i), _mm512_cvtepi32_epi8(q));
        }
        sums[g] = _mm512_reduce_add_epi32(sum);
    }
}

// x times the part of a normal distribution that is below x. That part is 1 / 2 + x · q(t), with x² scaled to t in −1 to 1; q is a
// polynomial with the least greatest error of the part, 2e-7. Below −5.2 the part is 0, above 5.2 it is 1.
inline __m512 exact_gelu(__m512 x) {
    const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-5.2f), _mm512_min_ps(_mm512_set1_ps(5.2f), x));
    const __m512 t = _mm512_fmadd_ps(_mm512_mul_ps(bounded, bounded), _mm512_set1_ps(7.39644989e-2f), _mm512_set1_ps(-1.0f));
    __m512 sum = _mm512_set1_ps(4.98657755e-4f);
    for (const float factor : {-7.28655374e-4f, -3.5000834e-4f, -4.81230207e-4f, 3.85148847e-3f, -5.63474931e-3f, 7.27981376e-3f,
                               -1.2045444e-2f, 1.83614492e-2f, -2.48437785e-2f, 3.19290608e-2f, -3.99165414e-2f, 5.00278994e-2f,
                               -6.77440837e-2f, 1.35949969e-1f})
        sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(factor));
    const __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-5.2f), _CMP_NLT_UQ);
    return _mm512_maskz_mul_ps(above, x, _mm512_fmadd_ps(bounded, sum, _mm512_set1_ps(0.5f)));
}

void exact_gelu(float *values, int64_t count) {
    int64_t i = 0;
    for (; i + 64 <= count; i += 64)
#pragma GCC unroll 4
        for (int at = 0; at < 64; at += 16) _mm512_storeu_ps(values + i + at, exact_gelu(_mm512_loadu_ps(values + i + at)));
    for (; i < count; i += 16)
        _mm512_mask_storeu_ps(values + i, first(count - i), exact_gelu(_mm512_maskz_loadu_ps(first(count - i), values + i)));
}

// Loops over rows are unrolled, all of them: an array that one indexes at run time is kept in memory.
//
// The sums of all steps of a tile, with one product for each line of weights, row and step.
template <typename Product, int R, typename Vector>
inline const uint8_t *add_up(const Tile &tile, Vector (&sums)[R][2]) {
    const uint8_t *weights = tile.panel;
    const uint32_t *values = tile.values;
    const int64_t steps = tile.shape->steps();
    Asker asker(tile);
    for (int64_t k = 0; k < steps; ++k, weights += 2 * kLine, values += R) {
        asker.ask();
        asker.ask();
        const __m512i low = _mm512_load_si512(weights), high = _mm512_load_si512(weights + kLine);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const __m512i unit = broadcast(values + r);
            sums[r][0] = Product::add(sums[r][0], low, unit);
            sums[r][1] = Product::add(sums[r][1], high, unit);
        }
    }
    return weights;
}

template <typename Product, int R> struct Floating {
    static void run(const Tile &tile) {
        __m512 sums[R][2];
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        add_up<Product>(tile, sums);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) store(tile, r, sums[r][0], sums[r][1]);
    }
};

template <int R> using Float32 = Floating<Float32Product, R>;
template <int R> using Bfloat16 = Floating<Bfloat16Product, R>;

// The same sums from floats: a line of weights is widened once for all rows. Of each pair the second product comes first, as
// in Bfloat16Product.
template <int R> struct WideBfloat16 {
    static void run(const Tile &tile) {
        const uint8_t *weights = tile.panel;
        const auto *values = reinterpret_cast<const float *>(tile.values);
        const int64_t steps = tile.shape->steps();
        Asker asker(tile);
        __m512 sums[R][2];
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        for (int64_t k = 0; k < steps; ++k, weights += 2 * kLine, values += 2 * R) {
            asker.ask();
            asker.ask();
            const __m512i low = _mm512_load_si512(weights), high = _mm512_load_si512(weights + kLine);
            const __m512 first[2] = {first_of(low), first_of(high)}, second[2] = {second_of(low), second_of(high)};
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const __m512 x = _mm512_set1_ps(values[r]), y = _mm512_set1_ps(values[R + r]);
                for (int half = 0; half < 2; ++half)
                    sums[r][half] = _mm512_fmadd_ps(first[half], x, _mm512_fmadd_ps(second[half], y, sums[r][half]));
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) store(tile, r, sums[r][0], sums[r][1]);
    }
};

// Whole rows' sums of int8 products begin at what makes the weights' 128 zero.
template <int R> inline void begin(const Tile &tile, Int32s (&counts)[R][2]) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) counts[r][0] = counts[r][1] = reinterpret_cast<Int32s>(broadcast(tile.totals + r));
}

// They end as floats, times the scales of outputs and rows.
template <int R> inline void end(const Tile &tile, Int32s (&counts)[R][2], const uint8_t *scales) {
    const __m512 low = _mm512_load_ps(scales), high = _mm512_load_ps(scales + kLine);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        const __m512 scale = _mm512_set1_ps(tile.scales[r]);
        store(tile, r, _mm512_mul_ps(_mm512_mul_ps(as_floats(counts[r][0]), low), scale),
              _mm512_mul_ps(_mm512_mul_ps(as_floats(counts[r][1]), high), scale));
    }
}

template <int R> struct Int8 {
    static void run(const Tile &tile) {
        Int32s counts[R][2];
        begin(tile, counts);
        end(tile, counts, add_up<Int8Product>(tile, counts));
    }
};

template <int R, bool Leave> void unpacked_int4(const Tile &tile) {
    const int64_t pairs = tile.shape->groups() / 2;
    const __m512i nibble = _mm512_set1_epi8(15);
    const uint8_t *weights = tile.panel;
    const uint32_t *values = tile.values;
    uint8_t *unpacked = tile.unpacked;
    Asker asker(tile);
    Int32s counts[R][2];
    begin(tile, counts);
    for (int64_t pair = 0; pair < pairs; ++pair) {
        asker.ask();
        const __m512i multiples = _mm512_load_si512(weights);
        weights += kLine;
        for (int group = 0; group < 2; ++group) {
            const Unpack low(multiples, 2 * group), high(multiples, 2 * group + 1);
            for (int64_t line = 0; line < kInt4Group / 4; ++line, weights += kLine, values += R) {
                asker.ask();
                const __m512i both = _mm512_load_si512(weights);
                const __m512i lows = low(_mm512_and_si512(both, nibble));
                const __m512i highs = high(_mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
                if (Leave) {
                    _mm512_store_si512(unpacked, lows);
                    _mm512_store_si512(unpacked + kLine, highs);
                    unpacked += 2 * kLine;
                }
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    const __m512i unit = broadcast(values + r);
                    counts[r][0] = Int8Product::add(counts[r][0], lows, unit);
                    counts[r][1] = Int8Product::add(counts[r][1], highs, unit);
                }
            }
        }
    }
    if (Leave) std::memcpy(unpacked, weights, 2 * kLine);
    end(tile, counts, weights);
}

// For few rows: a group's nibbles are added up as they are, and its sums, which fit 16 bits with their zero, are multiplied.
template <int R> void grouped_int4(const Tile &tile) {
    const int64_t groups = tile.shape->groups();
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i most = _mm512_set1_epi32(kMostMultiple), seven = _mm512_set1_epi32(kZeroAtSeven);
    const uint8_t *weights = tile.panel;
    const uint32_t *values = tile.values;
    Asker asker(tile);
    __m512i multiples = _mm512_setzero_si512();
    Int32s totals[R][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) totals[r][0] = totals[r][1] = Int32s{};
    for (int64_t group = 0; group < groups; ++group) {
        if (group % 2 == 0) {
            asker.ask();
            multiples = _mm512_load_si512(weights);
            weights += kLine;
        }
        const __m512i others = _mm512_srli_epi32(multiples, 8);
        const __mmask16 sevens[2] = {_mm512_test_epi32_mask(multiples, seven), _mm512_test_epi32_mask(others, seven)};
        Int32s counts[R][2];
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
            const Int32s sum = reinterpret_cast<Int32s>(broadcast(tile.sums + r * groups + group));
            for (int half = 0; half < 2; ++half)
                counts[r][half] = reinterpret_cast<Int32s>(_mm512_mask_mov_epi32(
                    reinterpret_cast<__m512i>(sum * 8), sevens[half], reinterpret_cast<__m512i>(sum * 7)));
        }
        for (int64_t line = 0; line < kInt4Group / 4; ++line, weights += kLine, values += R) {
            asker.ask();
            const __m512i both = _mm512_load_si512(weights);
            const __m512i lows = _mm512_and_si512(both, nibble);
            const __m512i highs = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) {
                const __m512i unit = broadcast(values + r);
                counts[r][0] = Int8Product::add(counts[r][0], lows, unit);
                counts[r][1] = Int8Product::add(counts[r][1], highs, unit);
            }
        }
        const __m512i times[2] = {_mm512_and_si512(multiples, most), _mm512_and_si512(others, most)};
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r)
            for (int half = 0; half < 2; ++half)
                totals[r][half] = Int16Product::add(totals[r][half], counts[r][half], times[half]);
        multiples = _mm512_srli_epi32(multiples, 16);
    }
    end(tile, totals, weights);
}

// As many rows as registers have room for their sums, beside what is multiplied: of whole rows, of groups and of rows, and of
// groups whose rows' sums, met once a group, may be in memory.
constexpr int64_t kRows = 12, kBothRows = 6, kGroupedRows = 8;

template <int R> struct Int4 {
    static void run(const Tile &tile) {
        if (tile.unpacked) return unpacked_int4<R, true>(tile);
        if constexpr (R <= kBothRows) grouped_int4<R>(tile);
        else unpacked_int4<R, false>(tile);
    }
};

// 16 values of two bytes: half of a line.
inline __m256i half_line(const uint8_t *line, int half) {
    return _mm256_load_si256(reinterpret_cast<const __m256i *>(line + half * 32));
}

// 16 scales as floats.
inline __m512 scales_in(const Shape &shape, __m256i halves) {
    if (shape.half_scales()) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepi16_epi32(halves), 16));
}

// Adds the products of four inputs' integers, of the panel's lower and upper half.
template <int R> inline void add_halves(__m512i low, __m512i high, const uint32_t *values, Int32s (&counts)[R][2]) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        const __m512i unit = broadcast(values + r);
        counts[r][0] = Int8Product::add(counts[r][0], low, unit);
        counts[r][1] = Int8Product::add(counts[r][1], high, unit);
    }
}

// What mxfp4's codes stand for.
inline __m512i decoded(__m512i codes) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(kFp4Codes))), codes);
}

// The same of four lines of mxfp4's codes, whose numbers are all as they are meant.
template <int R> inline void add_codes(const uint8_t *weights, const uint32_t *values, Int32s (&counts)[R][2]) {
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int four = 0; four < 4; ++four) {
        const __m512i both = _mm512_load_si512(weights + four * kLine);
        add_halves<R>(decoded(_mm512_and_si512(both, nibble)),
                      decoded(_mm512_and_si512(_mm512_srli_epi16(both, 4), nibble)), values + four * R, counts);
    }
}

// The same of `Bits` lines for 16 inputs. Those of the upper half are left where they stand in their bytes, above the others,
// so that their sums are 2^Bits times what is meant.
template <int R, int Bits>
inline void add_sixteen(const uint8_t *weights, const uint32_t *values, Int32s (&counts)[R][2]) {
    const __m512i lower = _mm512_set1_epi8((1 << Bits) - 1);
    const __m512i upper = _mm512_set1_epi8(static_cast<char>(((1 << Bits) - 1) << Bits));
    __m512i lines[Bits];
    for (int i = 0; i < Bits; ++i) lines[i] = _mm512_load_si512(weights + i * kLine);
    const auto add = [&](__m512i both, int four) {
        add_halves<R>(_mm512_and_si512(both, lower), _mm512_and_si512(both, upper), values + four * R, counts);
    };
    if constexpr (Bits == 2) {
        add(lines[0], 0);
        add(_mm512_srli_epi16(lines[0], 4), 1);
        add(lines[1], 2);
        add(_mm512_srli_epi16(lines[1], 4), 3);
    } else {
        for (int four = 0; four < (Bits == 3 ? 3 : 4); ++four) add(lines[four], four);
    }
    if constexpr (Bits == 3) {
        // a | (b & c)
        constexpr int kOrAnd = 0xf8;
        const __m512i low = _mm512_and_si512(_mm512_srli_epi16(lines[0], 6), _mm512_set1_epi8(3));
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(lines[1], 3), _mm512_set1_epi8(3 << 3));
        add_halves<R>(
            _mm512_ternarylogic_epi32(low, _mm512_srli_epi16(lines[2], 4), _mm512_set1_epi8(4), kOrAnd),
            _mm512_ternarylogic_epi32(high, _mm512_srli_epi16(lines[2], 2), _mm512_set1_epi8(4 << 3), kOrAnd),
            values + 3 * R, counts);
    }
}

template <int R, bool ZeroPoints, int Bits, bool Coded> void grouped(const Tile &tile) {
    const Shape &shape = *tile.shape;
    const int64_t groups = shape.groups(), lines = shape.group_lines();
    constexpr int kTimes = Coded ? 1 : 1 << Bits;
    __m512 sums[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    const uint8_t *weights = tile.panel;
    const uint32_t *values = tile.values;
    Asker asker(tile);
    for (int64_t group = 0; group < groups; ++group) {
        const uint8_t *tail = weights + lines * kLine;
        Int32s counts[R][2];
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            counts[r][0] = counts[r][1] = reinterpret_cast<Int32s>(broadcast(tile.sums + r * groups + group));
            if (ZeroPoints)
                for (int half = 0; half < 2; ++half)
                    counts[r][half] *= reinterpret_cast<Int32s>(_mm512_cvtepi16_epi32(half_line(tail + kLine, half)));
            counts[r][1] *= kTimes;
        }
        for (int64_t line = 0; line < lines; line += Bits, weights += Bits * kLine, values += 4 * R) {
            for (int i = 0; i < Bits; ++i) asker.ask();
            if constexpr (Coded) add_codes<R>(weights, values, counts);
            else add_sixteen<R, Bits>(weights, values, counts);
        }
        asker.ask();
        if (ZeroPoints) asker.ask();
        const __m512 scale[2] = {
            scales_in(shape, half_line(tail, 0)),
            _mm512_mul_ps(scales_in(shape, half_line(tail, 1)), _mm512_set1_ps(1.0f / kTimes))};
        weights = tail + (ZeroPoints ? 2 : 1) * kLine;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const __m512 factor = _mm512_set1_ps(tile.scales[r * groups + group]);
            for (int half = 0; half < 2; ++half)
                sums[r][half] =
                    _mm512_fmadd_ps(_mm512_mul_ps(as_floats(counts[r][half]), scale[half]), factor, sums[r][half]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) store(tile, r, sums[r][0], sums[r][1]);
}

template <int R, int Bits> struct IntGrouped {
    static void run(const Tile &tile) {
        if (tile.shape->zero_points) grouped<R, true, Bits, false>(tile);
        else grouped<R, false, Bits, false>(tile);
    }
};

template <int R> struct Mxfp4 {
    static void run(const Tile &tile) { grouped<R, false, 4, true>(tile); }
};

template <int R> using Int4Grouped = IntGrouped<R, 4>;
template <int R> using Int3Grouped = IntGrouped<R, 3>;
template <int R> using Int2Grouped = IntGrouped<R, 2>;

} // namespace
} // namespace penstock

#include "blocks_avx512.hpp"

namespace penstock {
namespace {

template <template <int> class Kernel, int R> void tile_of(const Tile &tile) {
    if (tile.rows == R) Kernel<R>::run(tile);
    else if constexpr (R > 1) tile_of<Kernel, R - 1>(tile);
}

// Enough chains of products to hide how long each takes.
constexpr int kChains = 24;

// `rounds` times a product in each chain, with operands that the compiler cannot see through.
template <typename Sum, typename Product> void repeat(int64_t rounds, Sum zero, __m512i left, const Product &product) {
    Sum sums[kChains];
    for (int i = 0; i < kChains; ++i) sums[i] = zero;
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile("" : "+v"(left));
#pragma GCC unroll 24
        for (int i = 0; i < kChains; ++i) sums[i] = product(sums[i], left);
    }
    // All of them are used, without any having to be in memory before.
    Sum all = sums[0];
#pragma GCC unroll 24
    for (int i = 1; i < kChains; ++i) all = all + sums[i];
    asm volatile("" : : "v"(all));
}

int64_t compute_int8(int64_t rounds) {
    repeat(rounds, _mm512_setzero_si512(), _mm512_set1_epi8(1),
           [](__m512i sum, __m512i x) { return _mm512_dpbusd_epi32(sum, x, x); });
    return rounds * kChains * 64 * 2;
}

int64_t compute_bfloat16(int64_t rounds) {
    repeat(rounds, _mm512_setzero_ps(), _mm512_set1_epi16(0x3f80), [](__m512 sum, __m512i x) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(x));
    });
    return rounds * kChains * 32 * 2;
}

int64_t compute_float32(int64_t rounds) {
    repeat(rounds, _mm512_setzero_ps(), _mm512_castps_si512(_mm512_set1_ps(1.0f)), [](__m512 sum, __m512i x) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(x), sum);
    });
    return rounds * kChains * 16 * 2;
}

} // namespace

const Kernels *avx512_vnni_kernels() {
    static const Kernels set = {
        "avx512_vnni", quantize,
        {tile_of<Float32, kRows>, tile_of<WideBfloat16, kRows>, tile_of<Int8, kRows>, tile_of<Int4, kRows>,
         tile_of<Int4Grouped, kGroupedRows>, tile_of<Int4Grouped, kGroupedRows>, tile_of<Int3Grouped, kGroupedRows>,
         tile_of<Int3Grouped, kGroupedRows>, tile_of<Int2Grouped, kGroupedRows>, tile_of<Int2Grouped, kGroupedRows>,
         tile_of<Mxfp4, kGroupedRows>, tile_of<Q8_0, kBothRows>, tile_of<Q4K, kBothRows>, tile_of<Q6K, kBothRows>},
        {kRows, kRows, kRows, kRows, kGroupedRows, kGroupedRows, kGroupedRows, kGroupedRows, kGroupedRows, kGroupedRows,
         kGroupedRows, kBothRows, kBothRows, kBothRows}, kBothRows, true,
        attend_block_avx512_vnni, expand_avx512, keys_as_values_avx512, {compute_int8, compute_float32, compute_float32},
        {}, nullptr, exact_gelu};
    return &set;
}

const Kernels *avx512_kernels() {
    static const Kernels set = [] {
        Kernels with = *avx512_vnni_kernels();
        with.name = "avx512";
        with.tile[static_cast<int>(Format::bfloat16)] = tile_of<Bfloat16, kRows>;
        with.wide_bfloat16 = false;
        with.attend_block = attend_block_avx512;
        with.compute[1] = compute_bfloat16;
        return with;
    }();
    return &set;
}

} // namespace penstock
