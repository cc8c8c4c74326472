// For processors with AVX-512, VNNI and BF16. A vector is 16 outputs, so a lane's sum is the same in every tile.
#include "attention_block.hpp"

#include <cstring>
#include <immintrin.h>
#include <initializer_list>

namespace penstock {
namespace {

// How far ahead of its use a line of weights is asked for: hardware prefetchers stop at the end of a page.
constexpr int64_t kAhead = 1536;

inline __m512 load(const Rows &rows, int64_t row, int64_t index, __mmask16 mask) {
    const int64_t at = row * rows.stride + index;
    if (rows.type == Type::float32) return _mm512_maskz_loadu_ps(mask, static_cast<const float *>(rows.data) + at);
    const __m256i narrow = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t *>(rows.data) + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

inline __mmask16 first(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1); }

void quantize(const Rows &rows, int64_t row, const Shape &shape, int8_t *values, float *scale, int32_t *sums) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < shape.inputs; i += 16) {
        const __m512 x = load(rows, row, i, first(shape.inputs - i));
        most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(x), magnitude));
    }
    const uint32_t largest = _mm512_reduce_max_epu32(most);
    *scale = quantized_scale(largest);
    const int64_t padded = shape.padded_inputs(), groups = shape.groups(), group = padded / groups;
    if (!(*scale > 0.0f)) {
        std::memset(values, 0, static_cast<size_t>(padded));
        std::memset(sums, 0, static_cast<size_t>(groups) * 4);
        return;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / float_of(largest));
    for (int64_t g = 0; g < groups; ++g) {
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = g * group; i < (g + 1) * group; i += 16) {
            const int64_t room = (g + 1) * group - i;
            const __m512 x = load(rows, row, i, i < shape.inputs ? first(shape.inputs - i) : 0);
            const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
            sum = _mm512_add_epi32(sum, q);
            _mm_mask_storeu_epi8(values + i, first(room), _mm512_cvtepi32_epi8(q));
        }
        sums[g] = _mm512_reduce_add_epi32(sum);
    }
}

// Writes 32 sums of one row, with the bias, as far as there are outputs.
inline void store(const Tile &tile, int64_t row, __m512 low, __m512 high) {
    const Output &output = tile.output;
    const int64_t left = tile.shape->outputs - tile.first_output;
    const __m512 sums[2] = {low, high};
    for (int half = 0; half < 2; ++half) {
        const int64_t begin = tile.first_output + half * 16;
        const __mmask16 mask = left > half * 16 ? first(left - half * 16) : 0;
        __m512 value = sums[half];
        if (output.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, output.bias + begin));
        const int64_t at = row * output.stride + begin;
        if (output.type == Type::float32) {
            _mm512_mask_storeu_ps(static_cast<float *>(output.data) + at, mask, value);
        } else {
            const __m256i narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
            _mm256_mask_storeu_epi16(static_cast<uint16_t *>(output.data) + at, mask, narrow);
        }
    }
}

inline const uint8_t *row_of(const Tile &tile, int64_t row) {
    return tile.activations.values + row * tile.activations.stride;
}

inline __m512i broadcast(const uint8_t *four) {
    int32_t value;
    std::memcpy(&value, four, sizeof value);
    return _mm512_set1_epi32(value);
}

inline void ask_for(const uint8_t *weights) { _mm_prefetch(reinterpret_cast<const char *>(weights + kAhead), _MM_HINT_T0); }

template <int R> struct Float32 {
    static constexpr int kRows = 12;
    static void run(const Tile &tile, int64_t row) {
        __m512 sums[R][2];
        const uint8_t *x[R];
        for (int r = 0; r < R; ++r) {
            sums[r][0] = sums[r][1] = _mm512_setzero_ps();
            x[r] = row_of(tile, row + r);
        }
        const uint8_t *weights = tile.panel;
        for (int64_t k = 0; k < tile.shape->inputs; ++k, weights += 2 * kLine) {
            ask_for(weights);
            ask_for(weights + kLine);
            const __m512 low = _mm512_load_ps(weights), high = _mm512_load_ps(weights + kLine);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const __m512 value = _mm512_castsi512_ps(broadcast(x[r] + 4 * k));
                sums[r][0] = _mm512_fmadd_ps(value, low, sums[r][0]);
                sums[r][1] = _mm512_fmadd_ps(value, high, sums[r][1]);
            }
        }
        for (int r = 0; r < R; ++r) store(tile, row + r, sums[r][0], sums[r][1]);
    }
};

