#include "kv.hpp"

#include "clones.hpp"
#include "half.hpp"
#include "memory.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

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

// Values that are expanded in one go: whole vectors, and whole runs of scales.
constexpr int64_t kRun = 32;
constexpr float kMostInt8 = 127.0f, kMostFp8 = 448.0f;

// One head of one token as bytes; returns their scale. What is not finite has a scale that is not a number, so that
// whoever reads it notices.
float round_head(const float *values, int64_t size, Kept kept, uint8_t *bytes) {
    float most = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < size; ++i) {
        most = std::max(most, std::fabs(values[i]));
        finite = finite && std::isfinite(values[i]);
    }
    if (!finite || most == 0.0f) {
        std::fill(bytes, bytes + size, uint8_t{0});
        return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const float scale = most / (kept == Kept::int8 ? kMostInt8 : kMostFp8);
    // A scale may be too small for a float32, or so small that it is rounded down by much.
    for (int64_t i = 0; i < size; ++i) {
        const float part = scale == 0.0f ? 0.0f : values[i] / scale;
        if (kept == Kept::int8) bytes[i] = static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(std::clamp(part, -kMostInt8, kMostInt8))));
        else bytes[i] = float_to_fp8(std::clamp(part, -kMostFp8, kMostFp8));
    }
    return scale;
}

thread_local Memory t_bytes;

void store_bytes(const Cache &cache, int64_t tile, int64_t at, const float *keys, const float *values) {
    const int64_t size = cache.size, pair = cache.pair();
    uint8_t *bytes = t_bytes.take(size);
    for (int64_t head = 0; head < cache.heads; ++head) {
        uint8_t *key = cache.keys + cache.place(tile, head), *value = cache.values + cache.place(tile, head);
        const int64_t scale = (tile * cache.heads + head) * kStep + at;
        cache.key_scales[scale] = round_head(keys + head * size, size, cache.kept, bytes);
        for (int64_t i = 0; i < size; ++i) key[(i / pair * kStep + at) * pair + i % pair] = bytes[i];
        cache.value_scales[scale] = round_head(values + head * size, size, cache.kept, bytes);
        for (int64_t i = 0; i < size; ++i) value[(at / pair * size + i) * pair + at % pair] = bytes[i];
    }
}

template <Kept kept> PENSTOCK_INLINE float number(uint8_t byte) {
    if constexpr (kept == Kept::int8) return static_cast<float>(static_cast<int8_t>(byte));
    else return fp8_to_float(byte);
}

// Without the care for what is not a number that float_to_bf16 takes: only a scale may be none, whose bits stay one.
template <typename Value> Value rounded(float value);
template <> PENSTOCK_INLINE float rounded<float>(float value) { return value; }
template <> PENSTOCK_INLINE uint16_t rounded<uint16_t>(float value) {
    const uint32_t bits = bits_of(value);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// `count` bytes with `factors` [kRun] over and over.
template <Kept kept, typename Value>
PENSTOCK_INLINE void expand_run(const uint8_t *bytes, const float *factors, int64_t count, Value *into) {
    int64_t at = 0;
    for (; at + kRun <= count; at += kRun)
        for (int64_t i = 0; i < kRun; ++i) into[at + i] = rounded<Value>(number<kept>(bytes[at + i]) * factors[i]);
    for (int64_t i = 0; at + i < count; ++i) into[at + i] = rounded<Value>(number<kept>(bytes[at + i]) * factors[i]);
}

template <Kept kept, typename Value>
PENSTOCK_INLINE void expand_head(const Cache &cache, int64_t tile, int64_t head, uint8_t *keys, uint8_t *values) {
    constexpr int64_t pair = kUnit / static_cast<int64_t>(sizeof(Value));
    const int64_t scales = (tile * cache.heads + head) * kStep, place = cache.place(tile, head);
    float factors[kRun];
    for (int64_t i = 0; i < kRun; ++i) factors[i] = cache.key_scales[scales + i / pair % kStep];
    expand_run<kept>(cache.keys + place, factors, cache.size * kStep, reinterpret_cast<Value *>(keys));
    const int64_t width = cache.size * pair;
    for (int64_t step = 0; step < kStep / pair; ++step) {
        for (int64_t i = 0; i < kRun; ++i) factors[i] = cache.value_scales[scales + step * pair + i % pair];
        expand_run<kept>(cache.values + place + step * width, factors, width, reinterpret_cast<Value *>(values) + step * width);
    }
}

} // namespace

PENSTOCK_CLONES void expand(const Cache &cache, int64_t tile, int64_t head, uint8_t *keys, uint8_t *values) {
    const bool wide = cache.type == Type::float32;
    if (cache.kept == Kept::int8 && wide) expand_head<Kept::int8, float>(cache, tile, head, keys, values);
    else if (cache.kept == Kept::int8) expand_head<Kept::int8, uint16_t>(cache, tile, head, keys, values);
    else if (wide) expand_head<Kept::fp8, float>(cache, tile, head, keys, values);
    else expand_head<Kept::fp8, uint16_t>(cache, tile, head, keys, values);
}

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
            const auto plain = cache.type == Type::float32 ? store_token<float> : store_token<uint16_t>;
            const auto store = cache.kept == Kept::plain ? plain : store_bytes;
            store(cache, tile, position % kStep, keys, keys + width);
        }
    });
}

} // namespace penstock
