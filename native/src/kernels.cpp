// Which instruction set's kernels are used.
#include "linear.hpp"

#include <cstring>

namespace penstock {

namespace {

struct Choice {
    const Kernels *sets[6] = {};
    const Kernels *chosen = nullptr;
    Choice() {
        int count = 0;
#if defined(PENSTOCK_AVX512) || defined(PENSTOCK_AVX2)
        __builtin_cpu_init();
#endif
#if defined(PENSTOCK_AVX512)
        if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
            const bool bf16 = __builtin_cpu_supports("avx512bf16");
            // Intel's take two cycles for what AMD's take one for, and are half as fast as products of floats.
            const bool slow = __builtin_cpu_is("intel");
#if defined(PENSTOCK_AMX)
            if (const Kernels *amx = bf16 ? amx_kernels() : nullptr) sets[count++] = amx;
#endif
            if (bf16 && !slow) sets[count++] = avx512_kernels();
            sets[count++] = avx512_vnni_kernels();
            if (bf16 && slow) sets[count++] = avx512_kernels();
        }
#endif
#if defined(PENSTOCK_AVX2)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            sets[count++] = avx2_kernels();
#endif
        sets[count] = portable_kernels();
        chosen = sets[0];
    }
};

Choice &choice() {
    static Choice instance;
    return instance;
}

} // namespace

const Kernels *const *available_kernels() { return choice().sets; }

const Kernels &kernels() { return *choice().chosen; }

bool use_kernels(const char *name) {
    for (const Kernels *const *set = choice().sets; *set; ++set)
        if (std::strcmp((*set)->name, name) == 0) {
            choice().chosen = *set;
            return true;
        }
    return false;
}

} // namespace penstock