template <int R> struct Bfloat16 {
    static constexpr int kRows = 12;
    static void run(const Tile &tile, int64_t row) {
        __m512 sums[R][2];
        const uint8_t *x[R];
        for (int r = 0; r < R; ++r) {
            sums[r][0] = sums[r][1] = _mm512_setzero_ps();
            x[r] = row_of(tile, row + r);
        }
        const uint8_t *weights = tile.panel;
        for (int64_t k = 0; k < tile.shape->steps(); ++k, weights += 2 * kLine) {
            ask_for(weights);
            ask_for(weights + kLine);
            const auto low = reinterpret_cast<__m512bh>(_mm512_load_si512(weights));
            const auto high = reinterpret_cast<__m512bh>(_mm512_load_si512(weights + kLine));
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const auto values = reinterpret_cast<__m512bh>(broadcast(x[r] + 4 * k));
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], low, values);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], high, values);
            }
        }
        for (int r = 0; r < R; ++r) store(tile, row + r, sums[r][0], sums[r][1]);
    }
};

template <int R> struct Int8 {
    static constexpr int kRows = 12;
    static void run(const Tile &tile, int64_t row) {
        __m512i counts[R][2];
        const uint8_t *x[R];
        for (int r = 0; r < R; ++r) {
            counts[r][0] = counts[r][1] = _mm512_set1_epi32(-128 * tile.activations.sums[row + r]);
            x[r] = row_of(tile, row + r);
        }
        const uint8_t *weights = tile.panel;
        for (int64_t k = 0; k < tile.shape->steps(); ++k, weights += 2 * kLine) {
            ask_for(weights);
            ask_for(weights + kLine);
            const __m512i low = _mm512_load_si512(weights), high = _mm512_load_si512(weights + kLine);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const __m512i values = broadcast(x[r] + 4 * k);
                counts[r][0] = _mm512_dpbusd_epi32(counts[r][0], low, values);
                counts[r][1] = _mm512_dpbusd_epi32(counts[r][1], high, values);
            }
        }
        const __m512 low = _mm512_load_ps(weights), high = _mm512_load_ps(weights + kLine);
        for (int r = 0; r < R; ++r) {
            const __m512 scale = _mm512_set1_ps(tile.activations.scales[row + r]);
            store(tile, row + r, _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(counts[r][0]), low), scale),
                  _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(counts[r][1]), high), scale));
        }
    }
};

