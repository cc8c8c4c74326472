#include "attention.hpp"

#include "attention_block.hpp"
#include "clones.hpp"
#include "exponential.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace penstock {

namespace {

constexpr int64_t kSegment = 512;
// Queries times query heads that share what is read of a KV head.
constexpr int64_t kTileRows = 32;
constexpr float kNone = -std::numeric_limits<float>::infinity();

void reset(State &state, int64_t size) {
    state.most = kNone;
    state.total = 0.0f;
    std::memset(state.mixed, 0, static_cast<size_t>(size) * sizeof(float));
}

PENSTOCK_CLONES void turn_keys(const Plane &keys, int64_t size, int64_t count, float *columns) {
    if (keys.type == Type::bfloat16) {
        const auto *values = static_cast<const uint16_t *>(keys.rows);
        for (int64_t i = 0; i < size; ++i)
            for (int64_t t = 0; t < count; ++t) columns[i * kStep + t] = bf16_to_float(values[t * keys.stride + i]);
    } else {
        const auto *values = static_cast<const float *>(keys.rows);
        for (int64_t i = 0; i < size; ++i)
            for (int64_t t = 0; t < count; ++t) columns[i * kStep + t] = values[t * keys.stride + i];
    }
}

PENSTOCK_CLONES void scores_of(const float *query, const float *columns, int64_t size, float scale, float *scores) {
    float sums[kStep] = {};
    for (int64_t i = 0; i < size; ++i)
        for (int64_t t = 0; t < kStep; ++t) sums[t] += query[i] * columns[i * kStep + t];
    for (int64_t t = 0; t < kStep; ++t) scores[t] = sums[t] * scale;
}

PENSTOCK_CLONES void bounded(float cap, float *scores) {
    for (int64_t t = 0; t < kStep; ++t) {
        const float twice = exponential(2.0f * (scores[t] / cap));
        scores[t] = cap * (1.0f - 2.0f / (twice + 1.0f));
    }
}

// Takes in scores, of which those outside [low, high) are hidden, and their values [kStep, size].
PENSTOCK_CLONES void take_in(
    const float *scores, int64_t low, int64_t high, const float *values, int64_t size, State &state) {
    float most = state.most;
    for (int64_t t = low; t < high; ++t) most = scores[t] > most ? scores[t] : most;
    // A score that is not a number is not larger than any, but its weight is not a number either, as it should be.
    float weights[kStep];
    for (int64_t t = 0; t < kStep; ++t) weights[t] = exponential(scores[t] - most);
    float sum = 0.0f;
    for (int64_t t = low; t < high; ++t) sum += weights[t];
    const float kept = exponential(state.most - most);
    state.total = state.total * kept + sum;
    for (int64_t i = 0; i < size; ++i) state.mixed[i] *= kept;
    for (int64_t t = low; t < high; ++t) {
        const float weight = weights[t];
        for (int64_t i = 0; i < size; ++i) state.mixed[i] += weight * values[t * size + i];
    }
    state.most = most;
}

void attend_block(const Block &block) {
    for (int64_t row = 0; row < block.rows; ++row) {
        const int64_t low = block.lows[row / block.group], high = block.highs[row / block.group];
        // A query that sees nothing here is left alone, whatever the others in the tile see.
        if (low >= high) continue;
        float scores[kStep];
        scores_of(block.queries + row * block.size, block.columns, block.size, block.scale, scores);
        if (block.softcap != 0.0f) bounded(block.softcap, scores);
        take_in(scores, low, high, block.values, block.size, block.states[row]);
    }
}

PENSTOCK_CLONES void merge(const State &segment, int64_t size, State &into) {
    const float most = segment.most > into.most ? segment.most : into.most;
    const float old = exponential(into.most - most), fresh = exponential(segment.most - most);
    into.total = into.total * old + segment.total * fresh;
    for (int64_t i = 0; i < size; ++i) into.mixed[i] = into.mixed[i] * old + segment.mixed[i] * fresh;
    into.most = most;
}

// Some queries of a sequence and the query heads that share a KV head.
class QueryTile {
public:
    QueryTile(const Attention &attention, const AttentionBatch &batch, int64_t sequence, int64_t first, int64_t last,
         int64_t kv_head)
        : attention_(attention), batch_(batch), sequence_(sequence), first_(first), last_(last), kv_head_(kv_head),
          size_(attention.heads.size), group_(attention.heads.query / attention.heads.key),
          start_(batch.context[sequence] - batch.added[sequence]) {}

