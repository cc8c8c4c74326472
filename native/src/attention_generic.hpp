// A span of keys and values against some queries, without instruction sets of its own: what Kernels::attend_block means.
#pragma once

#include "attention_block.hpp"
#include "clones.hpp"
#include "exponential.hpp"
#include "memory.hpp"
#include "rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace penstock {

namespace {

inline float as_float(float value) { return value; }
inline float as_float(uint16_t value) { return bf16_to_float(value); }

// One query's scores in a tile, and what it takes in of the tile's values [kStep / pair][size][pair].
template <typename Value>
PENSTOCK_INLINE void scores_in(const float *query, const uint8_t *tile, int64_t size, float *scores) {
    constexpr int64_t pair = kUnit / static_cast<int64_t>(sizeof(Value));
    const auto *keys = reinterpret_cast<const Value *>(tile);
    float sums[kStep] = {};
    for (int64_t i = 0; i < size; i += pair)
        for (int64_t t = 0; t < kStep; ++t)
            for (int64_t j = 0; j < pair; ++j) sums[t] += query[i + j] * as_float(keys[(i * kStep) + t * pair + j]);
    std::memcpy(scores, sums, sizeof sums);
}

template <typename Value>
PENSTOCK_INLINE void mix_in(float weight, const uint8_t *tile, int64_t at, int64_t size, float *mixed) {
    constexpr int64_t pair = kUnit / static_cast<int64_t>(sizeof(Value));
    const auto *values = reinterpret_cast<const Value *>(tile) + at / pair * size * pair + at % pair;
    for (int64_t i = 0; i < size; ++i) mixed[i] += weight * as_float(values[i * pair]);
}

PENSTOCK_CLONES void scores_of(Type type, const float *query, const uint8_t *tile, int64_t size, float *scores) {
    if (type == Type::float32) scores_in<float>(query, tile, size, scores);
    else scores_in<uint16_t>(query, tile, size, scores);
}

PENSTOCK_CLONES void mix(Type type, float weight, const uint8_t *tile, int64_t at, int64_t size, float *mixed) {
    if (type == Type::float32) mix_in<float>(weight, tile, at, size, mixed);
    else mix_in<uint16_t>(weight, tile, at, size, mixed);
}

// The same in integers.
PENSTOCK_CLONES void scores_of(const int16_t *query, const uint8_t *tile, int64_t size, int32_t *scores) {
    const auto *keys = reinterpret_cast<const int8_t *>(tile);
    for (int64_t t = 0; t < kStep; ++t) scores[t] = 0;
    for (int64_t i = 0; i < size; i += 2)
        for (int64_t t = 0; t < kStep; ++t)
            scores[t] += query[i] * keys[i * kStep + 2 * t] + query[i + 1] * keys[i * kStep + 2 * t + 1];
}

PENSTOCK_CLONES void mix(int32_t weight, const uint8_t *tile, int64_t at, int64_t size, int32_t *mixed) {
    const auto *values = reinterpret_cast<const int8_t *>(tile) + at / 2 * size * 2 + at % 2;
    for (int64_t i = 0; i < size; ++i) mixed[i] += weight * values[2 * i];
}

// A row of queries as integers, at most `most`; returns their scale, which is not a number where a value is not finite.
PENSTOCK_CLONES float round_query(const float *query, int64_t size, float most, int16_t *integers) {
    float largest = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < size; ++i) {
        const float magnitude = std::fabs(query[i]);
        finite &= magnitude <= std::numeric_limits<float>::max();
        largest = magnitude > largest ? magnitude : largest;
    }
    const float scale = finite ? largest / most : 0.0f;
    for (int64_t i = 0; i < size; ++i) {
        const float part = scale > 0.0f ? std::nearbyint(query[i] / scale) : 0.0f;
        integers[i] = static_cast<int16_t>(part > most ? most : part < -most ? -most : part);
    }
    return finite ? scale : std::numeric_limits<float>::quiet_NaN();
}

