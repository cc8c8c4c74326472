#include "values.hpp"

#include "clones.hpp"

#include <cstring>

namespace penstock {

namespace {

PENSTOCK_CLONES void widen(const uint16_t *from, float *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] = bf16_to_float(from[i]);
}

PENSTOCK_CLONES void narrow(const float *from, uint16_t *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] = float_to_bf16(from[i]);
}

} // namespace

void read_values(const void *data, Type type, int64_t at, int64_t count, float *into) {
    if (type == Type::bfloat16) widen(static_cast<const uint16_t *>(data) + at, into, count);
    else std::memcpy(into, static_cast<const float *>(data) + at, static_cast<size_t>(count) * sizeof(float));
}

void write_values(const float *from, const MutableRows &rows, int64_t at, int64_t count) {
    if (rows.type == Type::bfloat16) narrow(from, static_cast<uint16_t *>(rows.data) + at, count);
    else std::memcpy(static_cast<float *>(rows.data) + at, from, static_cast<size_t>(count) * sizeof(float));
}

} // namespace penstock
