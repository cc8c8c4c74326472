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
    // What of each context is in this cache. Where others have the rest, there are no sinks.
    Stripe stripe{};

    // Of a row of the output: its heads, and where others have the rest, for each head the two other numbers of a `State`.
    int64_t made_width() const { return heads.query * (heads.size + (stripe.ranks > 1 ? 2 : 0)); }
};

// `output` [tokens, made width] from the query heads of `qkv`; this step's keys and values have been stored.
//
// Where others have the rest of each context, it has softmaxes that are not ended: of each head the sum of weighted values; then
// of all heads their largest scores, and then the sums of their weights. `merge_stripes` makes one of those of all ranks.
void attend(const Attention &attention, const Batch &batch, const Tables &tables, const Rows &qkv, const Cache &cache,
            const MutableRows &output);

// `output` [rows, query heads · size] from `parts` [rows, ranks · made width], in the order of ranks; `sinks` as above.
void merge_stripes(const Heads &heads, int64_t ranks, const float *sinks, const Rows &parts, int64_t rows, const MutableRows &output);

// The same as `attend` where a step has all tokens of its sequences, and nothing is stored: keys and values are multiplied as `type`.
void attend_rows(const Attention &attention, Type type, const Batch &batch, const std::vector<int64_t> &sequences, const Rows &qkv,
                 const MutableRows &output);

} // namespace penstock
