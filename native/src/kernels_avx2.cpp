// For processors with AVX2 and FMA but without AVX-512. A sum of two products of bytes fits 16 bits where one of them is a
// nibble, so int8 weights are taken as two planes of nibbles. Of floats, a weight is widened once for all rows of a tile, as
// many as leave their sums in registers.
#include <cmath>

namespace penstock {
static inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
} // namespace penstock

#include "avx2.hpp"
#include "kernels_generic.hpp"

namespace penstock {
namespace {

// Outputs of a vector; a panel is four of them.
constexpr int64_t kVector = 8;
// Lines whose products can be added in 16 bits: 8 · 2 · 15 · 128 is below 2^15.
constexpr int64_t kLinesTogether = 8;

// Pairs of 16-bit sums to 32 bits.
inline __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

inline __m256i nibbles(__m256i bytes, bool high) {
    return _mm256_and_si256(high ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
}

inline void ask(const Tile &tile, int64_t line) {
    _mm_prefetch(reinterpret_cast<const char *>(tile.ahead + line * tile.ahead_step), _MM_HINT_T0);
}

// Eight sums of row r, from output `at` of the panel on.
inline void store(const Tile &tile, int r, int64_t at, __m256 sums) {
    float *output = tile.output.row(r) + at;
    alignas(32) float values[kVector];
    if (tile.bias == nullptr && tile.columns >= at + kVector) {
        _mm256_storeu_ps(output, sums);
        return;
    }
    _mm256_store_ps(values, sums);
    for (int64_t i = 0; i < kVector && at + i < tile.columns; ++i)
        output[i] = tile.bias ? values[i] + tile.bias[at + i] : values[i];
}

// The generic `end` for outputs [8 · part, 8 · part + 8) of a panel.
template <int R> void end(const Tile &tile, int part, const __m256i (&counts)[R], const uint8_t *scales) {
    const __m256 scale = _mm256_load_ps(reinterpret_cast<const float *>(scales) + part * kVector);
    for (int r = 0; r < R; ++r) {
        const __m256 sums = _mm256_mul_ps(_mm256_cvtepi32_ps(counts[r]), scale);
        store(tile, r, part * kVector, _mm256_mul_ps(sums, _mm256_set1_ps(tile.scales[r])));
    }
}

inline __m256i half_line(const uint8_t *line) { return _mm256_load_si256(reinterpret_cast<const __m256i *>(line)); }

inline __m256i shifted_right(__m256i bytes, int64_t count) { return _mm256_srl_epi16(bytes, _mm_cvtsi64_si128(count)); }

// The integers of four inputs of eight outputs, of the lower or the upper half of a panel. `lines` are those of a group, from
// these outputs on.
template <int Bits> inline __m256i integers_of(const uint8_t *lines, int64_t step, bool high) {
    if constexpr (Bits == 4) return nibbles(half_line(lines + step * kLine), high);
    const int64_t four = step % 4;
    const uint8_t *first = lines + step / 4 * Bits * kLine, *third = first + 2 * kLine;
    if constexpr (Bits == 2) {
        const __m256i pairs = half_line(first + four / 2 * kLine);
        return _mm256_and_si256(shifted_right(pairs, four % 2 * 4 + (high ? 2 : 0)), _mm256_set1_epi8(3));
    }
    if (four < 3)
        return _mm256_and_si256(shifted_right(half_line(first + four * kLine), high ? 3 : 0), _mm256_set1_epi8(7));
    const __m256i low = shifted_right(half_line(first + (high ? kLine : 0)), 6), above = shifted_right(half_line(third), high ? 5 : 4);
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(3)), _mm256_and_si256(above, _mm256_set1_epi8(4)));
}

// What mxfp4's codes stand for.
inline __m256i decoded(__m256i codes) {
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(kFp4Codes))), codes);
}

