// The paged KV cache as the kernels keep it: tiles of kStep positions, in which a head's keys, and a head's values, are one
// piece of memory, in the order in which attention multiplies them.
//
//   keys    [tile][KV head][size / pair][kStep][pair]
//   values  [tile][KV head][kStep / pair][size][pair]
//
// A pair is what fills four bytes: 1 float32 or 2 bfloat16. A block of the cache is one piece of memory, which has a whole number
// of tiles of each layer that is in it; from one block to the next it is as far for all of a layer's planes.
//
// Where values are kept as bytes, they lie in the same order, and have a scale for each head and token beside them:
//
//   scales  [tile][KV head][kStep], of the keys and of the values
//
// Of latent attention, keys are values, too: there are no others, and those of a tile are put in the order of values when they
// are multiplied.
//
// Bytes that are integers (int8) are multiplied as such, in pairs whatever the type is (attention_block.hpp).
//
// Where they are integers of 4 bits, each 64 of that order are 32 bytes, whose low nibbles are the first 32. Each kKvGroup of a
// head's values have a scale and a least value of their own, in bfloat16:
//
//   scales  [tile][KV head][size / kKvGroup][2][kStep]
#pragma once

#include "rows.hpp"
#include "values.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

// Positions of a tile: a vector's lanes.
constexpr int64_t kStep = 16;
constexpr int64_t kUnit = 4; // bytes

// Values of a head that share a scale where they are kept in 4 bits; its size is a multiple of two such groups.
constexpr int64_t kKvGroup = 32;

// What a value is kept as: as it is, or as a byte, that times its scale is what it stands for, or as an integer in 0..15, that
// times its scale and above the least value is. What is expanded (fp8, int4) is rounded to the cache's type once.
enum class Kept : int { plain, int8, fp8, int4 };

// A tile of a layer: the block that it is in, and which of the block's tiles it is.
struct CacheTile {
    int64_t block, index;
};

struct Cache {
    uint8_t *keys, *values; // of the first block; no values where keys are values, too
    int64_t block_bytes;    // from one block to the next
    Type type; // what attention multiplies
    int64_t heads, size;
    Kept kept = Kept::plain;
    uint8_t *key_scales = nullptr, *value_scales = nullptr; // where values are not plain

    PENSTOCK_INLINE bool latent() const { return values == nullptr; }
    PENSTOCK_INLINE bool integers() const { return kept == Kept::int8; }
    PENSTOCK_INLINE int64_t pair() const { return type == Type::float32 && !integers() ? 1 : 2; }
    // Bytes of one head's keys, or values, in a tile, as they are multiplied and as they are kept.
    PENSTOCK_INLINE int64_t multiplied_bytes() const { return size / pair() * kStep * kUnit; }
    PENSTOCK_INLINE int64_t head_bytes() const {
        return kept == Kept::plain ? multiplied_bytes() : kept == Kept::int4 ? size * kStep / 2 : size * kStep;
    }
    // Where the scales of a head's part of a tile begin.
    PENSTOCK_INLINE int64_t scales_at(const CacheTile &tile, int64_t head) const {
        const int64_t bytes = kept == Kept::int4 ? size / kKvGroup * 2 * kStep * 2 : kStep * 4;
        return tile.block * block_bytes + (tile.index * heads + head) * bytes;
    }
    // Where a head's part of a tile begins, in the keys and in the values.
    PENSTOCK_INLINE int64_t place(const CacheTile &tile, int64_t head) const {
        return tile.block * block_bytes + (tile.index * heads + head) * head_bytes();
    }
};

// A ragged step: sequences one after another, with the positions that each adds and has in all.
struct Batch {
    const int64_t *ids;       // [tokens]
    const int64_t *positions; // [tokens]
    int64_t tokens;
    const int64_t *added;   // [sequences]
    const int64_t *context; // [sequences]
    int64_t sequences;
    const int64_t *selected; // indices into the tokens
    int64_t selections;
    int64_t block_size;
    const int64_t *shared; // [shares, 2]: a token, and a sequence besides its own whose context it belongs to
    int64_t shares;
    const int64_t *types = nullptr; // [tokens]; null: all are 0
    const int64_t *sources = nullptr; // [sequences]: tokens of what each has as its source; null: there are none
    const int64_t *seen = nullptr;  // [sequences]: how many of the first tokens queries see that see what is behind them; null: all
};

