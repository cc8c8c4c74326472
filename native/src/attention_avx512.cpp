// Attention's inner part for processors with AVX-512, with BF16 or without: 16 positions, then 16 columns of values, are a
// vector.
#include "attention_avx512.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

namespace penstock {
namespace {

// Where the next span is brought to: as near as can be, or to the second level only. The first holds so few requests at a time
// on Intel's that a span's are not all under way when it is needed.
struct Near {
    static void ask_for(const uint8_t *line) { _mm_prefetch(reinterpret_cast<const char *>(line), _MM_HINT_T0); }
};
struct Second {
    static void ask_for(const uint8_t *line) { _mm_prefetch(reinterpret_cast<const char *>(line), _MM_HINT_T1); }
};

// How lines of keys and values are read and multiplied, and how many of them meet how many rows in registers: so many that their
// chains hide how long a product takes, and that a loaded vector is in several products. Here, 16 lanes of four bytes, as they are
// kept: at most 24 sums, 4 lines, and a row's factor.
template <typename Product, typename Ahead> struct Floats : Ahead {
    using Multiplied = Product;
    using Sum = __m512;
    // A line becomes two vectors, and so does a row's factor.
    static constexpr bool kWide = std::is_same<Product, WideBfloat16Product>::value;
    static constexpr int kRows = kWide ? 8 : 6;
    static constexpr bool kEqualParts = true;
    static constexpr int tiles(int rows) { return rows <= 2 || !kWide ? 4 : rows <= 4 ? 2 : 1; }
    static constexpr int vectors(int rows) { return rows <= 2 || kWide ? 2 : 4; }
    static constexpr bool kIntegers = false;
    static constexpr int64_t kBytes = 64;
    static Sum none() { return _mm512_setzero_ps(); }
    static __m512i read(const uint8_t *line) { return _mm512_loadu_si512(line); }
    static __m512i read(const uint8_t *line, __mmask16 mask) { return _mm512_maskz_loadu_epi32(mask, line); }
    static Sum add(Sum sum, __m512i lanes, __m512i unit) { return Product::add(sum, lanes, unit); }
    static __m512 floats(Sum sum) { return sum; }
};

// 16 lanes of two bytes, integers, that become integers of 16 bits.
template <typename Ahead> struct Integers : Ahead {
    using Sum = Int32s;
    static constexpr int kRows = 8;
    static constexpr bool kEqualParts = false;
    static constexpr int tiles(int rows) { return rows <= 4 ? 4 : 2; }
    static constexpr int vectors(int rows) { return rows <= 4 ? 4 : 2; }
    static constexpr bool kIntegers = true;
    static constexpr int64_t kBytes = 32;
    static Sum none() { return Sum{}; }
    static __m512i read(const uint8_t *line) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(line)));
    }
    static __m512i read(const uint8_t *line, __mmask16 mask) { return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi16(mask, line)); }
    static Sum add(Sum sum, __m512i lanes, __m512i unit) {
        return Int16Product::add(sum, reinterpret_cast<Int32s>(lanes), unit);
    }
    static __m512 floats(Sum sum) { return as_floats(sum); }
};

// Rows that share what is loaded of keys and values, one of `parts` parts of a block. Each asks for its share of the
// next span, so that this comes while all are computed.
struct Part {
    int64_t row, rows, index, parts;

    bool asks_for(int64_t tile) const { return tile % parts == index; }
};