PENSTOCK_CLONES void exponentials(const float *scores, float most, int64_t count, float *weights) {
    for (int64_t t = 0; t < count; ++t) weights[t] = exponential(scores[t] - most);
}

// What a row makes of its scores at the positions from `low` on, before `high`: weights, and the factor of what it had before.
float weigh(const Block &block, State &state, int64_t low, int64_t high, float *scores, float *weights) {
    float most = state.most;
    if (block.bias)
        for (int64_t t = low; t < high; ++t) scores[t] += block.bias[(&state - block.states) * kSpan + t];
    for (int64_t t = low; t < high; ++t) {
        if (block.softcap != 0.0f) scores[t] = soft_capped(scores[t], block.softcap);
        most = scores[t] > most ? scores[t] : most;
    }
    // A score that is not a number is not larger than any, but its weight is not a number either, as it should be.
    exponentials(scores + low, most, high - low, weights + low);
    float sum = 0.0f;
    for (int64_t t = low; t < high; ++t) sum += weights[t];
    if (float *sums = block.sums) {
        sums += (&state - block.states) * kSpanTiles;
        for (int64_t t = low; t < high; ++t) sums[t / kStep] += weights[t];
    }
    const float kept = exponential(state.most - most);
    state.total = state.total * kept + sum;
    state.most = most;
    return kept;
}

void attend_floats(const Block &block, int64_t row, int64_t low, int64_t high, State &state) {
    float scores[kSpan], weights[kSpan];
    for (int64_t tile = low / kStep; tile * kStep < high; ++tile)
        scores_of(block.type, block.queries + row * block.size, block.tiles.keys[tile], block.size, scores + tile * kStep);
    multiply_values(block.scale, scores + low, high - low);
    multiply_values(weigh(block, state, low, high, scores, weights), state.mixed, block.size);
    for (int64_t t = low; t < high; ++t)
        mix(block.type, weights[t], block.tiles.values[t / kStep], t % kStep, block.size, state.mixed);
}

thread_local Memory t_sums;

void attend_integers(const Block &block, int64_t row, int64_t low, int64_t high, State &state) {
    float scores[kSpan], weights[kSpan];
    const auto *query = reinterpret_cast<const int16_t *>(block.units) + row * block.size;
    const float scale = block.query_scales[row] * block.scale;
    for (int64_t tile = low / kStep; tile * kStep < high; ++tile) {
        int32_t sums[kStep];
        scores_of(query, block.tiles.keys[tile], block.size, sums);
        for (int64_t t = 0; t < kStep; ++t)
            scores[tile * kStep + t] = static_cast<float>(sums[t]) * (block.tiles.key_scales[tile][t] * scale);
    }
    multiply_values(weigh(block, state, low, high, scores, weights), state.mixed, block.size);
    float most = 0.0f, sum = 0.0f;
    for (int64_t t = low; t < high; ++t) {
        weights[t] *= block.tiles.value_scales[t / kStep][t % kStep];
        most = weights[t] > most ? weights[t] : most;
        sum += weights[t];
    }
    auto *mixed = reinterpret_cast<int32_t *>(t_sums.take(block.size * 4));
    std::fill(mixed, mixed + block.size, 0);
    const bool any = most > kLeastWeight && std::isfinite(sum);
    for (int64_t t = low; any && t < high; ++t)
        mix(static_cast<int32_t>(std::nearbyint(weights[t] * (kMostWeight / most))), block.tiles.values[t / kStep], t % kStep,
            block.size, mixed);
    const float unit = std::isfinite(sum) ? most / kMostWeight : std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = 0; i < block.size; ++i) state.mixed[i] += static_cast<float>(mixed[i]) * unit;
}

// The meaning of Kernels::attend_block, and what runs where an instruction set has none.
void attend_block(const Block &block) {
    for (int64_t row = 0; row < block.rows; ++row) {
        const int64_t low = block.lows[row / block.group], high = block.highs[row / block.group];
        if (low >= high) continue;
        (block.query_scales ? attend_integers : attend_floats)(block, row, low, high, block.states[row]);
    }
}

} // namespace

} // namespace penstock