// What one of several ranks keeps of each block: the `rank`-th of `ranks` equal parts of it, which is a block of the rank's own
// cache. Its places follow each other there, so that what is seen of a context up to a place is a beginning of them.
struct Stripe {
    int64_t rank = 0, ranks = 1;

    PENSTOCK_INLINE int64_t own_size(int64_t block_size) const { return block_size / ranks; }
    // Of the places of a block, and then of a context, how many before `place` are this rank's.
    PENSTOCK_INLINE int64_t before(int64_t place, int64_t block_size) const {
        if (ranks == 1) return place;
        const int64_t own = own_size(block_size), beyond = place % block_size - rank * own;
        return place / block_size * own + (beyond < 0 ? 0 : beyond < own ? beyond : own);
    }
    // Of the rows of a step, which are shared out as well, its first one; that of the next rank is behind its last.
    PENSTOCK_INLINE int64_t first_row(int64_t rows) const { return rows * rank / ranks; }
    PENSTOCK_INLINE int64_t own_rows(int64_t rows) const { return rows * (rank + 1) / ranks - first_row(rows); }
    PENSTOCK_INLINE bool has(int64_t place, int64_t block_size) const {
        return place % block_size / own_size(block_size) == rank;
    }
    // The place that has `own` of this rank's before it, and is one of these.
    PENSTOCK_INLINE int64_t place_of(int64_t own, int64_t block_size) const {
        const int64_t size = own_size(block_size);
        return own / size * block_size + rank * size + own % size;
    }
};

// How much attention is given to what is in each block: the sum of the weights of all its places, over the last queries of a
// sequence, as many as are `weighed`, over query heads, and over the layers that read by these tables.
struct Weighing {
    const int64_t *weighed = nullptr; // [sequences]; null: nothing is asked
    float *masses = nullptr;          // [sequences, stride], to which is added
    int64_t stride = 0;
};

// Blocks of each sequence, in one of the cache's groups, in the order of its positions. Where whole blocks of them were given up,
// those behind have moved up: of a context's positions `dropped` have none any more, and all others are seen by what comes.
// Where it is `of_sources`, they are blocks of each sequence's source.
struct Tables {
    const int32_t *blocks; // [sequences, stride]
    int64_t stride;
    const int64_t *dropped = nullptr; // [sequences]; null: none of any
    Weighing weighing{};
    bool of_sources = false;

    PENSTOCK_INLINE int64_t dropped_of(int64_t sequence) const { return dropped ? dropped[sequence] : 0; }
    PENSTOCK_INLINE int64_t weighed_of(int64_t sequence) const { return weighing.weighed ? weighing.weighed[sequence] : 0; }
    // Of a place: a position less those that were dropped.
    PENSTOCK_INLINE CacheTile tile(int64_t sequence, int64_t place, int64_t block_size) const {
        return {blocks[sequence * stride + place / block_size], place % block_size / kStep};
    }
};

// Makes of one head's part of a tile, where it is fp8 or int4, what attention multiplies: `multiplied_bytes` of keys and of values.
void expand(const Cache &cache, const CacheTile &tile, int64_t head, uint8_t *keys, uint8_t *values);

// Makes of one head's keys in a tile, which are plain or int8, values in the order in which attention multiplies them.
void keys_as_values(const Cache &cache, const uint8_t *keys, uint8_t *values);

// The sequence of each token.
std::vector<int64_t> sequences_of_tokens(const Batch &batch);

// A step's selected tokens as a batch of their own, with its memory: its sequences are runs of adjacent tokens of one sequence,
// and see what that has up to them. What it was made of must outlive it. Its attention is not weighed.
class Selected {
public:
    Selected(const Batch &batch, const std::vector<Tables> &tables, const std::vector<int64_t> &sequences);
    Selected(const Selected &) = delete;
    Selected &operator=(const Selected &) = delete;

    const Batch &batch() const { return batch_; }
    const std::vector<Tables> &tables() const { return tables_; }

private:
    Batch batch_;
    std::vector<Tables> tables_;
    std::vector<std::vector<int32_t>> blocks_;
    std::vector<std::vector<int64_t>> dropped_;
    std::vector<int64_t> positions_, added_, context_, sources_;
};

// Stores the key and value heads of each token of `qkv` (query heads first) at its position, in its own sequence, of
// `sequences`, and in those that it is shared with; of several ranks, where it is this one's.
void store_kv(const Heads &heads, const Batch &batch, const std::vector<int64_t> &sequences, const Tables &tables,
              const Rows &qkv, const Cache &cache, const Stripe &stripe = {});

} // namespace penstock