// Scores of R rows with T tiles from `tile` on, unscaled: a chain runs over a row's size, whatever R and T are.
template <typename Lines, int R, int T>
inline void score_tiles(const Block &block, const Part &part, int64_t width, int64_t tile, float (*scores)[kSpan]) {
    const uint32_t *units = block.units + part.row * width;
    const uint8_t *tiles[T], *next[T];
    for (int t = 0; t < T; ++t) {
        tiles[t] = block.tiles.keys[tile + t];
        next[t] = part.asks_for(tile + t) ? block.next.keys[tile + t] : tiles[t];
    }
    typename Lines::Sum sums[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sums[r][t] = Lines::none();
    for (int64_t i = 0; i < width; ++i) {
        __m512i keys[T];
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
            keys[t] = Lines::read(tiles[t] + i * Lines::kBytes);
            Lines::ask_for(next[t] + i * Lines::kBytes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const __m512i unit = broadcast(units + r * width + i);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) sums[r][t] = Lines::add(sums[r][t], keys[t], unit);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) _mm512_store_ps(scores[r] + (tile + t) * kStep, Lines::floats(sums[r][t]));
}

// Weights times the scales of their values, as integers; returns what one of these stands for.
inline float round_weights(const Block &block, uint64_t seen, const float *weights, uint32_t *units) {
    __m512 scaled[kSpanTiles], largest = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    for (int t = 0; t < kSpanTiles; ++t) {
        const auto mask = static_cast<__mmask16>(seen >> (t * kStep));
        scaled[t] = _mm512_maskz_mul_ps(mask, _mm512_load_ps(weights + t * kStep), _mm512_loadu_ps(block.tiles.value_scales[t]));
        largest = _mm512_max_ps(scaled[t], largest);
        sum = _mm512_add_ps(sum, scaled[t]);
    }
    const float most = _mm512_reduce_max_ps(largest);
    const bool finite = std::isfinite(_mm512_reduce_add_ps(sum));
    const __m512 factor = _mm512_set1_ps(finite && most > kLeastWeight ? kMostWeight / most : 0.0f);
    for (int t = 0; t < kSpanTiles; ++t)
        _mm256_store_si256(reinterpret_cast<__m256i *>(units + t * kStep / 2),
                           _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(scaled[t], factor))));
    return finite ? most / kMostWeight : std::numeric_limits<float>::quiet_NaN();
}

// Adds the values of C · 16 columns from `column` on, of which `mask` are there, to R rows; `stands` is what a sum of integers
// is times.
template <typename Lines, int R, int C>
inline void mix_columns(const Block &block, const Part &part, int64_t column, __mmask16 mask, int64_t pair,
                        const uint32_t (*weights)[kSpan], const float *kept, const float *stands) {
    const int64_t row = part.row;
    const auto before = [&](int r, int c) {
        return _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, block.states[row + r].mixed + column + c * 16), _mm512_set1_ps(kept[r]));
    };
    typename Lines::Sum sums[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c)
            if constexpr (Lines::kIntegers) sums[r][c] = Lines::none();
            else sums[r][c] = before(r, c);
    const int64_t steps = kStep / pair, line = block.size * Lines::kBytes / 16;
    for (int64_t tile = block.first_tile; tile < block.last_tile; ++tile) {
        const int64_t at = column * Lines::kBytes / 16;
        const uint8_t *values = block.tiles.values[tile] + at;
        const uint8_t *next = part.asks_for(tile) ? block.next.values[tile] + at : values;
        for (int64_t i = 0; i < steps; ++i, values += line, next += line) {
            __m512i lanes[C];
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                lanes[c] = Lines::read(values + c * Lines::kBytes, mask);
                Lines::ask_for(next + c * Lines::kBytes);
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m512i unit = broadcast(weights[r] + tile * steps + i);
#pragma GCC unroll 4
                for (int c = 0; c < C; ++c) sums[r][c] = Lines::add(sums[r][c], lanes[c], unit);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            __m512 sum = Lines::floats(sums[r][c]);
            if constexpr (Lines::kIntegers) sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(stands[r]), before(r, c));
            if (mask == 0xffff) _mm512_storeu_ps(block.states[row + r].mixed + column + c * 16, sum);
            else _mm512_mask_storeu_ps(block.states[row + r].mixed + column + c * 16, mask, sum);
        }
}

// Weights as the cache stores values.
template <typename Product> inline void narrow(const float *weights, uint32_t *units) {
    constexpr bool wide = std::is_same<Product, WideBfloat16Product>::value;
    for (int64_t t = 0; t < kSpan; t += 16) {
        const __m512 sixteen = _mm512_load_ps(weights + t);
        __m256i half;
        if constexpr (wide) half = narrowed(sixteen);
        else half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sixteen));
        _mm256_store_si256(reinterpret_cast<__m256i *>(units + t / 2), half);
    }
}

