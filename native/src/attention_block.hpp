// A span of keys and values against some queries: the inner part of attention, which instruction sets provide.
#pragma once

#include "kv.hpp"

#include <cstdint>

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
// early. Pointers of tiles that a span does not have are those of one that it has.
struct Tiles {
    const uint8_t *keys[kSpanTiles], *values[kSpanTiles];
};

struct Block {
    // [rows, size]; `units` are the same values as the cache stores them, in units of four bytes.
    const float *queries;
    const uint32_t *units;
    int64_t rows, size;
    Type type;
    // For each `group` of rows the positions of the span that they see: from lows[i] on, before highs[i]. Those with
    // none are left alone.
    const int64_t *lows, *highs;
    int64_t group;
    Tiles tiles, next;
    // The tiles that somebody sees: from first_tile on, before last_tile.
    int64_t first_tile, last_tile;
    float scale, softcap; // no soft cap where it is 0
    State *states;        // [rows]
};

} // namespace penstock
