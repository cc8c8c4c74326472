// Attention's inner part for processors with AVX2: 8 positions, then 8 columns of values, are a vector.
#include "attention_block.hpp"
#include "avx2.hpp"
#include "values.hpp"

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>

namespace penstock {
namespace {

constexpr int64_t kVector = 8;
constexpr int kSpanVectors = kSpan / kVector;
// Vectors of positions in a tile.
constexpr int kTileVectors = kStep / kVector;
// Rows that share what is loaded of keys and values: their sums, and what is added to them, stay in 16 registers.
constexpr int kRows = 4;

inline void ask_for(const uint8_t *line) { _mm_prefetch(reinterpret_cast<const char *>(line), _MM_HINT_T0); }

// How lines of keys and values are read and multiplied: 8 lanes of four bytes, as they are kept.
struct Float32Lines {
    using Sum = __m256;
    static constexpr bool kIntegers = false;
    static constexpr int64_t kBytes = 32;
    static PENSTOCK_INLINE Sum none() { return _mm256_setzero_ps(); }
    static PENSTOCK_INLINE __m256i read(const uint8_t *line) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(line)); }
    static PENSTOCK_INLINE __m256i read(const uint8_t *line, __m256i mask, int64_t) {
        return _mm256_maskload_epi32(reinterpret_cast<const int *>(line), mask);
    }
    static PENSTOCK_INLINE Sum add(Sum sum, __m256i lanes, __m256i unit) {
        return _mm256_fmadd_ps(_mm256_castsi256_ps(lanes), _mm256_castsi256_ps(unit), sum);
    }
    static PENSTOCK_INLINE __m256 floats(Sum sum) { return sum; }
};

struct Bfloat16Lines : Float32Lines {
    static PENSTOCK_INLINE Sum add(Sum sum, __m256i lanes, __m256i unit) {
        return _mm256_fmadd_ps(odd(lanes), odd(unit), _mm256_fmadd_ps(even(lanes), even(unit), sum));
    }
};

// 8 lanes of two bytes, integers, that become integers of 16 bits.
struct Integers {
    using Sum = __m256i;
    static constexpr bool kIntegers = true;
    static constexpr int64_t kBytes = 16;
    static PENSTOCK_INLINE Sum none() { return _mm256_setzero_si256(); }
    static PENSTOCK_INLINE __m256i read(const uint8_t *line) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(line)));
    }
    static PENSTOCK_INLINE __m256i read(const uint8_t *line, __m256i, int64_t count) {
        if (count >= kVector) return read(line);
        alignas(16) uint8_t some[kBytes] = {};
        std::memcpy(some, line, static_cast<size_t>(2 * count));
        return read(some);
    }
    static PENSTOCK_INLINE Sum add(Sum sum, __m256i lanes, __m256i unit) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(lanes, unit));
    }
    static PENSTOCK_INLINE __m256 floats(Sum sum) { return _mm256_cvtepi32_ps(sum); }
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
template <typename Lines, int R, int T>
void score_tiles(const Block &block, const uint32_t *units, int64_t width, int64_t tile, float (*scores)[kSpan]) {
    typename Lines::Sum sums[R][T];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sums[r][t] = Lines::none();
    for (int64_t i = 0; i < width; ++i) {
        __m256i keys[T];
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            const int64_t at = (i * kTileVectors + t % kTileVectors) * Lines::kBytes;
            keys[t] = Lines::read(block.tiles.keys[tile + t / kTileVectors] + at);
            if (t % kTileVectors == 0) ask_for(block.next.keys[tile + t / kTileVectors] + at);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const __m256i unit = broadcast(units + r * width + i);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) sums[r][t] = Lines::add(sums[r][t], keys[t], unit);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) _mm256_store_ps(scores[r] + tile * kStep + t * kVector, Lines::floats(sums[r][t]));
}

