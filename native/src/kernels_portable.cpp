// For any processor. Sums are rounded after each multiplication and each addition.
namespace penstock {
static inline float multiply_add(float a, float b, float c) { return a * b + c; }
} // namespace penstock

#include "kernels_generic.hpp"

namespace penstock {

const Kernels *portable_kernels() {
    static const Kernels set = {
        "portable", quantize, {rows_of<Float32>, rows_of<Bfloat16>, rows_of<Int8>, rows_of<Int4>}, nullptr, nullptr, {}};
    return &set;
}

} // namespace penstock