// Outputs [8 · part, 8 · part + 8) of a panel: integers are those of one half of it, lower or upper.
template <int R, int Bits, bool Coded> void grouped_part(const Tile &tile, int part) {
    const Shape &shape = *tile.shape;
    const int64_t groups = shape.groups(), lines = shape.group_lines(), steps = shape.group / 4;
    const int64_t all_lines = shape.group_bytes() / kLine;
    const bool high = part >= 2;
    const uint8_t *weights = tile.panel + part % 2 * 32;
    const uint32_t *values = tile.values;
    __m256 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
    for (int64_t group = 0; group < groups; ++group) {
        // What follows the group's lines; `weights` stands at the half of a line that its outputs' half of the bytes has.
        const auto *tail = reinterpret_cast<const __m128i *>(weights - part % 2 * 32 + lines * kLine) + part;
        __m256i counts[R];
        for (int r = 0; r < R; ++r) counts[r] = _mm256_set1_epi32(tile.sums[r * groups + group]);
        if (shape.zero_points) {
            const __m256i zeros = _mm256_cvtepi16_epi32(_mm_load_si128(tail + kLine / 16));
            for (int r = 0; r < R; ++r) counts[r] = _mm256_mullo_epi32(counts[r], zeros);
        }
        // Codes stand for numbers up to 24, of which fewer fit 16 bits.
        constexpr int64_t kTogether = Coded ? kLinesTogether / 2 : kLinesTogether;
        for (int64_t first = 0; first < steps; first += kTogether) {
            __m256i pairs[R];
            for (int r = 0; r < R; ++r) pairs[r] = _mm256_setzero_si256();
            const int64_t last = first + kTogether < steps ? first + kTogether : steps;
            for (int64_t step = first; step < last; ++step, values += R) {
                if (part == 0) ask(tile, group * all_lines + step * Bits / 4);
                const __m256i found = integers_of<Bits>(weights, step, high), one = Coded ? decoded(found) : found;
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r)
                    pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(one, broadcast(values + r)));
            }
            for (int r = 0; r < R; ++r) counts[r] = _mm256_add_epi32(counts[r], widened(pairs[r]));
        }
        const __m128i scales = _mm_load_si128(tail);
        const __m256 scale = shape.half_scales() ? _mm256_cvtph_ps(scales) : even(_mm256_cvtepu16_epi32(scales));
        for (int r = 0; r < R; ++r) {
            const __m256 found = _mm256_mul_ps(_mm256_cvtepi32_ps(counts[r]), scale);
            sums[r] = _mm256_fmadd_ps(found, _mm256_set1_ps(tile.scales[r * groups + group]), sums[r]);
        }
        weights += shape.group_bytes();
    }
    for (int r = 0; r < R; ++r) store(tile, r, part * kVector, sums[r]);
}

template <int R, int Bits, bool Coded = false> struct NibbleGrouped {
    static void run(const Tile &tile) {
        for (int part = 0; part < 4; ++part) grouped_part<R, Bits, Coded>(tile, part);
    }
};

template <int R> using NibbleInt4Grouped = NibbleGrouped<R, 4>;
template <int R> using NibbleInt3Grouped = NibbleGrouped<R, 3>;
template <int R> using NibbleInt2Grouped = NibbleGrouped<R, 2>;
template <int R> using NibbleMxfp4 = NibbleGrouped<R, 4, true>;

// Outputs [8 · part, 8 · part + 8) of a panel. A group's sums fit 16 bits, zeros included, so that its multiples cost one
// product for all of it.
template <int R> void int4_part(const Tile &tile, int part) {
    static_assert(kInt4Group / 4 == kLinesTogether, "a group's sums must fit 16 bits");
    const int64_t groups = tile.shape->groups();
    const bool high = part >= 2;
    const uint8_t *weights = tile.panel + part % 2 * 32;
    const uint32_t *values = tile.values;
    __m256i counts[R], multiples = _mm256_setzero_si256();
    for (int r = 0; r < R; ++r) counts[r] = _mm256_setzero_si256();
    for (int64_t group = 0; group < groups; ++group) {
        if (group % 2 == 0) {
            multiples = _mm256_load_si256(reinterpret_cast<const __m256i *>(weights));
            if (high) multiples = _mm256_srli_epi32(multiples, 8);
            weights += kLine;
        }
        const __m256i multiple = _mm256_and_si256(multiples, _mm256_set1_epi32(255));
        multiples = _mm256_srli_epi32(multiples, 16);
        const __m256i times = _mm256_and_si256(multiple, _mm256_set1_epi32(kMostMultiple));
        const __m256i zero = _mm256_sub_epi32(_mm256_set1_epi32(8), _mm256_srli_epi32(multiple, 4));
        __m256i pairs[R];
        for (int r = 0; r < R; ++r) {
            const auto sum = static_cast<uint16_t>(tile.sums[r * groups + group]);
            pairs[r] = _mm256_mullo_epi16(zero, _mm256_set1_epi32(sum));
        }
        for (int64_t line = 0; line < kLinesTogether; ++line, weights += kLine, values += R) {
            if (part == 0) ask(tile, group * kLinesTogether + line);
            const __m256i one = nibbles(_mm256_load_si256(reinterpret_cast<const __m256i *>(weights)), high);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(one, broadcast(values + r)));
        }
        const __m256i both = _mm256_or_si256(times, _mm256_slli_epi32(times, 16));
        for (int r = 0; r < R; ++r) counts[r] = _mm256_add_epi32(counts[r], _mm256_madd_epi16(pairs[r], both));
    }
    end<R>(tile, part, counts, tile.panel + tile.shape->scales_at());
}

