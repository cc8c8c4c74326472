// For any processor. Sums are rounded after each multiplication and each addition.
namespace penstock {
static inline float multiply_add(float a, float b, float c) { return a * b + c; }
} // namespace penstock

#include "kernels_generic.hpp"

namespace penstock {

const Kernels *portable_kernels() {
    static const Kernels set = {
        "portable", quantize,
        {tile_of<Float32>, tile_of<Bfloat16>, tile_of<Int8>, tile_of<Int4>, tile_of<IntGrouped>, tile_of<IntGrouped>,
         tile_of<IntGrouped>, tile_of<IntGrouped>, tile_of<IntGrouped>, tile_of<IntGrouped>, tile_of<IntGrouped>, tile_of<Q8_0>,
         tile_of<Q4K>, tile_of<Q6K>},
        {kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows,
         kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows, kGenericRows}, std::numeric_limits<int64_t>::max(), false,
        nullptr, nullptr, nullptr, {}};
    return &set;
}

} // namespace penstock
