// Stored values to floats and back, and runs of floats.
#pragma once

#include <cstdint>

namespace penstock {

// What values in Python's arrays and in the cache are.
enum class Type : int { float32, bfloat16 };

// Rows of stored values, `stride` values apart.
struct Stored {
    void *data;
    Type type;
    int64_t stride;
};

void widen(const uint16_t *from, float *into, int64_t count);
// To the nearest bfloat16, ties to even.
void narrow(const float *from, uint16_t *into, int64_t count);
// Rows of `count` values that are `stride` apart, side by side; as they are, or narrowed.
void copy_rows(const float *rows, int64_t stride, int64_t number, int64_t count, float *into);
void narrow_rows(const float *rows, int64_t stride, int64_t number, int64_t count, uint16_t *into);
// To the nearest bfloat16, left as floats.
void round_to_bfloat16(const float *from, float *into, int64_t count);

void multiply_values(float factor, float *values, int64_t count);

// `count` values from element `at` on, as floats, and back.
void read_values(const Stored &rows, int64_t at, int64_t count, float *into);
void write_values(const float *from, const Stored &rows, int64_t at, int64_t count);

} // namespace penstock