    // `row` is that of the sequence's first query in `qkv` and `output`.
    void run(int64_t row, const Rows &qkv, const Rows &keys, const Rows &values, const MutableRows &output) {
        const int64_t rows = (last_ - first_) * group_;
        thread_local std::vector<float> memory;
        memory.resize(static_cast<size_t>(rows * size_ * 3 + 2 * kStep * size_));
        float *queries = memory.data(), *mixed = queries + rows * size_;
        columns_ = mixed + 2 * rows * size_;
        rows_ = columns_ + kStep * size_;
        thread_local std::vector<State> states;
        states.resize(static_cast<size_t>(2 * rows));
        for (int64_t i = 0; i < 2 * rows; ++i) states[static_cast<size_t>(i)].mixed = mixed + i * size_;
        State *totals = states.data(), *segments = totals + rows;
        for (int64_t i = 0; i < rows; ++i) reset(totals[i], size_);
        for (int64_t query = first_; query < last_; ++query)
            read_values(qkv.data, qkv.type, (row + query) * qkv.stride + kv_head_ * group_ * size_, group_ * size_,
                        queries + (query - first_) * group_ * size_);

        const int64_t from = lowest(first_) / kStep * kStep, until = start_ + last_;
        for (int64_t segment = from / kSegment * kSegment; segment < until; segment += kSegment) {
            for (int64_t i = 0; i < rows; ++i) reset(segments[i], size_);
            for (int64_t at = std::max(segment, from); at < std::min(segment + kSegment, until); at += kStep)
                step(at, until, queries, keys, values, segments);
            for (int64_t i = 0; i < rows; ++i)
                if (segments[i].total != 0.0f) merge(segments[i], size_, totals[i]);
        }
        for (int64_t i = 0; i < rows; ++i) write_row(totals[i], row + first_ + i / group_, i % group_, output);
    }

private:
    int64_t lowest(int64_t query) const {
        return attention_.window == 0 ? 0 : std::max<int64_t>(0, start_ + query - attention_.window + 1);
    }

    // The rows of positions [at, at + kStep) in a plane.
    Plane place(const Rows &plane, int64_t at) const {
        const int64_t block = batch_.tables[sequence_ * batch_.table_stride + at / batch_.block_size];
        const int64_t slot = block * batch_.block_size + at % batch_.block_size;
        const int64_t value = slot * plane.stride + kv_head_ * size_;
        const auto *rows = static_cast<const uint8_t *>(plane.data) + value * (plane.type == Type::float32 ? 4 : 2);
        return {rows, plane.type, plane.stride};
    }

    void step(int64_t at, int64_t until, const float *queries, const Rows &keys, const Rows &values, State *states) {
        const int64_t count = std::min(kStep, until - at);
        const Kernels &set = kernels();
        const bool vectors = set.attend_block && size_ % 16 == 0;
        (vectors ? set.turn_keys : turn_keys)(place(keys, at), size_, count, columns_);
        const Plane plane = place(values, at);
        for (int64_t t = 0; t < count; ++t)
            read_values(plane.rows, plane.type, t * plane.stride, size_, rows_ + t * size_);
        int64_t lows[kTileRows], highs[kTileRows];
        for (int64_t query = first_; query < last_; ++query) {
            lows[query - first_] = std::max<int64_t>(0, lowest(query) - at);
            highs[query - first_] = std::min(kStep, start_ + query + 1 - at);
        }
        const Block block{queries, (last_ - first_) * group_, size_, lows, highs, group_, columns_, rows_,
                          attention_.scale, attention_.softcap, states};
        (vectors ? set.attend_block : attend_block)(block);
    }

    void write_row(State &state, int64_t row, int64_t head, const MutableRows &output) const {
        const float inverse = 1.0f / state.total;
        for (int64_t i = 0; i < size_; ++i) state.mixed[i] *= inverse;
        write_values(state.mixed, output, row * output.stride + (kv_head_ * group_ + head) * size_, size_);
    }

    const Attention &attention_;
    const AttentionBatch &batch_;
    int64_t sequence_, first_, last_, kv_head_, size_, group_, start_;
    float *columns_ = nullptr, *rows_ = nullptr;
};

struct Piece {
    int64_t sequence, first, last, row;
};

} // namespace

void attend(const Attention &attention, const AttentionBatch &batch, const Rows &qkv, const Rows &keys,
            const Rows &values, const MutableRows &output) {
    const int64_t group = attention.heads.query / attention.heads.key;
    const int64_t most = std::max<int64_t>(1, kTileRows / group);
    std::vector<Piece> pieces;
    int64_t row = 0;
    for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
        for (int64_t first = 0; first < batch.added[sequence]; first += most)
            pieces.push_back({sequence, first, std::min(first + most, batch.added[sequence]), row});
        row += batch.added[sequence];
    }
    // The longest first: what comes last should be short, so that threads end together.
    std::stable_sort(pieces.begin(), pieces.end(), [&](const Piece &left, const Piece &right) {
        auto end = [&](const Piece &piece) {
            return batch.context[piece.sequence] - batch.added[piece.sequence] + piece.last;
        };
        return end(left) > end(right);
    });
    const int64_t kv_heads = attention.heads.key;
    pool()->run(static_cast<int64_t>(pieces.size()) * kv_heads, [&](int64_t task) {
        const Piece &piece = pieces[static_cast<size_t>(task / kv_heads)];
        QueryTile(attention, batch, piece.sequence, piece.first, piece.last, task % kv_heads)
            .run(piece.row, qkv, keys, values, output);
    });
}

} // namespace penstock
