// For processors with AVX2 and FMA but without AVX-512: the generic kernels, compiled for them.
#include <cmath>

namespace penstock {
static inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
} // namespace penstock

#include "kernels_generic.hpp"

namespace penstock {

const Kernels *avx2_kernels() {
    static const Kernels set = {
        "avx2", quantize, {tile_of<Float32>, tile_of<Bfloat16>, tile_of<Int8>, tile_of<Int4>},
        {kGenericRows, kGenericRows, kGenericRows, kGenericRows}, nullptr, {}};
    return &set;
}

} // namespace penstock