template <int R> struct NibbleInt4 {
    static void run(const Tile &tile) {
        for (int part = 0; part < 4; ++part) int4_part<R>(tile, part);
    }
};

template <int R> struct NibbleInt8 {
    static void run(const Tile &tile) {
        const int64_t steps = tile.shape->steps();
        for (int part = 0; part < 4; ++part) {
            __m256i counts[R];
            for (int r = 0; r < R; ++r) counts[r] = _mm256_set1_epi32(tile.totals[r]);
            const uint8_t *weights = tile.panel + part * 32;
            const uint32_t *values = tile.values;
            for (int64_t first = 0; first < steps; first += kLinesTogether) {
                __m256i low[R], high[R];
                for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_si256();
                const int64_t last = first + kLinesTogether < steps ? first + kLinesTogether : steps;
                for (int64_t step = first; step < last; ++step, weights += 2 * kLine, values += R) {
                    if (part < 2) ask(tile, 2 * step + part);
                    const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i *>(weights));
                    const __m256i lows = nibbles(bytes, false), highs = nibbles(bytes, true);
#pragma GCC unroll 4
                    for (int r = 0; r < R; ++r) {
                        const __m256i four = broadcast(values + r);
                        low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(lows, four));
                        high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(highs, four));
                    }
                }
                for (int r = 0; r < R; ++r) {
                    const __m256i sixteens = _mm256_slli_epi32(widened(high[r]), 4);
                    counts[r] = _mm256_add_epi32(counts[r], _mm256_add_epi32(sixteens, widened(low[r])));
                }
            }
            end<R>(tile, part, counts, tile.panel + tile.shape->scales_at());
        }
    }
};

} // namespace
} // namespace penstock

#include "blocks_avx2.hpp"

namespace penstock {
namespace {

// Rows of a tile, and vectors of outputs in a pass over the panel, so that 16 registers hold all sums and what is added to them.
constexpr int64_t kBfloat16Rows = 5, kFloat32Rows = 6;
// Of bfloat16, how many of these vectors are widened at once.
template <int R> constexpr int kBfloat16Vectors = R <= 2 ? 4 : 2;
template <int R> constexpr int kWidened = R <= 2 ? 1 : 2;
template <int R> constexpr int kFloat32Vectors = R <= 3 ? 4 : 2;

template <int R> struct WideBfloat16 {
    static void run(const Tile &tile) {
        constexpr int V = kBfloat16Vectors<R>, W = kWidened<R>;
        const int64_t steps = tile.shape->steps();
        for (int part = 0; part < 4; part += V) {
            __m256 sums[R][V];
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) sums[r][v] = _mm256_setzero_ps();
            const uint8_t *weights = tile.panel + part * 32;
            const uint32_t *values = tile.values;
            for (int64_t step = 0; step < steps; ++step, weights += 2 * kLine, values += R) {
                // Each pass asks for as much as it reads.
                for (int line = 0; line < V / 2; ++line) ask(tile, 2 * step + part / 2 + line);
#pragma GCC unroll 4
                for (int v = 0; v < V; v += W) {
                    __m256i pairs[W];
                    for (int w = 0; w < W; ++w)
                        pairs[w] = _mm256_load_si256(reinterpret_cast<const __m256i *>(weights) + v + w);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                        const __m256i x = broadcast(values + r);
                        for (int w = 0; w < W; ++w)
                            sums[r][v + w] = _mm256_fmadd_ps(even(x), even(pairs[w]), sums[r][v + w]);
                        for (int w = 0; w < W; ++w)
                            sums[r][v + w] = _mm256_fmadd_ps(odd(x), odd(pairs[w]), sums[r][v + w]);
                    }
                }
            }
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) store(tile, r, (part + v) * kVector, sums[r][v]);
        }
    }
};

