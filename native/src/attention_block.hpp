// A span of keys and values against some queries: the inner part of attention, which instruction sets provide.
#pragma once

#include "kv.hpp"

#include <cstdint>
#include <limits>

namespace penstock {

// Positions that a softmax takes in at once.
constexpr int64_t kSpan = 64;
constexpr int64_t kSpanTiles = kSpan / kStep;

// A running softmax: the largest score, the sum of exponentials relative to it, and the weighted sum of values.
struct State {
    float most, total;
    float *mixed;
};

// Keys and values of one head in the tiles of a span (kv.hpp), and where those of the next span are, to be asked for
// early. Pointers of tiles that a span does not have are those of one that it has. Scales are there where keys and values are
// multiplied as integers: one for each position.
struct Tiles {
    const uint8_t *keys[kSpanTiles], *values[kSpanTiles];
    const float *key_scales[kSpanTiles], *value_scales[kSpanTiles];
};

// Integers are multiplied by integers of 16 bits, and added up exactly in 32: a row of queries by its own scale, for the sum of
// as many products with bytes as a head has values; and the softmax's weights in a span, times the scales of the values, by the
// largest of them. Each is nearer to what it stands for than a bfloat16 is.
constexpr float kMostWeight = 32767.0f;
inline float most_of_query(int64_t size) {
    const int64_t most = std::numeric_limits<int32_t>::max() / (127 * size);
    return most < 32767 ? static_cast<float>(most) : 32767.0f;
}
// Weights whose largest is below this are none: by their scale others would be divided by nothing.
constexpr float kLeastWeight = 0x1p-100f;

struct Block {
    // [rows, size]; `units` are the same values as the cache stores them, in units of four bytes.
    const float *queries;
    const uint32_t *units;
    int64_t rows, size;
    Type type;
    // Where units are pairs of integers, the scale of each row's; keys and values are bytes then. Null otherwise.
    const float *query_scales;
    // For each `group` of rows the positions of the span that they see: from lows[i] on, before highs[i]. Those with
    // none are left alone.
    const int64_t *lows, *highs;
    int64_t group;
    Tiles tiles, next;
    // The tiles that somebody sees: from first_tile on, before last_tile.
    int64_t first_tile, last_tile;
    float scale, softcap; // no soft cap where it is 0
    State *states;        // [rows]
    // Where it is asked: what the weights of each tile add up to, [rows, kSpanTiles]; null else. Rows that see nothing of a
    // span leave theirs alone.
    float *sums;
    // What is added to scaled scores, [rows, kSpan]; null: nothing.
    const float *bias;
};

} // namespace penstock
