// Stored values to floats and back.
#pragma once

#include "linear.hpp"

namespace penstock {

struct MutableRows {
    void *data;
    Type type;
    int64_t stride;
};

// `count` values from element `at` on, as floats.
void read_values(const void *data, Type type, int64_t at, int64_t count, float *into);
// And back, rounded to the nearest where the rows are bfloat16.
void write_values(const float *from, const MutableRows &rows, int64_t at, int64_t count);

} // namespace penstock
