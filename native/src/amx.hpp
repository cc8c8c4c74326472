// What the files for AMX share. A register is 16 rows of a line, and a product of two is added to 16 × 16 sums of four bytes.
#pragma once

#include "avx512.hpp"
#include "pool.hpp"

namespace penstock {

// Attention's inner part (attention_amx.cpp).
void attend_block_amx(const Block &block);
// Attention over rows (attention_head_amx.cpp).
void attend_head_amx(const HeadRows &rows);

constexpr int kTileRegisterRows = 16;

// How many rows each of the eight registers has, and bytes in them (Intel 64 Software Developer's Manual, volume 1, 18.2).
struct alignas(64) TileConfiguration {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64);

// The same for all registers.
constexpr TileConfiguration tile_configuration(int rows, int64_t bytes) {
    TileConfiguration made{1, 0, {}, {}, {}};
    for (int i = 0; i < 8; ++i) {
        made.rows[i] = static_cast<uint8_t>(rows);
        made.bytes[i] = static_cast<uint16_t>(bytes);
    }
    return made;
}

// What the thread's registers are now, and in which of its turns they became so.
struct Configured {
    uint64_t turn;
    const TileConfiguration *as;
};
extern thread_local Configured t_configured;

// Other code of the process may have left the thread another configuration or none, but not within a turn. To ask the processor
// would wait for all products before.
PENSTOCK_INLINE void configure(const TileConfiguration &wanted) {
    const uint64_t turn = turns_of_thread();
    if (t_configured.turn == turn && t_configured.as == &wanted) return;
    t_configured = {turn, &wanted};
    // A constant: GCC takes the instruction for one that reads eight bytes, and would leave out writing the others.
    _tile_loadconfig(&wanted);
}

// For each of four registers, whose numbers the compiler wants as they are. Some headers of GCC add a stride in bytes to an address
// that is not in parentheses.
#define PENSTOCK_EACH(work) work(0) work(1) work(2) work(3)
#define PENSTOCK_ZERO(i) _tile_zero(i);

// What has been written is in memory for the tile loads that follow. Headers of compilers do not say that these read any.
PENSTOCK_INLINE void finish_writing() { asm volatile("" ::: "memory"); }

} // namespace penstock