template <int R, bool ZeroPoints> void int4(const Tile &tile, int64_t row) {
    const Shape &shape = *tile.shape;
    const int64_t groups = shape.groups(), lines = shape.group / 4;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 sums[R][2];
    const uint8_t *x[R];
    for (int r = 0; r < R; ++r) {
        sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        x[r] = row_of(tile, row + r);
    }
    const int32_t *totals = tile.activations.sums + row * groups;
    const uint8_t *weights = tile.panel;
    for (int64_t group = 0; group < groups; ++group) {
        __m512i counts[R][2];
        for (int r = 0; r < R; ++r)
            counts[r][0] = counts[r][1] = _mm512_set1_epi32(ZeroPoints ? 0 : -8 * totals[r * groups + group]);
        for (int64_t line = 0; line < lines; ++line, weights += kLine) {
            ask_for(weights);
            const __m512i both = _mm512_load_si512(weights);
            const __m512i low = _mm512_and_si512(both, nibble);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) {
                const __m512i values = broadcast(x[r] + (group * lines + line) * 4);
                counts[r][0] = _mm512_dpbusd_epi32(counts[r][0], low, values);
                counts[r][1] = _mm512_dpbusd_epi32(counts[r][1], high, values);
            }
        }
        ask_for(weights);
        const __m512 scale[2] = {
            _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(weights))),
            _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(weights + 32)))};
        weights += kLine;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r)
            for (int half = 0; half < 2; ++half)
                sums[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(counts[r][half]), scale[half], sums[r][half]);
        if (ZeroPoints) {
            const __m512 offset[2] = {
                _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(weights))),
                _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(weights + 32)))};
            weights += kLine;
            for (int r = 0; r < R; ++r) {
                const __m512 total = _mm512_set1_ps(static_cast<float>(-totals[r * groups + group]));
                for (int half = 0; half < 2; ++half)
                    sums[r][half] = _mm512_fmadd_ps(offset[half], total, sums[r][half]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        const __m512 scale = _mm512_set1_ps(tile.activations.scales[row + r]);
        store(tile, row + r, _mm512_mul_ps(sums[r][0], scale), _mm512_mul_ps(sums[r][1], scale));
    }
}

template <int R> struct Int4 {
    static constexpr int kRows = 6;
    static void run(const Tile &tile, int64_t row) {
        if (tile.shape->zero_points) int4<R, true>(tile, row);
        else int4<R, false>(tile, row);
    }
};

template <template <int> class Kernel, int R> void some_rows(const Tile &tile, int64_t row, int64_t count) {
    if (count == R) Kernel<R>::run(tile, row);
    else if constexpr (R > 1) some_rows<Kernel, R - 1>(tile, row, count);
}

// Tiles of nearly equal height: 13 rows are 7 and 6, not 12 and 1.
template <template <int> class Kernel> void rows_of(const Tile &tile) {
    constexpr int64_t most = Kernel<1>::kRows;
    const int64_t rows = tile.last_row - tile.first_row, tiles = (rows + most - 1) / most;
    int64_t row = tile.first_row;
    for (int64_t index = 0; index < tiles; ++index) {
        const int64_t count = (tile.last_row - row + tiles - index - 1) / (tiles - index);
        some_rows<Kernel, most>(tile, row, count);
        row += count;
    }
}

// The exponential of exponential.hpp with fused multiplications, 16 at a time.
inline __m512 exponential(__m512 x) {
    const __m512 bounded = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-87.3f));
    const __m512 power = _mm512_roundscale_ps(
        _mm512_mul_ps(bounded, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(0.693359375f), bounded);
    rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
    for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    sum = _mm512_add_ps(_mm512_fmadd_ps(sum, _mm512_mul_ps(rest, rest), rest), _mm512_set1_ps(1.0f));
    const __m512 scaled = _mm512_scalef_ps(sum, power);
    const __m512 kept = _mm512_mask_mov_ps(scaled, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3f), _CMP_LT_OQ),
                                           _mm512_setzero_ps());
    // The bounds above lose what is not a number.
    return _mm512_mask_mov_ps(kept, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

inline __m512 soft_capped(__m512 scores, float cap) {
    const __m512 twice = exponential(_mm512_mul_ps(_mm512_set1_ps(2.0f / cap), scores));
    const __m512 part = _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(twice, _mm512_set1_ps(1.0f)));
    return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_sub_ps(_mm512_set1_ps(1.0f), part));
}

// Rows whose keys and values are loaded together; enough chains to hide how long a product takes.
constexpr int64_t kAttentionRows = 8;

