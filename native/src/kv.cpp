#include "kv.hpp"

#include "clones.hpp"
#include "half.hpp"
#include "linear.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "values.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace penstock {

namespace {

// Tokens that one thread stores at once: neighbours share lines of keys.
constexpr int64_t kTokens = 64;

template <typename Value> Value stored(float value);
template <> float stored<float>(float value) { return value; }
template <> uint16_t stored<uint16_t>(float value) { return float_to_bf16(value); }

// Where value `i` of a head stands at place `at` of its tile, among the keys and among the values.
PENSTOCK_INLINE int64_t key_place(int64_t pair, int64_t at, int64_t i) { return (i / pair * kStep + at) * pair + i % pair; }
PENSTOCK_INLINE int64_t value_place(int64_t pair, int64_t at, int64_t i, int64_t size) {
    return (at / pair * size + i) * pair + at % pair;
}

// One token's heads at place `at` of its tile.
template <typename Value>
void store_token(const Cache &cache, const CacheTile &tile, int64_t at, const float *keys, const float *values) {
    constexpr int64_t pair = kUnit / static_cast<int64_t>(sizeof(Value));
    const int64_t size = cache.size;
    for (int64_t head = 0; head < cache.heads; ++head) {
        auto *key = reinterpret_cast<Value *>(cache.keys + cache.place(tile, head));
        for (int64_t i = 0; i < size; ++i)
            key[key_place(pair, at, i)] = stored<Value>(keys[head * size + i]);
        if (cache.latent()) continue;
        auto *value = reinterpret_cast<Value *>(cache.values + cache.place(tile, head));
        for (int64_t i = 0; i < size; ++i)
            value[value_place(pair, at, i, size)] = stored<Value>(values[head * size + i]);
    }
}

// Units of four bytes [kStep][units] as [units][kStep].
PENSTOCK_CLONES void turn_units(const uint32_t *rows, int64_t units, uint32_t *into) {
    for (int64_t unit = 0; unit < units; ++unit)
        for (int64_t at = 0; at < kStep; ++at) into[unit * kStep + at] = rows[at * units + unit];
}

// A tile's rows as bfloat16, each two of them value beside value.
PENSTOCK_CLONES void pair_rows(const float *rows, int64_t stride, int64_t size, uint32_t *into) {
    for (int64_t at = 0; at < kStep; at += 2, into += size) {
        const float *first = rows + at * stride, *second = first + stride;
        for (int64_t i = 0; i < size; ++i)
            into[i] = float_to_bf16(first[i]) | static_cast<uint32_t>(float_to_bf16(second[i])) << 16;
    }
}

thread_local Memory t_turned;

// The heads of as many tokens as a tile has, at once: the same bits as of one after the other.
void store_tile(const Cache &cache, const CacheTile &tile, const Rows &keys, const Rows &values) {
    const int64_t size = cache.size, units = size / cache.pair();
    const bool floats = cache.type == Type::float32;
    auto *turned = reinterpret_cast<uint32_t *>(t_turned.take(kStep * units * kUnit));
    for (int64_t head = 0; head < cache.heads; ++head) {
        const float *key = keys.data + head * size, *value = values.data + head * size;
        if (floats) copy_rows(key, keys.stride, kStep, size, reinterpret_cast<float *>(turned));
        else narrow_rows(key, keys.stride, kStep, size, reinterpret_cast<uint16_t *>(turned));
        const int64_t place = cache.place(tile, head);
        turn_units(turned, units, reinterpret_cast<uint32_t *>(cache.keys + place));
        if (cache.latent()) continue;
        uint8_t *into = cache.values + place;
        if (floats) copy_rows(value, values.stride, kStep, size, reinterpret_cast<float *>(into));
        else pair_rows(value, values.stride, size, reinterpret_cast<uint32_t *>(into));
    }
}

// Keys [size / pair][kStep][pair] as values [kStep / pair][size][pair].
template <typename Value, int64_t pair> PENSTOCK_INLINE void turn_tile(int64_t size, const Value *keys, Value *values) {
    for (int64_t i = 0; i < size; i += pair)
        for (int64_t at = 0; at < kStep; at += pair)
            for (int64_t row = 0; row < pair; ++row)
                for (int64_t j = 0; j < pair; ++j)
                    values[at * size + (i + row) * pair + j] = keys[i * kStep + (at + j) * pair + row];
}

PENSTOCK_CLONES void turn_tile(const float *keys, int64_t size, float *values) { turn_tile<float, 1>(size, keys, values); }
PENSTOCK_CLONES void turn_tile(const uint16_t *keys, int64_t size, uint16_t *values) {
    turn_tile<uint16_t, 2>(size, keys, values);
}
PENSTOCK_CLONES void turn_tile(const uint8_t *keys, int64_t size, uint8_t *values) { turn_tile<uint8_t, 2>(size, keys, values); }

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

void store_bytes(const Cache &cache, const CacheTile &tile, int64_t at, const float *keys, const float *values) {
    const int64_t size = cache.size, pair = cache.pair();
    uint8_t *bytes = t_bytes.take(size);
    for (int64_t head = 0; head < cache.heads; ++head) {
        uint8_t *key = cache.keys + cache.place(tile, head);
        auto *key_scales = reinterpret_cast<float *>(cache.key_scales + cache.scales_at(tile, head));
        key_scales[at] = round_head(keys + head * size, size, cache.kept, bytes);
        for (int64_t i = 0; i < size; ++i) key[key_place(pair, at, i)] = bytes[i];
        if (cache.latent()) continue;
        uint8_t *value = cache.values + cache.place(tile, head);
        auto *value_scales = reinterpret_cast<float *>(cache.value_scales + cache.scales_at(tile, head));
        value_scales[at] = round_head(values + head * size, size, cache.kept, bytes);
        for (int64_t i = 0; i < size; ++i) value[value_place(pair, at, i, size)] = bytes[i];
    }
}

constexpr float kMostInt4 = 15.0f;
constexpr uint16_t kNotANumber = 0x7fc0; // bfloat16

// One head of one token as integers in 0..15, with a scale and a least value for each group, `kStep` apart in `scales`. A head
// that is not all finite, or whose values are further apart than numbers reach, has none that are numbers.
void round_groups(const float *values, int64_t size, uint8_t *integers, uint16_t *scales) {
    bool whole = true;
    for (int64_t group = 0; group < size / kKvGroup; ++group, scales += 2 * kStep) {
        const float *first = values + group * kKvGroup;
        float low = first[0], high = first[0];
        for (int64_t i = 0; i < kKvGroup; ++i) {
            whole = whole && std::isfinite(first[i]);
            low = std::min(low, first[i]);
            high = std::max(high, first[i]);
        }
        const uint16_t least = float_to_bf16(low), scale = float_to_bf16((high - bf16_to_float(least)) / kMostInt4);
        scales[0] = scale;
        scales[kStep] = least;
        const float from = bf16_to_float(least), step = bf16_to_float(scale);
        whole = whole && std::isfinite(from) && std::isfinite(step);
        for (int64_t i = 0; whole && i < kKvGroup; ++i) {
            const float part = step > 0.0f ? std::nearbyint((first[i] - from) / step) : 0.0f;
            integers[group * kKvGroup + i] = static_cast<uint8_t>(std::clamp(part, 0.0f, kMostInt4));
        }
    }
    if (whole) return;
    std::fill(integers, integers + size, uint8_t{0});
    for (int64_t i = 0; i < 2 * size / kKvGroup; ++i) *(scales -= kStep) = kNotANumber;
}

// Writes integers two to a byte, `place(i)` being where the i-th would stand as a byte, and the one `apart` from it kRun behind:
// both are of the same token and head, so that no two tokens share a byte.
template <typename Place>
void put_nibbles(const uint8_t *integers, int64_t size, int64_t apart, uint8_t *bytes, const Place &place) {
    for (int64_t i = 0; i < size; ++i) {
        const int64_t at = place(i);
        if (at % (2 * kRun) >= kRun) continue;
        bytes[at / (2 * kRun) * kRun + at % kRun] = static_cast<uint8_t>(integers[i] | integers[i + apart] << 4);
    }
}

void store_int4(const Cache &cache, const CacheTile &tile, int64_t at, const float *keys, const float *values) {
    const int64_t size = cache.size, pair = cache.pair();
    uint8_t *integers = t_bytes.take(size);
    for (int64_t head = 0; head < cache.heads; ++head) {
        auto *key_scales = reinterpret_cast<uint16_t *>(cache.key_scales + cache.scales_at(tile, head));
        auto *value_scales = reinterpret_cast<uint16_t *>(cache.value_scales + cache.scales_at(tile, head));
        round_groups(keys + head * size, size, integers, key_scales + at);
        put_nibbles(integers, size, kRun / kStep, cache.keys + cache.place(tile, head),
                    [&](int64_t i) { return key_place(pair, at, i); });
        round_groups(values + head * size, size, integers, value_scales + at);
        put_nibbles(integers, size, kRun / pair, cache.values + cache.place(tile, head),
                    [&](int64_t i) { return value_place(pair, at, i, size); });
    }
}

// Without the care for what is not a number that float_to_bf16 takes: only a scale may be none, whose bits stay one.
template <typename Value> Value rounded(float value);
template <> PENSTOCK_INLINE float rounded<float>(float value) { return value; }
template <> PENSTOCK_INLINE uint16_t rounded<uint16_t>(float value) {
    const uint32_t bits = bits_of(value);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// `count` bytes with `factors` [kRun] over and over.
template <typename Value>
PENSTOCK_INLINE void expand_run(const uint8_t *bytes, const float *factors, int64_t count, Value *into) {
    int64_t at = 0;
    for (; at + kRun <= count; at += kRun)
        for (int64_t i = 0; i < kRun; ++i) into[at + i] = rounded<Value>(fp8_to_float(bytes[at + i]) * factors[i]);
    for (int64_t i = 0; at + i < count; ++i) into[at + i] = rounded<Value>(fp8_to_float(bytes[at + i]) * factors[i]);
}

template <typename Value>
PENSTOCK_INLINE void expand_fp8(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values) {
    constexpr int64_t pair = kUnit / static_cast<int64_t>(sizeof(Value));
    const int64_t scales = cache.scales_at(tile, head), place = cache.place(tile, head);
    const auto *key_scales = reinterpret_cast<const float *>(cache.key_scales + scales);
    const auto *value_scales = reinterpret_cast<const float *>(cache.value_scales + scales);
    float factors[kRun];
    for (int64_t i = 0; i < kRun; ++i) factors[i] = key_scales[i / pair % kStep];
    expand_run(cache.keys + place, factors, cache.size * kStep, reinterpret_cast<Value *>(keys));
    const int64_t width = cache.size * pair;
    for (int64_t step = 0; step < kStep / pair; ++step) {
        for (int64_t i = 0; i < kRun; ++i) factors[i] = value_scales[step * pair + i % pair];
        expand_run(cache.values + place + step * width, factors, width, reinterpret_cast<Value *>(values) + step * width);
    }
}

// What a run of nibbles is multiplied by and added to.
struct Line {
    float scales[kRun], least[kRun];

    // `place(i)` is the place in the tile of the i-th of the run.
    template <typename Place> PENSTOCK_INLINE void read(const uint16_t *scale, const Place &place) {
        for (int64_t i = 0; i < kRun; ++i) {
            scales[i] = bf16_to_float(scale[place(i)]);
            least[i] = bf16_to_float(scale[kStep + place(i)]);
        }
    }
};

// The values of kRun bytes: those in their low nibbles, and behind them those in their high ones.
template <typename Value>
PENSTOCK_INLINE void expand_nibbles(const uint8_t *bytes, const Line &low, const Line &high, Value *into) {
    for (int64_t i = 0; i < kRun; ++i)
        into[i] = rounded<Value>(static_cast<float>(bytes[i] & 15) * low.scales[i] + low.least[i]);
    for (int64_t i = 0; i < kRun; ++i)
        into[kRun + i] = rounded<Value>(static_cast<float>(bytes[i] >> 4) * high.scales[i] + high.least[i]);
}

template <typename Value>
PENSTOCK_INLINE void expand_int4(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values) {
    constexpr int64_t pair = kUnit / static_cast<int64_t>(sizeof(Value)), run = 2 * kRun;
    const int64_t scales = cache.scales_at(tile, head), place = cache.place(tile, head), groups = cache.size / kKvGroup;
    const auto *key_scales = reinterpret_cast<const uint16_t *>(cache.key_scales + scales);
    const auto *value_scales = reinterpret_cast<const uint16_t *>(cache.value_scales + scales);
    Line low, high;
    // A run of keys is four values of each position.
    const uint8_t *bytes = cache.keys + place;
    auto *key = reinterpret_cast<Value *>(keys);
    for (int64_t group = 0; group < groups; ++group) {
        low.read(key_scales + group * 2 * kStep, [](int64_t i) { return i / pair % kStep; });
        for (int64_t four = 0; four < kKvGroup; four += 4, bytes += kRun, key += run) expand_nibbles(bytes, low, low, key);
    }
    // A run of values is 64 / pair of them for each of a pair of positions.
    bytes = cache.values + place;
    auto *value = reinterpret_cast<Value *>(values);
    for (int64_t step = 0; step < kStep / pair; ++step)
        for (int64_t group = 0; group < groups; group += 2 / pair, bytes += kRun, value += run) {
            const auto at = [=](int64_t i) { return step * pair + i % pair; };
            low.read(value_scales + group * 2 * kStep, at);
            high.read(value_scales + (group + 2 / pair - 1) * 2 * kStep, at);
            expand_nibbles(bytes, low, high, value);
        }
}

} // namespace

PENSTOCK_CLONES static void expand_any(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values) {
    const bool wide = cache.type == Type::float32;
    if (cache.kept == Kept::int4 && wide) expand_int4<float>(cache, tile, head, keys, values);
    else if (cache.kept == Kept::int4) expand_int4<uint16_t>(cache, tile, head, keys, values);
    else if (wide) expand_fp8<float>(cache, tile, head, keys, values);
    else expand_fp8<uint16_t>(cache, tile, head, keys, values);
}

void expand(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values) {
    const bool by_hand = kernels().expand && cache.type == Type::bfloat16 && cache.size % 16 == 0;
    (by_hand ? kernels().expand : expand_any)(cache, tile, head, keys, values);
}

void keys_as_values(const Cache &cache, const uint8_t *keys, uint8_t *values) {
    if (cache.integers()) turn_tile(keys, cache.size, values);
    else if (cache.type == Type::float32)
        turn_tile(reinterpret_cast<const float *>(keys), cache.size, reinterpret_cast<float *>(values));
    else if (kernels().keys_as_values && cache.size % 16 == 0) kernels().keys_as_values(keys, cache.size, values);
    else turn_tile(reinterpret_cast<const uint16_t *>(keys), cache.size, reinterpret_cast<uint16_t *>(values));
}

std::vector<int64_t> sequences_of_tokens(const Batch &batch) {
    std::vector<int64_t> sequences;
    sequences.reserve(static_cast<size_t>(batch.tokens));
    for (int64_t sequence = 0; sequence < batch.sequences; ++sequence)
        sequences.insert(sequences.end(), static_cast<size_t>(batch.added[sequence]), sequence);
    return sequences;
}

Selected::Selected(const Batch &batch, const std::vector<Tables> &tables, const std::vector<int64_t> &sequences) : batch_(batch) {
    const int64_t *selected = batch.selected;
    std::vector<int64_t> owners; // of the runs
    int64_t blocks = 0, source_blocks = 0;
    for (int64_t i = 0; i < batch.selections; ++i) {
        const int64_t token = selected[i], owner = sequences[static_cast<size_t>(token)];
        const bool goes_on = i > 0 && token == selected[i - 1] + 1 && owner == owners.back();
        if (!goes_on) {
            owners.push_back(owner);
            added_.push_back(0);
            context_.push_back(0);
            if (batch.sources) sources_.push_back(batch.sources[owner]);
        }
        ++added_.back();
        positions_.push_back(batch.positions[token]);
        context_.back() = positions_.back() + 1;
        blocks = std::max(blocks, (context_.back() + batch.block_size - 1) / batch.block_size);
    }
    for (const int64_t source : sources_)
        source_blocks = std::max(source_blocks, (source + batch.block_size - 1) / batch.block_size);
    batch_.positions = positions_.data();
    batch_.tokens = batch.selections;
    batch_.added = added_.data();
    batch_.context = context_.data();
    batch_.sources = batch.sources ? sources_.data() : nullptr;
    batch_.sequences = static_cast<int64_t>(owners.size());
    batch_.shares = 0;
    for (const Tables &table : tables) {
        std::vector<int32_t> &rows = blocks_.emplace_back();
        std::vector<int64_t> &dropped = dropped_.emplace_back();
        const int64_t width = std::min(table.of_sources ? source_blocks : blocks, table.stride);
        for (const int64_t owner : owners) {
            const int32_t *row = table.blocks + owner * table.stride;
            rows.insert(rows.end(), row, row + width);
            dropped.push_back(table.dropped_of(owner));
        }
        tables_.push_back({rows.data(), width, table.dropped ? dropped.data() : nullptr});
    }
}

void store_kv(const Heads &heads, const Batch &batch, const std::vector<int64_t> &sequences, const Tables &tables,
              const Rows &qkv, const Cache &cache, const Stripe &stripe) {
    const int64_t width = heads.key * heads.size, own_size = stripe.own_size(batch.block_size);
    const int64_t all = batch.tokens + batch.shares;
    pool()->run((all + kTokens - 1) / kTokens, [&](int64_t task) {
        const int64_t last = std::min(all, (task + 1) * kTokens);
        // Whether all that a tile has comes from here on: a sequence's tokens follow each other.
        const auto is_tile = [&](int64_t i, int64_t sequence, int64_t place) {
            return cache.kept == Kept::plain && place % kStep == 0 && i + kStep <= std::min(last, batch.tokens) &&
                   sequences[static_cast<size_t>(i + kStep - 1)] == sequence;
        };
        for (int64_t i = task * kTokens; i < last; ++i) {
            const bool own = i < batch.tokens;
            const int64_t token = own ? i : batch.shared[2 * (i - batch.tokens)];
            const int64_t sequence = own ? sequences[static_cast<size_t>(i)] : batch.shared[2 * (i - batch.tokens) + 1];
            const int64_t in_context = batch.positions[token] - tables.dropped_of(sequence);
            if (!stripe.has(in_context, batch.block_size)) continue;
            const int64_t place = stripe.before(in_context, batch.block_size);
            const CacheTile tile = tables.tile(sequence, place, own_size);
            const float *keys = qkv.row(token) + heads.query * heads.size;
            if (is_tile(i, sequence, place)) {
                store_tile(cache, tile, {keys, qkv.stride}, {keys + width, qkv.stride});
                i += kStep - 1;
                continue;
            }
            const auto plain = cache.type == Type::float32 ? store_token<float> : store_token<uint16_t>;
            const auto store = cache.kept == Kept::plain ? plain : cache.kept == Kept::int4 ? store_int4 : store_bytes;
            store(cache, tile, place % kStep, keys, keys + width);
        }
    });
}

} // namespace penstock
