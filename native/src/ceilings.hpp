// What the machine itself can do, measured: the figures that kernels are compared with.
#pragma once

#include <cstdint>

namespace penstock {

// Reads `bytes` of memory once, on all threads; the result keeps the compiler from leaving it out.
uint64_t read_memory(const uint8_t *memory, int64_t bytes);

// Multiplies and adds in registers on all threads, as the kernels in use do for int8, bfloat16 or float32 weights.
// Returns how many multiplications and additions that were; 0 where the instruction set has no such loop.
int64_t compute_int8(int64_t rounds);
int64_t compute_bfloat16(int64_t rounds);
int64_t compute_float32(int64_t rounds);

} // namespace penstock