// The scales of vector `t` of a span.
inline __m256 scales_at(const float *const *scales, int t) {
    return _mm256_loadu_ps(scales[t / kTileVectors] + t % kTileVectors * kVector);
}

// What a row makes of its scores at the positions from `low` on, before `high`: weights, 0 elsewhere, and the factor of what
// it had before.
template <typename Lines>
inline float weigh(const Block &block, int64_t row, int64_t low, int64_t high, const float *scores, float *weights) {
    State &state = block.states[row];
    const __m256 scale = _mm256_set1_ps(Lines::kIntegers ? block.query_scales[row] * block.scale : block.scale);
    const __m256 none = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    __m256 score[kSpanVectors], seen[kSpanVectors], largest = none;
    for (int t = 0; t < kSpanVectors; ++t) {
        const __m256 factor = Lines::kIntegers ? _mm256_mul_ps(scales_at(block.tiles.key_scales, t), scale) : scale;
        score[t] = _mm256_mul_ps(_mm256_load_ps(scores + t * kVector), factor);
        if (block.bias) score[t] = _mm256_add_ps(score[t], _mm256_loadu_ps(block.bias + row * kSpan + t * kVector));
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
    if (block.sums)
        for (int t = 0; t < kSpanTiles; ++t) {
            const float *of_tile = weights + t * kStep;
            block.sums[row * kSpanTiles + t] = sum_of(_mm256_add_ps(_mm256_load_ps(of_tile), _mm256_load_ps(of_tile + kVector)));
        }
    const float kept = _mm256_cvtss_f32(exponential(_mm256_set1_ps(state.most - most)));
    state.total = state.total * kept + sum_of(sum);
    state.most = most;
    return kept;
}

// Weights times the scales of their values, as integers; returns what one of these stands for.
inline float round_weights(const Block &block, int64_t low, int64_t high, const float *weights, uint32_t *units) {
    __m256 scaled[kSpanVectors], largest = _mm256_setzero_ps(), sum = _mm256_setzero_ps();
    for (int t = 0; t < kSpanVectors; ++t) {
        const __m256 seen = _mm256_castsi256_ps(lanes(low - t * kVector, high - t * kVector));
        const __m256 product = _mm256_mul_ps(_mm256_load_ps(weights + t * kVector), scales_at(block.tiles.value_scales, t));
        scaled[t] = _mm256_and_ps(seen, product);
        largest = _mm256_max_ps(scaled[t], largest);
        sum = _mm256_add_ps(sum, scaled[t]);
    }
    const float most = largest_of(largest);
    const bool finite = std::isfinite(sum_of(sum));
    const __m256 factor = _mm256_set1_ps(finite && most > kLeastWeight ? kMostWeight / most : 0.0f);
    for (int t = 0; t < kSpanVectors; t += 2) {
        const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(scaled[t], factor));
        const __m256i second = _mm256_cvtps_epi32(_mm256_mul_ps(scaled[t + 1], factor));
        // The instruction packs each half of a vector by itself.
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
        _mm256_store_si256(reinterpret_cast<__m256i *>(units + t * kVector / 2), packed);
    }
    return finite ? most / kMostWeight : std::numeric_limits<float>::quiet_NaN();
}

