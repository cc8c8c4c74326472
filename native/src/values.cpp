#include "values.hpp"

#include "clones.hpp"
#include "half.hpp"

#include <cstring>

namespace penstock {

PENSTOCK_CLONES void widen(const uint16_t *from, float *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] = bf16_to_float(from[i]);
}

PENSTOCK_CLONES void narrow(const float *from, uint16_t *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] = float_to_bf16(from[i]);
}

PENSTOCK_CLONES void copy_rows(const float *rows, int64_t stride, int64_t number, int64_t count, float *into) {
    for (int64_t row = 0; row < number; ++row, rows += stride, into += count)
        for (int64_t i = 0; i < count; ++i) into[i] = rows[i];
}

PENSTOCK_CLONES void narrow_rows(const float *rows, int64_t stride, int64_t number, int64_t count, uint16_t *into) {
    for (int64_t row = 0; row < number; ++row, rows += stride, into += count)
        for (int64_t i = 0; i < count; ++i) into[i] = float_to_bf16(rows[i]);
}

PENSTOCK_CLONES void round_to_bfloat16(const float *from, float *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] = bf16_to_float(float_to_bf16(from[i]));
}

PENSTOCK_CLONES void multiply_values(float factor, float *values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

void read_values(const Stored &rows, int64_t at, int64_t count, float *into) {
    if (rows.type == Type::bfloat16) widen(static_cast<const uint16_t *>(rows.data) + at, into, count);
    else std::memcpy(into, static_cast<const float *>(rows.data) + at, static_cast<size_t>(count) * sizeof(float));
}

void write_values(const float *from, const Stored &rows, int64_t at, int64_t count) {
    if (rows.type == Type::bfloat16) narrow(from, static_cast<uint16_t *>(rows.data) + at, count);
    else std::memcpy(static_cast<float *>(rows.data) + at, from, static_cast<size_t>(count) * sizeof(float));
}

} // namespace penstock
