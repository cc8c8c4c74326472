// Attention's inner part for processors with AVX2: 8 positions, then 8 columns of values, are a vector.
#include "attention_block.hpp"
#include "avx2.hpp"
#include "values.hpp"

#include <cstring>
#include <initializer_list>
#include <limits>

namespace penstock {
namespace {

constexpr int64_t kVector = 8, kVectorBytes = 32;
constexpr int kSpanVectors = kSpan / kVector;
// Vectors of positions in a tile.
constexpr int kTileVectors = kStep / kVector;
// Rows that share what is loaded of keys and values: their sums, and what is added to them, stay in 16 registers.
constexpr int kRows = 4;

inline void ask_for(const uint8_t *line) { _mm_prefetch(reinterpret_cast<const char *>(line), _MM_HINT_T0); }

struct Float32Product {
    static PENSTOCK_INLINE __m256 add(__m256 sum, __m256i lanes, __m256i unit) {
        return _mm256_fmadd_ps(_mm256_castsi256_ps(lanes), _mm256_castsi256_ps(unit), sum);
    }
};

struct Bfloat16Product {
    static PENSTOCK_INLINE __m256 add(__m256 sum, __m256i lanes, __m256i unit) {
        return _mm256_fmadd_ps(odd(lanes), odd(unit), _mm256_fmadd_ps(even(lanes), even(unit), sum));
    }
};

// The exponential of exponential.hpp with fused multiplications, 8 at a time.
inline __m256 exponential(__m256 x) {
    const __m256 bounded = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(88.0f)), _mm256_set1_ps(-87.3f));
    const __m256 power = _mm256_round_ps(
        _mm256_mul_ps(bounded, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 rest = _mm256_fnmadd_ps(power, _mm256_set1_ps(0.693359375f), bounded);
    rest = _mm256_fnmadd_ps(power, _mm256_set1_ps(-2.12194440e-4f), rest);
    __m256 sum = _mm256_set1_ps(1.9875691500e-4f);
    for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(factor));
    sum = _mm256_add_ps(_mm256_fmadd_ps(sum, _mm256_mul_ps(rest, rest), rest), _mm256_set1_ps(1.0f));
    // Powers are from −126 to 127, so that each is a normal number.
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23);
    const __m256 scaled = _mm256_mul_ps(sum, _mm256_castsi256_ps(exponent));
    const __m256 kept = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.3f), _CMP_LT_OQ), scaled);
    // The bounds above lose what is not a number.
    return _mm256_blendv_ps(kept, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

inline __m256 soft_capped(__m256 scores, float cap) {
    const __m256 twice = exponential(_mm256_mul_ps(_mm256_set1_ps(2.0f / cap), scores));
    const __m256 part = _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(twice, _mm256_set1_ps(1.0f)));
    return _mm256_mul_ps(_mm256_set1_ps(cap), _mm256_sub_ps(_mm256_set1_ps(1.0f), part));
}

inline float largest_of(__m256 x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline float sum_of(__m256 x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// Lanes [from, until), all ones.
inline __m256i lanes(int64_t from, int64_t until) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const auto bound = [](int64_t at) { return _mm256_set1_epi32(static_cast<int32_t>(at)); };
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(bound(from), index), _mm256_cmpgt_epi32(bound(until), index));
}

// Scores of R rows with T vectors of positions from tile `tile` on, unscaled. A chain runs over a row's size, whatever R
// and T are.
template <typename Product, int R, int T>
void score_tiles(const Block &block, const uint32_t *units, int64_t width, int64_t tile, float (*scores)[kSpan]) {
    __m256 sums[R][T];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sums[r][t] = _mm256_setzero_ps();
    for (int64_t i = 0; i < width; ++i) {
        __m256i keys[T];
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            const int64_t at = i * kStep * kUnit + t % kTileVectors * kVectorBytes;
            keys[t] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.tiles.keys[tile + t / kTileVectors] + at));
            if (t % kTileVectors == 0) ask_for(block.next.keys[tile + t / kTileVectors] + at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const __m256i unit = broadcast(units + r * width + i);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) sums[r][t] = Product::add(sums[r][t], keys[t], unit);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) _mm256_store_ps(scores[r] + tile * kStep + t * kVector, sums[r][t]);
}

