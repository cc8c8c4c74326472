// Attention of a ragged batch over the paged KV cache.
//
// A query's result depends on its own sequence's keys and values by absolute position alone: they are taken in blocks of
// kStep positions, blocks are added up within segments of kSegment positions, and segments are merged in ascending order,
// each with a running maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). What else is in
// the batch, or which chunk a query came in, changes neither.
#pragma once

#include "rows.hpp"

#include <cstdint>

namespace penstock {

struct AttentionBatch {
    const int64_t *added;   // of each sequence, its queries in this step
    const int64_t *context; // and its positions in all, these included
    int64_t sequences;
    const int32_t *tables; // [sequences, table_stride]: block of each absolute block index
    int64_t table_stride;
    int64_t block_size;
};

struct Attention {
    Heads heads; // query and KV heads
    float scale;
    int64_t window; // 0: none
    float softcap;  // 0: none
};

// `output` [queries, query heads · size] from the query heads of `qkv`. Keys and values are [slots, KV heads, size], dense
// in the last two; those of this step have been stored.
void attend(const Attention &attention, const AttentionBatch &batch, const Rows &qkv, const Rows &keys,
            const Rows &values, const MutableRows &output);

} // namespace penstock
