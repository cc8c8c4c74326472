#include "kv.hpp"

#include "half.hpp"
#include "pool.hpp"

#include <algorithm>

namespace penstock {

namespace {

// Tokens that one thread stores at once: neighbours share lines of keys.
constexpr int64_t kTokens = 64;

template <typename Value> Value stored(float value);
template <> float stored<float>(float value) { return value; }
template <> uint16_t stored<uint16_t>(float value) { return float_to_bf16(value); }

// One token's heads at place `at` of its tile.
template <typename Value>
void store_token(const Cache &cache, int64_t tile, int64_t at, const float *keys, const float *values) {
    constexpr int64_t pair = kUnit / static_cast<int64_t>(sizeof(Value));
    const int64_t size = cache.size;
    for (int64_t head = 0; head < cache.heads; ++head) {
        auto *key = reinterpret_cast<Value *>(cache.keys + cache.place(tile, head));
        auto *value = reinterpret_cast<Value *>(cache.values + cache.place(tile, head));
        for (int64_t i = 0; i < size; ++i)
            key[(i / pair * kStep + at) * pair + i % pair] = stored<Value>(keys[head * size + i]);
        for (int64_t i = 0; i < size; ++i)
            value[(at / pair * size + i) * pair + at % pair] = stored<Value>(values[head * size + i]);
    }
}

} // namespace

std::vector<int64_t> sequences_of_tokens(const Batch &batch) {
    std::vector<int64_t> sequences;
    sequences.reserve(static_cast<size_t>(batch.tokens));
    for (int64_t sequence = 0; sequence < batch.sequences; ++sequence)
        sequences.insert(sequences.end(), static_cast<size_t>(batch.added[sequence]), sequence);
    return sequences;
}

void store_kv(const Heads &heads, const Batch &batch, const std::vector<int64_t> &sequences, const Tables &tables,
              const Rows &qkv, const Cache &cache) {
    const int64_t width = heads.key * heads.size;
    const int64_t all = batch.tokens + batch.shares;
    pool()->run((all + kTokens - 1) / kTokens, [&](int64_t task) {
        const int64_t last = std::min(all, (task + 1) * kTokens);
        for (int64_t i = task * kTokens; i < last; ++i) {
            const bool own = i < batch.tokens;
            const int64_t token = own ? i : batch.shared[2 * (i - batch.tokens)];
            const int64_t sequence = own ? sequences[static_cast<size_t>(i)] : batch.shared[2 * (i - batch.tokens) + 1];
            const int64_t position = batch.positions[token];
            const int64_t tile = tables.tile(sequence, position, batch.block_size);
            const float *keys = qkv.row(token) + heads.query * heads.size;
            const auto store = cache.type == Type::float32 ? store_token<float> : store_token<uint16_t>;
            store(cache, tile, position % kStep, keys, keys + width);
        }
    });
}

} // namespace penstock
