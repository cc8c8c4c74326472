// Attention of a ragged batch over the paged KV cache.
//
// A query's result depends on its own sequence's keys and values by absolute position alone: they are taken in spans of
// kSpan positions, spans are added up within segments of kSegment positions, and segments are merged in ascending order,
// each with a running maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). What else is in
// the batch, which chunk a query came in, or which threads take which segments, changes nothing.
#pragma once

#include "kv.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

struct Attention {
    Heads heads; // query and KV heads
    float scale;
    int64_t window; // 0: none
    float softcap;  // 0: none
    const float *sinks; // a score for each query head beside those of positions, of values that are 0; may be null
    bool mutual = false; // whether queries see what is behind them, too: all of it, or up to the window on that side
    // What scaled scores get by how far keys are from their query, [query heads, 2 · reach + 1]; farther ones get what the
    // farthest do. May be null.
    const float *bias = nullptr;
    int64_t reach = 0;
};

// `output` [tokens, query heads · size] from the query heads of `qkv`; this step's keys and values have been stored.
void attend(const Attention &attention, const Batch &batch, const Tables &tables, const Rows &qkv, const Cache &cache,
            const MutableRows &output);

// The same where a step has all tokens of its sequences, and nothing is stored: keys and values are multiplied as `type`.
void attend_rows(const Attention &attention, Type type, const Batch &batch, const std::vector<int64_t> &sequences, const Rows &qkv,
                 const MutableRows &output);

} // namespace penstock
