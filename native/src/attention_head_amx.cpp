// Attention over rows of tokens for processors with AMX: 16 positions meet 16 queries at once.
//
// A vector holds the scores of 16 queries with one position. So maxima, exponentials and sums are taken lane by lane, and no
// vector has to be added up. A softmax takes in kHeadSegment positions at once. Segments are merged in ascending order, each with
// a running maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
#include "amx.hpp"
#include "attention_head.hpp"

#include <algorithm>
#include <limits>

namespace penstock {
namespace {

constexpr int64_t kTile = kTileRegisterRows;
constexpr int64_t kPairs = 2 * kTile; // dimensions or positions that one product adds up, in pairs
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr TileConfiguration kConfiguration = tile_configuration(kTile, kLine);

// What a register holds: 16 lines.
struct alignas(64) Lines {
    uint32_t units[kTile][kTile];
};

// Running softmaxes of 16 queries: their largest scores, as logarithms to base 2, and the sums of weights relative to these.
struct alignas(64) State {
    float most[kTile], total[kTile];
};

// Columns become rows.
inline void turn(Lines &lines) {
    __m512i rows[kTile], pairs[kTile];
#pragma GCC unroll 16
    for (int i = 0; i < kTile; ++i) rows[i] = _mm512_load_si512(lines.units[i]);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kTile; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        pairs[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
        pairs[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
        pairs[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
        pairs[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        _mm512_store_si512(lines.units[i], _mm512_shuffle_i32x4(pairs[i], pairs[i + 8], 0x88));
        _mm512_store_si512(lines.units[i + 8], _mm512_shuffle_i32x4(pairs[i], pairs[i + 8], 0xdd));
        _mm512_store_si512(lines.units[i + 4], _mm512_shuffle_i32x4(pairs[i + 4], pairs[i + 12], 0x88));
        _mm512_store_si512(lines.units[i + 12], _mm512_shuffle_i32x4(pairs[i + 4], pairs[i + 12], 0xdd));
    }
}

// 32 floats as bfloat16, in their order; and 16 pairs of one from each.
inline __m512i in_order(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }
inline __m512i in_pairs(__m512 first, __m512 second) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                           20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, in_order(first, second));
}

// 2^x to 2e-7 for x up to about 0: a polynomial with the least greatest error. What is not a number stays none.
inline __m512 power_of_two(__m512 x) {
    const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    const __m512 power = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 rest = _mm512_sub_ps(bounded, power);
    __m512 sum = _mm512_set1_ps(1.32764707e-3f);
    for (const float factor : {9.67554132e-3f, 5.55071328e-2f, 2.40221197e-1f, 6.93146967e-1f, 1.00000007f})
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    return _mm512_scalef_ps(sum, power);
}

class Head {
public:
    explicit Head(const HeadRows &rows)
        : rows_(rows), steps_(rows.size / kPairs), columns_(rows.size / kTile),
          all_(rows.blocks()), blocks_(all_ / rows.group) {
        uint8_t *memory = rows.scratch;
        const auto take = [&](int64_t count) {
            uint8_t *taken = memory;
            memory += count * static_cast<int64_t>(sizeof(Lines));
            return reinterpret_cast<Lines *>(taken);
        };
        keys_ = take(kHeadSegment / kTile * steps_);
        values_ = take(kHeadSegment / kPairs * columns_);
        queries_ = take(all_ * steps_);
        mixed_ = take(all_ * columns_);
        states_ = reinterpret_cast<State *>(memory);
    }

    void attend() {
        configure(kConfiguration);
        for (int64_t block = 0; block < all_; ++block) begin(block);
        const int64_t low = lowest(rows_.first), high = highest(rows_.last - 1) + 1;
        for (int64_t at = low / kHeadSegment * kHeadSegment; at < high; at += kHeadSegment) {
            const int64_t from = std::max(at, low / kPairs * kPairs), until = std::min(at + kHeadSegment, high);
            read_keys(at, from, until);
            read_values(at, from, until);
            for (int64_t block = 0; block < all_; ++block) attend_segment(block, at, until);
        }
        for (int64_t block = 0; block < all_; ++block) write(block);
    }

private:
    int64_t first_of(int64_t block) const { return rows_.first + block % blocks_ * kTile; }
    int64_t count_of(int64_t block) const { return std::min(kTile, rows_.last - first_of(block)); }
    int64_t head_of(int64_t block) const { return block / blocks_ * rows_.size; }

    int64_t highest(int64_t query) const { return last_seen(query, rows_.window, rows_.seen); }
    int64_t lowest(int64_t query) const { return first_seen(query, rows_.window, highest(query)); }

    // The thread most often goes on with the next KV head, whose numbers of the same tokens are behind these.
    static void ask_for(const float *numbers, int64_t count) {
        for (int64_t at = 0; at < count; at += kTile) _mm_prefetch(reinterpret_cast<const char *>(numbers + at), _MM_HINT_T1);
    }

    // Queries in pairs of dimensions side by side.
    void begin(int64_t block) {
        const float *query = rows_.queries + first_of(block) * rows_.stride + head_of(block);
        const int64_t count = count_of(block);
        for (int64_t step = 0; step < steps_; ++step) {
            Lines &lines = queries_[block * steps_ + step];
            for (int64_t i = 0; i < kTile; ++i) {
                const float *from = query + i * rows_.stride + step * kPairs;
                if (i < count) ask_for(from + rows_.group * rows_.size, kPairs);
                _mm512_store_si512(lines.units[i], i < count ? in_order(_mm512_loadu_ps(from), _mm512_loadu_ps(from + kTile))
                                                             : _mm512_setzero_si512());
            }
            turn(lines);
        }
        std::fill_n(states_[block].most, kTile, kNone);
        std::fill_n(states_[block].total, kTile, 0.0f);
        std::fill_n(mixed_[block * columns_].units[0], columns_ * kTile * kTile, 0u);
    }

    // Keys [from, until) of the segment at `at`. Zeros fill the last product.
    void read_keys(int64_t at, int64_t from, int64_t until) {
        for (int64_t position = from; position < (until + kPairs - 1) / kPairs * kPairs; ++position) {
            Lines *lines = keys_ + (position - at) / kTile * steps_;
            const float *key = rows_.keys + position * rows_.stride;
            ask_for(key + rows_.size, rows_.size);
            for (int64_t step = 0; step < steps_; ++step, key += kPairs)
                _mm512_store_si512(lines[step].units[position % kTile],
                                   position < until ? in_order(_mm512_loadu_ps(key), _mm512_loadu_ps(key + kTile))
                                                    : _mm512_setzero_si512());
        }
    }

    // Values from `from` on, as many products as reach `until`: pairs of positions side by side, a dimension in a line. Behind what
    // is seen there are zeros. Other values behind `until` have weights of 0.
    void read_values(int64_t at, int64_t from, int64_t until) {
        for (int64_t position = from; position < until; position += kPairs) {
            Lines *lines = values_ + (position - at) / kPairs * columns_;
            for (int64_t pair = 0; pair < kTile; ++pair) {
                const int64_t first = position + 2 * pair;
                const float *value = rows_.values + first * rows_.stride;
                ask_for(value + rows_.size, rows_.size);
                ask_for(value + rows_.stride + rows_.size, rows_.size);
                for (int64_t column = 0; column < columns_; ++column, value += kTile) {
                    const __m512 zero = _mm512_setzero_ps();
                    const __m512 even = first < rows_.seen ? _mm512_loadu_ps(value) : zero;
                    const __m512 odd = first + 1 < rows_.seen ? _mm512_loadu_ps(value + rows_.stride) : zero;
                    _mm512_store_si512(lines[column].units[pair], in_pairs(even, odd));
                }
            }
            for (int64_t column = 0; column < columns_; ++column) turn(lines[column]);
        }
    }

    // Unscaled scores of a block with positions [from, until) of the segment; `from` is a multiple of 32.
    void score(int64_t block, int64_t from, int64_t until) {
        const Lines *queries = queries_ + block * steps_;
        for (int64_t position = from; position < until; position += 4 * kTile) {
            const int64_t tiles = (until - position + kTile - 1) / kTile;
            const Lines *keys = keys_ + position / kTile * steps_;
            PENSTOCK_EACH(PENSTOCK_ZERO)
            for (int64_t step = 0; step < steps_; ++step) {
                _tile_loadd(4, queries[step].units, kLine);
#define PENSTOCK_SCORE(i)                                                                                                        \
    if (i < tiles) {                                                                                                             \
        _tile_loadd(5, keys[i * steps_ + step].units, kLine);                                                                     \
        _tile_dpbf16ps(i, 5, 4);                                                                                                 \
    }
                PENSTOCK_EACH(PENSTOCK_SCORE)
            }
#define PENSTOCK_LEAVE_SCORES(i)                                                                                                 \
    if (i < tiles) _tile_stored(i, scores_[position + i * kTile], kLine);
            PENSTOCK_EACH(PENSTOCK_LEAVE_SCORES)
        }
    }

    // Scales scores, adds what there is to add, and leaves out what is not seen.
    void adjust(int64_t block, int64_t at, int64_t from, int64_t until) {
        const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const auto all = [](int64_t value) { return _mm512_set1_epi32(static_cast<int>(value)); };
        const __m512i queries = _mm512_add_epi32(lanes, all(first_of(block)));
        // A window beyond the row is none, and would not fit 32 bits.
        const __m512i last = all(rows_.seen - 1), window = all(std::min(rows_.window, std::max(rows_.last, rows_.seen) + 1) - 1);
        const __m512i high = rows_.window ? _mm512_min_epi32(last, _mm512_add_epi32(queries, window)) : last;
        const __m512i low = rows_.window ? _mm512_min_epi32(_mm512_sub_epi32(queries, window), high) : all(0);
        const float *table = rows_.bias ? rows_.bias + block / blocks_ * (2 * rows_.reach + 1) + rows_.reach : nullptr;
        for (int64_t position = from; position < until; ++position) {
            const __m512i place = all(at + position);
            __m512 score = _mm512_mul_ps(_mm512_load_ps(scores_[position]), _mm512_set1_ps(rows_.scale));
            if (table) {
                const __m512i distance = _mm512_max_epi32(_mm512_sub_epi32(place, queries), all(-rows_.reach));
                score = _mm512_add_ps(score, _mm512_i32gather_ps(_mm512_min_epi32(distance, all(rows_.reach)), table, 4));
            }
            const __mmask16 seen = _mm512_cmple_epi32_mask(low, place) & _mm512_cmple_epi32_mask(place, high);
            _mm512_store_ps(scores_[position], _mm512_mask_mov_ps(_mm512_set1_ps(kNone), seen, score));
        }
    }

    // Makes weights of scores. They take the place of the first scores, in pairs of positions. Returns the factors of what segments
    // before have come to. Maxima are of their second operand where one is not a number.
    __m512 weigh(State &state, int64_t from, int64_t until, float factor) {
        __m512 largest = _mm512_set1_ps(kNone), other = largest;
        int64_t position = from;
        for (; position + 1 < until; position += 2) {
            largest = _mm512_max_ps(_mm512_load_ps(scores_[position]), largest);
            other = _mm512_max_ps(_mm512_load_ps(scores_[position + 1]), other);
        }
        if (position < until) largest = _mm512_max_ps(_mm512_load_ps(scores_[position]), largest);
        const __m512 scale = _mm512_set1_ps(factor), before = _mm512_load_ps(state.most);
        const __m512 most = _mm512_max_ps(_mm512_mul_ps(_mm512_max_ps(largest, other), scale), before);
        // Where nothing has been seen yet.
        const __mmask16 empty = _mm512_cmp_ps_mask(most, _mm512_set1_ps(kNone), _CMP_EQ_OQ);
        const __m512 origin = _mm512_mask_mov_ps(most, empty, _mm512_setzero_ps());
        __m512 sum = _mm512_setzero_ps(), odd = sum;
        const auto weight = [&](int64_t at) {
            return power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores_[at]), scale, origin));
        };
        auto *units = reinterpret_cast<uint32_t(*)[kTile]>(scores_[from]);
        for (position = from; position + 1 < until; position += 2, ++units) {
            const __m512 first = weight(position), second = weight(position + 1);
            sum = _mm512_add_ps(sum, first);
            odd = _mm512_add_ps(odd, second);
            _mm512_store_si512(*units, in_pairs(first, second));
        }
        if (position < until) {
            const __m512 last = weight(position);
            sum = _mm512_add_ps(sum, last);
            _mm512_store_si512(*units++, in_pairs(last, _mm512_setzero_ps()));
        }
        for (int64_t pairs = (until - from + 1) / 2; pairs % kTile != 0; ++pairs)
            _mm512_store_si512(*units++, _mm512_setzero_si512());
        const __m512 kept = power_of_two(_mm512_sub_ps(before, origin));
        _mm512_store_ps(state.total, _mm512_fmadd_ps(_mm512_load_ps(state.total), kept, _mm512_add_ps(sum, odd)));
        _mm512_store_ps(state.most, most);
        return kept;
    }

