// Attention's inner part for processors with AMX: 16 rows of queries meet 16 positions, or 16 columns of values, at once.
#include "amx.hpp"
#include "attention_avx512.hpp"

#include <algorithm>

namespace penstock {
namespace {

constexpr int64_t kRows = kTileRegisterRows;
// Pairs of bfloat16 values in a line, and columns of values in one.
constexpr int64_t kPairs = kLine / 4, kColumns = kLine / 4;

// Registers 0 to 3 are sums, 4 queries and 5 keys; 6 are the weights of a tile's 16 positions, in 8 pairs, and 7 its values.
constexpr TileConfiguration made_configuration() {
    TileConfiguration made = tile_configuration(kRows, kLine);
    made.bytes[6] = kStep * 2;
    made.rows[7] = kStep / 2;
    return made;
}
constexpr TileConfiguration kConfiguration = made_configuration();

struct alignas(64) Scratch {
    float scores[kRows][kSpan], weights[kSpan], mixed[kRows][4 * kColumns];
    uint32_t units[kRows][kSpan / 2];
};

// Asks for a head's keys or values in the next span.
void ask_for(const uint8_t *const *tiles, const Block &block, int64_t bytes) {
    for (int64_t tile = block.first_tile; tile < block.last_tile; ++tile)
        for (int64_t at = 0; at < bytes; at += kLine)
            _mm_prefetch(reinterpret_cast<const char *>(tiles[tile] + at), _MM_HINT_T1);
}

// Unscaled scores of 16 rows with the span's tiles; rows behind the block's last are read, and make nothing that is used.
void score(const Block &block, int64_t row, Scratch &scratch) {
    const int64_t width = block.size / 2, stride = width * 4, first = block.first_tile, last = block.last_tile;
    const uint32_t *units = block.units + row * width;
    finish_writing();
    PENSTOCK_EACH(PENSTOCK_ZERO)
    for (int64_t at = 0; at < width; at += kPairs) {
        _tile_loadd(4, (units + at), stride);
#define PENSTOCK_SCORE(i)                                                                                                        \
    if (first <= i && i < last) {                                                                                                \
        _tile_loadd(5, (block.tiles.keys[i] + at * kLine), kLine);                                                                \
        _tile_dpbf16ps(i, 4, 5);                                                                                                 \
    }
        PENSTOCK_EACH(PENSTOCK_SCORE)
    }
#define PENSTOCK_LEAVE_SCORES(i) _tile_stored(i, (scratch.scores[0] + i * kStep), kSpan * 4);
    PENSTOCK_EACH(PENSTOCK_LEAVE_SCORES)
}

// Values of up to 64 columns from `column` on, times the rows' weights.
void mix(const Block &block, int64_t column, int64_t columns, Scratch &scratch) {
    const int64_t stride = block.size * 4;
    finish_writing();
    PENSTOCK_EACH(PENSTOCK_ZERO)
    for (int64_t tile = block.first_tile; tile < block.last_tile; ++tile) {
        const uint8_t *values = block.tiles.values[tile] + column * 4;
        _tile_loadd(6, (scratch.units[0] + tile * kStep / 2), kSpan * 2);
#define PENSTOCK_MIX(i)                                                                                                          \
    if (i * kColumns < columns) {                                                                                                \
        _tile_loadd(7, (values + i * kLine), stride);                                                                             \
        _tile_dpbf16ps(i, 6, 7);                                                                                                 \
    }
        PENSTOCK_EACH(PENSTOCK_MIX)
    }
#define PENSTOCK_LEAVE_MIXED(i)                                                                                                  \
    if (i * kColumns < columns) _tile_stored(i, (scratch.mixed[0] + i * kColumns), 4 * kColumns * 4);
    PENSTOCK_EACH(PENSTOCK_LEAVE_MIXED)
}

void attend_rows(const Block &block, int64_t row, int64_t rows) {
    Scratch scratch;
    float kept[kRows];
    score(block, row, scratch);
    for (int64_t r = 0; r < kRows; ++r) {
        const int64_t query = (row + r) / block.group;
        const uint64_t seen = r < rows ? seen_by(block.lows[query], block.highs[query]) : 0;
        kept[r] = 1.0f;
        if (seen == 0) {
            std::fill(scratch.units[r], scratch.units[r] + kSpan / 2, 0u);
            continue;
        }
        kept[r] = weigh<false>(block, row + r, seen, scratch.scores[r], scratch.weights);
        for (int64_t t = 0; t < kSpan; t += 16)
            _mm256_store_si256(reinterpret_cast<__m256i *>(scratch.units[r] + t / 2),
                               reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_load_ps(scratch.weights + t))));
    }
    for (int64_t column = 0; column < block.size; column += 4 * kColumns) {
        const int64_t columns = std::min(4 * kColumns, block.size - column);
        mix(block, column, columns, scratch);
        for (int64_t r = 0; r < rows; ++r) {
            float *mixed = block.states[row + r].mixed + column;
            for (int64_t c = 0; c < columns; c += kColumns)
                _mm512_storeu_ps(mixed + c, _mm512_fmadd_ps(_mm512_loadu_ps(mixed + c), _mm512_set1_ps(kept[r]),
                                                            _mm512_load_ps(scratch.mixed[r] + c)));
        }
    }
}

} // namespace

void attend_block_amx(const Block &block) {
    // What heads have besides whole registers.
    if (block.query_scales || block.type != Type::bfloat16 || block.size % (2 * kPairs) != 0)
        return attend_block_avx512_vnni(block);
    configure(kConfiguration);
    ask_for(block.next.keys, block, block.size * kStep * 2);
    ask_for(block.next.values, block, block.size * kStep * 2);
    for (int64_t row = 0; row < block.rows; row += kRows) attend_rows(block, row, std::min(kRows, block.rows - row));
}

} // namespace penstock
