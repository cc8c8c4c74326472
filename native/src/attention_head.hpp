// Attention of one KV head over a row of tokens that are all in the step and see each other: what instruction sets may provide
// besides the inner part for spans of a cache.
#pragma once

#include <cstdint>

namespace penstock {

// Queries [first, last) of a row of tokens, against all keys and values that they see. `first` is a multiple of 16: by that, what
// a query's result is does not depend on which queries are taken with it.
struct HeadRows {
    // Those of the row's first token, of this KV head and of the first of the query heads that share it. From token to token it is
    // `stride` floats further, and from query head to query head `size`.
    const float *queries, *keys, *values;
    int64_t stride;
    int64_t first, last;
    int64_t seen;   // how many of the row's first tokens are seen
    int64_t window; // as attention.hpp says, and what follows
    int64_t size, group;
    float scale;
    const float *bias; // of the first of the query heads
    int64_t reach;
    // Like queries.
    float *output;
    int64_t output_stride;
};

} // namespace penstock