// What a row makes of its scores at the positions from `low` on, before `high`: weights, 0 elsewhere, and the factor of what
// it had before.
inline float weigh(const Block &block, State &state, int64_t low, int64_t high, const float *scores, float *weights) {
    const __m256 none = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    __m256 score[kSpanVectors], seen[kSpanVectors], largest = none;
    for (int t = 0; t < kSpanVectors; ++t) {
        score[t] = _mm256_mul_ps(_mm256_load_ps(scores + t * kVector), _mm256_set1_ps(block.scale));
        if (block.softcap != 0.0f) score[t] = soft_capped(score[t], block.softcap);
        seen[t] = _mm256_castsi256_ps(lanes(low - t * kVector, high - t * kVector));
        largest = _mm256_max_ps(_mm256_blendv_ps(none, score[t], seen[t]), largest);
    }
    const float peak = largest_of(largest);
    const float most = peak > state.most ? peak : state.most;
    __m256 sum = _mm256_setzero_ps();
    for (int t = 0; t < kSpanVectors; ++t) {
        const __m256 weight = _mm256_and_ps(seen[t], exponential(_mm256_sub_ps(score[t], _mm256_set1_ps(most))));
        sum = _mm256_add_ps(sum, weight);
        _mm256_store_ps(weights + t * kVector, weight);
    }
    const float kept = _mm256_cvtss_f32(exponential(_mm256_set1_ps(state.most - most)));
    state.total = state.total * kept + sum_of(sum);
    state.most = most;
    return kept;
}

// Adds the values of C · 8 columns from `column` on, of which `mask` are there, to R rows.
template <typename Product, int R, int C>
void mix_columns(const Block &block, int64_t row, int64_t column, __m256i mask, int64_t pair,
                 const uint32_t (*weights)[kSpan], const float *kept) {
    __m256 sums[R][C];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c)
            sums[r][c] = _mm256_mul_ps(_mm256_maskload_ps(block.states[row + r].mixed + column + c * kVector, mask),
                                       _mm256_set1_ps(kept[r]));
    const int64_t steps = kStep / pair;
    for (int64_t tile = block.first_tile; tile < block.last_tile; ++tile) {
        const uint8_t *values = block.tiles.values[tile] + column * kUnit, *next = block.next.values[tile] + column * kUnit;
        for (int64_t i = 0; i < steps; ++i, values += block.size * kUnit, next += block.size * kUnit) {
            __m256i read[C];
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c)
                read[c] = _mm256_maskload_epi32(reinterpret_cast<const int *>(values + c * kVectorBytes), mask);
            ask_for(next);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const __m256i unit = broadcast(weights[r] + tile * steps + i);
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) sums[r][c] = Product::add(sums[r][c], read[c], unit);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c)
            _mm256_maskstore_ps(block.states[row + r].mixed + column + c * kVector, mask, sums[r][c]);
}

template <typename Product, int R> void attend_rows(const Block &block, int64_t row) {
    const int64_t pair = block.type == Type::float32 ? 1 : 2, width = block.size / pair;
    alignas(32) float scores[R][kSpan];
    alignas(32) float weights[R][kSpan];
    alignas(32) uint32_t units[R][kSpan];
    constexpr int T = R == 1 ? 2 * kTileVectors : kTileVectors, tiles = T / kTileVectors;
    for (int64_t tile = block.first_tile / tiles * tiles; tile < block.last_tile; tile += tiles)
        score_tiles<Product, R, T>(block, block.units + row * width, width, tile, scores);
    float kept[R];
    for (int r = 0; r < R; ++r) {
        const int64_t query = (row + r) / block.group, low = block.lows[query], high = block.highs[query];
        kept[r] = 1.0f;
        if (low < high) kept[r] = weigh(block, block.states[row + r], low, high, scores[r], weights[r]);
        else std::memset(weights[r], 0, sizeof weights[r]);
        if (pair == 1) std::memcpy(units[r], weights[r], sizeof units[r]);
        else narrow(weights[r], reinterpret_cast<uint16_t *>(units[r]), kSpan);
    }
    int64_t column = 0;
    for (; column + 2 * kVector <= block.size; column += 2 * kVector)
        mix_columns<Product, R, 2>(block, row, column, lanes(0, kVector), pair, units, kept);
    for (; column < block.size; column += kVector)
        mix_columns<Product, R, 1>(block, row, column, lanes(0, block.size - column), pair, units, kept);
}

template <typename Product, int R> void attend_some(const Block &block, int64_t row, int64_t count) {
    if (count == R) attend_rows<Product, R>(block, row);
    else if constexpr (R > 1) attend_some<Product, R - 1>(block, row, count);
}

template <typename Product> void attend_all(const Block &block) {
    for (int64_t row = 0; row < block.rows; row += kRows)
        attend_some<Product, kRows>(block, row, block.rows - row < kRows ? block.rows - row : kRows);
}

} // namespace

void attend_block_avx2(const Block &block) {
    if (block.type == Type::float32) attend_all<Float32Product>(block);
    else attend_all<Bfloat16Product>(block);
}

} // namespace penstock
