// One block of keys and values against some queries: the inner part of attention, which instruction sets provide.
#pragma once

#include "linear.hpp"

#include <cstdint>

namespace penstock {

// Positions of a block: a vector's lanes.
constexpr int64_t kStep = 16;

// A running softmax: the largest score, the sum of exponentials relative to it, and the weighted sum of values.
struct State {
    float most, total;
    float *mixed;
};

struct Block {
    const float *queries; // [rows, size]
    int64_t rows, size;
    // For each `group` of rows the positions of the block that they see: from lows[i] on, before highs[i]. Those with
    // none are left alone.
    const int64_t *lows, *highs;
    int64_t group;
    const float *columns; // keys, [size][kStep]
    const float *values;  // [kStep][size]
    float scale, softcap; // no soft cap where it is 0
    State *states;        // [rows]
};

// One head's rows of a plane, `stride` values apart. `turn_keys` makes them columns, [size][kStep] floats.
struct Plane {
    const void *rows;
    Type type;
    int64_t stride;
};

} // namespace penstock
