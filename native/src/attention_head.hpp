// Instruction sets may compute attention over rows of tokens by themselves: here is what one call of theirs gets.
#pragma once

#include "formats.hpp"

#include <algorithm>
#include <cstdint>

namespace penstock {

// The last position that one at `own` sees of those before `seen`, where it sees what is behind it, too; then the first. `window` is
// as attention.hpp says. Where it is behind all that is seen, the position sees the last of these.
PENSTOCK_INLINE int64_t last_seen(int64_t own, int64_t window, int64_t seen) {
    return window == 0 ? seen - 1 : std::min(seen - 1, own + window - 1);
}
PENSTOCK_INLINE int64_t first_seen(int64_t own, int64_t window, int64_t last) {
    return window == 0 ? 0 : std::min(std::max<int64_t>(0, own - window + 1), last);
}

// Positions that a softmax takes in at once, of a head.
constexpr int64_t kHeadSegment = 256;

// Queries [first, last) of one row of tokens and one KV head, against all keys and values that they see. All of the row's tokens
// are in the step. `first` is a multiple of 16: a query then has the same neighbours in a vector, whatever the other pieces are.
struct HeadRows {
    // Numbers of the row's first token: its keys and values in the KV head, and its queries in the first query head that shares
    // these. The next token is `stride` floats further, the next query head `size` floats.
    const float *queries, *keys, *values;
    int64_t stride;
    int64_t first, last;
    int64_t seen;   // how many of the row's first tokens are seen
    int64_t window; // 0: none
    int64_t size, group;
    float scale; // more than 0
    // As attention.hpp has them, for the first query head; may be null.
    const float *bias;
    int64_t reach;
    // The output of the row's first token, like its queries.
    float *output;
    int64_t output_stride;
    // `scratch_bytes` bytes that begin with a line.
    uint8_t *scratch;

    PENSTOCK_INLINE int64_t blocks() const { return (last - first + 15) / 16 * group; }
};

// Keys and values of a segment as bfloat16; and for each 16 queries these as bfloat16, a float for each number of their output,
// and two more.
PENSTOCK_INLINE int64_t scratch_bytes(const HeadRows &rows) {
    return 2 * kHeadSegment * rows.size * 2 + rows.blocks() * 16 * (rows.size * 2 + rows.size * 4 + 2 * 4);
}

} // namespace penstock