// Adds the values of C · 8 columns from `column` on, of which there are `count`, at most so many, to R rows; `stands` is what a
// sum of integers is times.
template <typename Lines, int R, int C>
void mix_columns(const Block &block, int64_t row, int64_t column, int64_t count, int64_t pair,
                 const uint32_t (*weights)[kSpan], const float *kept, const float *stands) {
    const __m256i mask = lanes(0, count);
    const auto before = [&](int r, int c) {
        return _mm256_mul_ps(_mm256_maskload_ps(block.states[row + r].mixed + column + c * kVector, mask), _mm256_set1_ps(kept[r]));
    };
    typename Lines::Sum sums[R][C];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c)
            if constexpr (Lines::kIntegers) sums[r][c] = Lines::none();
            else sums[r][c] = before(r, c);
    const int64_t steps = kStep / pair, line = block.size * Lines::kBytes / kVector;
    for (int64_t tile = block.first_tile; tile < block.last_tile; ++tile) {
        const int64_t at = column * Lines::kBytes / kVector;
        const uint8_t *values = block.tiles.values[tile] + at, *next = block.next.values[tile] + at;
        for (int64_t i = 0; i < steps; ++i, values += line, next += line) {
            __m256i read[C];
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c)
                read[c] = Lines::read(values + c * Lines::kBytes, mask, count);
            ask_for(next);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const __m256i unit = broadcast(weights[r] + tile * steps + i);
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) sums[r][c] = Lines::add(sums[r][c], read[c], unit);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            __m256 sum = Lines::floats(sums[r][c]);
            if constexpr (Lines::kIntegers) sum = _mm256_fmadd_ps(sum, _mm256_set1_ps(stands[r]), before(r, c));
            _mm256_maskstore_ps(block.states[row + r].mixed + column + c * kVector, mask, sum);
        }
}

template <typename Lines, int R> void attend_rows(const Block &block, int64_t row) {
    const int64_t pair = block.type == Type::float32 && !Lines::kIntegers ? 1 : 2, width = block.size / pair;
    alignas(32) float scores[R][kSpan];
    alignas(32) float weights[R][kSpan];
    alignas(32) uint32_t units[R][kSpan];
    constexpr int T = R == 1 ? 2 * kTileVectors : kTileVectors, tiles = T / kTileVectors;
    if constexpr (Lines::kIntegers)
        for (int t = 0; t < kSpanTiles; ++t) {
            ask_for(reinterpret_cast<const uint8_t *>(block.next.key_scales[t]));
            ask_for(reinterpret_cast<const uint8_t *>(block.next.value_scales[t]));
        }
    for (int64_t tile = block.first_tile / tiles * tiles; tile < block.last_tile; tile += tiles)
        score_tiles<Lines, R, T>(block, block.units + row * width, width, tile, scores);
    float kept[R], stands[R];
    for (int r = 0; r < R; ++r) {
        const int64_t query = (row + r) / block.group, low = block.lows[query], high = block.highs[query];
        kept[r] = 1.0f;
        if (low < high) kept[r] = weigh<Lines>(block, row + r, low, high, scores[r], weights[r]);
        else std::memset(weights[r], 0, sizeof weights[r]);
        if constexpr (Lines::kIntegers) stands[r] = round_weights(block, low, high, weights[r], units[r]);
        else if (pair == 1) std::memcpy(units[r], weights[r], sizeof units[r]);
        else narrow(weights[r], reinterpret_cast<uint16_t *>(units[r]), kSpan);
    }
    int64_t column = 0;
    for (; column + 2 * kVector <= block.size; column += 2 * kVector)
        mix_columns<Lines, R, 2>(block, row, column, kVector, pair, units, kept, stands);
    for (; column < block.size; column += kVector)
        mix_columns<Lines, R, 1>(block, row, column, block.size - column, pair, units, kept, stands);
}

template <typename Lines, int R> void attend_some(const Block &block, int64_t row, int64_t count) {
    if (count == R) attend_rows<Lines, R>(block, row);
    else if constexpr (R > 1) attend_some<Lines, R - 1>(block, row, count);
}

template <typename Lines> void attend_all(const Block &block) {
    for (int64_t row = 0; row < block.rows; row += kRows)
        attend_some<Lines, kRows>(block, row, block.rows - row < kRows ? block.rows - row : kRows);
}

} // namespace

void attend_block_avx2(const Block &block) {
    if (block.query_scales) attend_all<Integers>(block);
    else if (block.type == Type::float32) attend_all<Float32Lines>(block);
    else attend_all<Bfloat16Lines>(block);
}

} // namespace penstock