template <int R> struct WideFloat32 {
    static void run(const Tile &tile) {
        constexpr int V = kFloat32Vectors<R>;
        const int64_t inputs = tile.shape->inputs;
        for (int part = 0; part < 4; part += V) {
            __m256 sums[R][V];
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) sums[r][v] = _mm256_setzero_ps();
            const float *weights = reinterpret_cast<const float *>(tile.panel) + part * kVector;
            const auto *values = reinterpret_cast<const float *>(tile.values);
            for (int64_t k = 0; k < inputs; ++k, weights += kPanel, values += R) {
                for (int line = 0; line < V / 2; ++line) ask(tile, 2 * k + part / 2 + line);
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    const __m256 weight = _mm256_load_ps(weights + v * kVector);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r)
                        sums[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(values + r), weight, sums[r][v]);
                }
            }
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) store(tile, r, (part + v) * kVector, sums[r][v]);
        }
    }
};

// Enough for both units that multiply, whose results come after four cycles.
constexpr int kChains = 12;

// `rounds` times a product in each chain, with operands that the compiler cannot see through.
template <typename Sum, typename Product> void repeat(int64_t rounds, Sum zero, Sum left, const Product &product) {
    Sum sums[kChains];
    for (int i = 0; i < kChains; ++i) sums[i] = zero;
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile("" : "+x"(left));
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) sums[i] = product(sums[i], left);
    }
    // All of them are used, without any having to be in memory before.
    Sum all = sums[0];
#pragma GCC unroll 12
    for (int i = 1; i < kChains; ++i) all = all + sums[i];
    asm volatile("" : : "x"(all));
}

// Of a nibble and a byte: int8 takes two of them.
int64_t compute_int8(int64_t rounds) {
    repeat(rounds, _mm256_setzero_si256(), _mm256_set1_epi8(1),
           [](__m256i sum, __m256i x) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, sum)); });
    return rounds * kChains * 32 * 2;
}

int64_t compute_float32(int64_t rounds) {
    repeat(rounds, _mm256_setzero_ps(), _mm256_set1_ps(1.0f),
           [](__m256 sum, __m256 x) { return _mm256_fmadd_ps(x, x, sum); });
    return rounds * kChains * kVector * 2;
}

} // namespace

const Kernels *avx2_kernels() {
    static const Kernels set = {"avx2",
                                quantize,
                                {tile_of<WideFloat32, kFloat32Rows>, tile_of<WideBfloat16, kBfloat16Rows>, tile_of<NibbleInt8>, tile_of<NibbleInt4>,
                                 tile_of<NibbleInt4Grouped>, tile_of<NibbleInt4Grouped>, tile_of<NibbleInt3Grouped>,
                                 tile_of<NibbleInt3Grouped>, tile_of<NibbleInt2Grouped>, tile_of<NibbleInt2Grouped>,
                                 tile_of<NibbleMxfp4>, tile_of<NibbleQ8_0>, tile_of<NibbleQ4K>, tile_of<NibbleQ6K>},
                                {kFloat32Rows, kBfloat16Rows, kGenericRows, kGenericRows, kGenericRows, kGenericRows,
                                 kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows,
                                 kGenericRows, kGenericRows},
                                std::numeric_limits<int64_t>::max(),
                                false,
                                attend_block_avx2,
                                nullptr,
                                nullptr,
                                {compute_int8, nullptr, compute_float32}};
    return &set;
}

} // namespace penstock