// R rows from `row` on, all of which see the positions [low, high) of the block. A row's sums run over its size, and its
// values over positions, in ascending order whatever R is.
template <int R> void attend_rows(const Block &block, int64_t row, int64_t low, int64_t high) {
    const int64_t size = block.size;
    const float *queries = block.queries + row * size;
    __m512 scores[R];
    for (int r = 0; r < R; ++r) scores[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; ++i) {
        const __m512 keys = _mm512_loadu_ps(block.columns + i * kStep);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            scores[r] = _mm512_fmadd_ps(_mm512_set1_ps(queries[r * size + i]), keys, scores[r]);
    }
    const auto seen = static_cast<__mmask16>(((1u << high) - 1) & ~((1u << low) - 1));
    alignas(64) float weights[R][kStep];
    float kept[R];
    for (int r = 0; r < R; ++r) {
        State &state = block.states[row + r];
        __m512 score = _mm512_mul_ps(scores[r], _mm512_set1_ps(block.scale));
        if (block.softcap != 0.0f) score = soft_capped(score, block.softcap);
        const float largest = _mm512_mask_reduce_max_ps(seen, score);
        const float most = largest > state.most ? largest : state.most;
        const __m512 weight = _mm512_maskz_mov_ps(seen, exponential(_mm512_sub_ps(score, _mm512_set1_ps(most))));
        kept[r] = _mm512_cvtss_f32(exponential(_mm512_set1_ps(state.most - most)));
        state.total = state.total * kept[r] + _mm512_reduce_add_ps(weight);
        state.most = most;
        _mm512_store_ps(weights[r], weight);
    }
    for (int64_t i = 0; i < size; i += 16) {
        __m512 mixed[R];
        for (int r = 0; r < R; ++r)
            mixed[r] = _mm512_mul_ps(_mm512_loadu_ps(block.states[row + r].mixed + i), _mm512_set1_ps(kept[r]));
        for (int64_t t = low; t < high; ++t) {
            const __m512 values = _mm512_loadu_ps(block.values + t * size + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) mixed[r] = _mm512_fmadd_ps(_mm512_set1_ps(weights[r][t]), values, mixed[r]);
        }
        for (int r = 0; r < R; ++r) _mm512_storeu_ps(block.states[row + r].mixed + i, mixed[r]);
    }
}

template <int R> void attend_some(const Block &block, int64_t row, int64_t count, int64_t low, int64_t high) {
    if (count == R) attend_rows<R>(block, row, low, high);
    else if constexpr (R > 1) attend_some<R - 1>(block, row, count, low, high);
}

void attend_block(const Block &block) {
    int64_t row = 0;
    while (row < block.rows) {
        // As many rows as see the same positions.
        const int64_t low = block.lows[row / block.group], high = block.highs[row / block.group];
        int64_t last = row + 1;
        while (last < block.rows && last - row < kAttentionRows && block.lows[last / block.group] == low &&
               block.highs[last / block.group] == high)
            ++last;
        if (low < high) attend_some<kAttentionRows>(block, row, last - row, low, high);
        row = last;
    }
}

// Rows of 16 to columns of 16.
inline void transpose(__m512 (&r)[16]) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    auto pairs = [](__m512 a, __m512 b, bool high) {
        const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
        return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
    };
    for (int i = 0; i < 16; i += 4) {
        r[i] = pairs(t[i], t[i + 2], false);
        r[i + 1] = pairs(t[i], t[i + 2], true);
        r[i + 2] = pairs(t[i + 1], t[i + 3], false);
        r[i + 3] = pairs(t[i + 1], t[i + 3], true);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

void turn_keys(const Plane &keys, int64_t size, int64_t count, float *columns) {
    const Rows rows{keys.rows, keys.type, keys.stride};
    for (int64_t i = 0; i < size; i += 16) {
        __m512 part[16];
        for (int64_t t = 0; t < 16; ++t) part[t] = t < count ? load(rows, t, i, 0xffff) : _mm512_setzero_ps();
        transpose(part);
        for (int64_t j = 0; j < 16; ++j) _mm512_storeu_ps(columns + (i + j) * kStep, part[j]);
    }
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

const Kernels *avx512_kernels() {
    static const Kernels set = {
        "avx512", quantize, {rows_of<Float32>, rows_of<Bfloat16>, rows_of<Int8>, rows_of<Int4>},
        attend_block, turn_keys, {compute_int8, compute_bfloat16, compute_float32}};
    return &set;
}

} // namespace penstock