    // Adds values [from, until) of the segment, times the weights that are at the beginning of the scores.
    void mix(int64_t block, int64_t from, int64_t until, __m512 kept) {
        Lines fresh[4];
        for (int64_t column = 0; column < columns_; column += 4) {
            const int64_t columns = columns_ - column;
            finish_writing();
            PENSTOCK_EACH(PENSTOCK_ZERO)
            for (int64_t position = from; position < until; position += kPairs) {
                const Lines *values = values_ + position / kPairs * columns_ + column;
                _tile_loadd(4, scores_[from + (position - from) / 2], kLine);
#define PENSTOCK_MIX(i)                                                                                                          \
    if (i < columns) {                                                                                                           \
        _tile_loadd(5, values[i].units, kLine);                                                                                   \
        _tile_dpbf16ps(i, 5, 4);                                                                                                 \
    }
                PENSTOCK_EACH(PENSTOCK_MIX)
            }
#define PENSTOCK_LEAVE_MIXED(i)                                                                                                  \
    if (i < columns) _tile_stored(i, fresh[i].units, kLine);
            PENSTOCK_EACH(PENSTOCK_LEAVE_MIXED)
            finish_writing();
            for (int64_t i = 0; i < std::min<int64_t>(4, columns); ++i)
                for (int64_t line = 0; line < kTile; ++line) {
                    uint32_t *mixed = mixed_[block * columns_ + column + i].units[line];
                    _mm512_store_ps(mixed, _mm512_fmadd_ps(_mm512_load_ps(mixed), kept, _mm512_load_ps(fresh[i].units[line])));
                }
        }
    }