// Where sums fill the registers, work is a function of its own: what the caller keeps in them would push sums out.
template <typename Work> __attribute__((noinline)) void apart(const Work &work) { work(); }
template <bool Apart, typename Work> inline void carry_out(const Work &work) {
    if constexpr (Apart) apart(work);
    else work();
}

template <typename Lines, int R> void attend_rows(const Block &block, const Part &part) {
    const int64_t row = part.row;
    const int64_t pair = block.type == Type::float32 && !Lines::kIntegers ? 1 : 2, width = block.size / pair;
    alignas(64) float scores[R][kSpan];
    alignas(64) float weights[R][kSpan];
    alignas(64) uint32_t units[R][kSpan];
    constexpr int T = Lines::tiles(R), C = Lines::vectors(R);
    constexpr bool full = !Lines::kIntegers && R * C > 16;
    if constexpr (Lines::kIntegers)
        for (int t = 0; t < kSpanTiles; ++t) {
            Lines::ask_for(reinterpret_cast<const uint8_t *>(block.next.key_scales[t]));
            Lines::ask_for(reinterpret_cast<const uint8_t *>(block.next.value_scales[t]));
        }
    // Half a span where more would be for nobody.
    constexpr int half = T == 4 && R > 2 ? 2 : T;
    const int64_t begin = block.first_tile / half * half;
    if (block.last_tile - begin <= half)
        carry_out<full>([&] { score_tiles<Lines, R, half>(block, part, width, begin, scores); });
    else
        for (int64_t tile = block.first_tile / T * T; tile < block.last_tile; tile += T)
            carry_out<full>([&] { score_tiles<Lines, R, T>(block, part, width, tile, scores); });
    float kept[R], stands[R];
    for (int r = 0; r < R; ++r) {
        const int64_t query = (row + r) / block.group;
        const uint64_t seen = seen_by(block.lows[query], block.highs[query]);
        kept[r] = 1.0f;
        if (seen != 0) kept[r] = weigh<Lines::kIntegers>(block, row + r, seen, scores[r], weights[r]);
        else std::memset(weights[r], 0, sizeof weights[r]);
        if constexpr (Lines::kIntegers) stands[r] = round_weights(block, seen, weights[r], units[r]);
        else if (pair == 1) std::memcpy(units[r], weights[r], sizeof units[r]);
        else narrow<typename Lines::Multiplied>(weights[r], units[r]);
    }
    int64_t column = 0;
    for (; column + C * 16 <= block.size; column += C * 16)
        carry_out<full>([&] { mix_columns<Lines, R, C>(block, part, column, 0xffff, pair, units, kept, stands); });
    if constexpr (C > 2)
        for (; column + 32 <= block.size; column += 32)
            mix_columns<Lines, R, 2>(block, part, column, 0xffff, pair, units, kept, stands);
    for (; column < block.size; column += 16)
        mix_columns<Lines, R, 1>(block, part, column, first(block.size - column), pair, units, kept, stands);
}

template <typename Lines, int R> void attend_part(const Block &block, const Part &part) {
    if (part.rows == R) attend_rows<Lines, R>(block, part);
    else if constexpr (R > 1) attend_part<Lines, R - 1>(block, part);
}

template <typename Lines> void attend_all(const Block &block) {
    const int64_t parts = (block.rows + Lines::kRows - 1) / Lines::kRows;
    for (int64_t index = 0; index < parts; ++index) {
        const auto first_row = [&](int64_t part) {
            if (Lines::kEqualParts) return block.rows * part / parts;
            return part < parts ? part * Lines::kRows : block.rows;
        };
        const int64_t row = first_row(index);
        attend_part<Lines, Lines::kRows>(block, {row, first_row(index + 1) - row, index, parts});
    }
}

} // namespace

void attend_block_avx512_vnni(const Block &block) {
    if (block.query_scales) attend_all<Integers<Second>>(block);
    else if (block.type == Type::float32) attend_all<Floats<Float32Product, Second>>(block);
    else attend_all<Floats<WideBfloat16Product, Second>>(block);
}

void attend_block_avx512(const Block &block) {
    if (block.query_scales) attend_all<Integers<Near>>(block);
    else if (block.type == Type::float32) attend_all<Floats<Float32Product, Near>>(block);
    else attend_all<Floats<Bfloat16Product, Near>>(block);
}

} // namespace penstock