    void attend_segment(int64_t block, int64_t at, int64_t until) {
        const int64_t first = first_of(block), last = first + count_of(block) - 1;
        const int64_t from = std::max(at, lowest(first) / kPairs * kPairs) - at, end = std::min(until, highest(last) + 1) - at;
        if (from >= end) return;
        finish_writing();
        score(block, from, end);
        finish_writing();
        const bool adjusted = rows_.window || rows_.bias;
        if (adjusted) adjust(block, at, from, end);
        constexpr float kLog2E = 1.44269504f;
        mix(block, from, end, weigh(states_[block], from, end, adjusted ? kLog2E : rows_.scale * kLog2E));
    }

    void write(int64_t block) {
        const __m512 whole = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(states_[block].total));
        float *output = rows_.output + first_of(block) * rows_.output_stride + head_of(block);
        const int64_t count = count_of(block);
        for (int64_t column = 0; column < columns_; ++column, output += kTile) {
            Lines &mixed = mixed_[block * columns_ + column];
            for (int64_t line = 0; line < kTile; ++line)
                _mm512_store_ps(mixed.units[line], _mm512_mul_ps(_mm512_load_ps(mixed.units[line]), whole));
            turn(mixed);
            for (int64_t i = 0; i < count; ++i)
                _mm512_storeu_ps(output + i * rows_.output_stride, _mm512_load_ps(mixed.units[i]));
        }
    }

    const HeadRows &rows_;
    int64_t steps_, columns_, all_, blocks_;
    Lines *keys_, *values_, *queries_, *mixed_;
    State *states_;
    alignas(64) float scores_[kHeadSegment][kTile];
};

} // namespace

void attend_head_amx(const HeadRows &rows) { Head(rows).attend(); }

} // namespace penstock
