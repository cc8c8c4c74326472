#include "linear.hpp"

#include "half.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace penstock {

namespace {

// Rows whose activations stay near the processor while panel after panel passes over them.
constexpr int64_t kRowChunk = 192;
// Weights that a thread claims at once: enough to make claiming cheap, little enough that threads end together.
constexpr int64_t kTaskBytes = 96 * 1024;
constexpr int64_t kTasksPerThread = 4;

// Memory that grows and is kept: a step must not wait for the allocator.
class Scratch {
public:
    uint8_t *take(int64_t bytes) {
        if (bytes > size_) {
            const auto rounded = static_cast<size_t>((bytes + kLine - 1) / kLine * kLine);
            data_.reset(static_cast<uint8_t *>(std::aligned_alloc(kLine, rounded)));
            if (!data_) throw std::bad_alloc();
            size_ = static_cast<int64_t>(rounded);
        }
        return data_.get();
    }

private:
    struct Free {
        void operator()(uint8_t *pointer) const { std::free(pointer); }
    };
    std::unique_ptr<uint8_t, Free> data_;
    int64_t size_ = 0;
};

thread_local Scratch t_scratch;

int64_t aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// One line beyond a power of two, so that rows do not fight for the same sets of the cache.
int64_t row_stride(int64_t bytes) { return aligned(bytes) + kLine; }

Activations quantized(const Shape &shape, const Rows &x, int64_t rows) {
    const int64_t stride = row_stride(shape.padded_inputs()), groups = shape.groups();
    const int64_t scales_at = stride * rows, sums_at = scales_at + aligned(rows * 4);
    uint8_t *memory = t_scratch.take(sums_at + rows * groups * 4);
    auto *scales = reinterpret_cast<float *>(memory + scales_at);
    auto *sums = reinterpret_cast<int32_t *>(memory + sums_at);
    const Kernels &set = kernels();
    pool()->run(rows, [&](int64_t row) {
        set.quantize(
            x, row, shape, reinterpret_cast<int8_t *>(memory + row * stride), scales + row, sums + row * groups);
    });
    return {memory, stride, scales, sums};
}

// The values themselves where they are as the kernel wants them, else converted.
Activations dense(const Shape &shape, const Rows &x, int64_t rows) {
    const bool wide = shape.format == Format::float32;
    const int64_t size = wide ? 4 : 2;
    if (x.type == (wide ? Type::float32 : Type::bfloat16) && shape.padded_inputs() == shape.inputs)
        return {static_cast<const uint8_t *>(x.data), x.stride * size, nullptr, nullptr};
    const int64_t stride = row_stride(shape.padded_inputs() * size);
    uint8_t *memory = t_scratch.take(stride * rows);
    pool()->run(rows, [&](int64_t row) {
        uint8_t *target = memory + row * stride;
        std::memset(target, 0, static_cast<size_t>(shape.padded_inputs() * size));
        const auto *narrow = static_cast<const uint16_t *>(x.data) + row * x.stride;
        const auto *values = static_cast<const float *>(x.data) + row * x.stride;
        if (wide) {
            for (int64_t i = 0; i < shape.inputs; ++i) reinterpret_cast<float *>(target)[i] = bf16_to_float(narrow[i]);
        } else if (x.type == Type::bfloat16) {
            std::memcpy(target, narrow, static_cast<size_t>(shape.inputs * 2));
        } else {
            for (int64_t i = 0; i < shape.inputs; ++i)
                reinterpret_cast<uint16_t *>(target)[i] = float_to_bf16(values[i]);
        }
    });
    return {memory, stride, nullptr, nullptr};
}

} // namespace

void linear(const Shape &shape, const uint8_t *packed, const Rows &x, int64_t rows, const Output &output) {
    if (rows == 0) return;
    const bool integer = shape.format == Format::int8 || shape.format == Format::int4;
    const Activations activations = integer ? quantized(shape, x, rows) : dense(shape, x, rows);
    const auto kernel = kernels().tile[static_cast<int>(shape.format)];

    const int64_t panels = shape.panels(), panel_bytes = shape.panel_bytes();
    const auto threads = pool();
    const int64_t share = panels / (threads->threads() * kTasksPerThread);
    const int64_t together = std::max<int64_t>(1, std::min(kTaskBytes / std::max<int64_t>(panel_bytes, 1), share));
    const int64_t batches = (panels + together - 1) / together;
    const int64_t chunks = (rows + kRowChunk - 1) / kRowChunk;
    threads->run(chunks * batches, [&](int64_t task) {
        const int64_t chunk = task / batches, batch = task % batches;
        const int64_t last_panel = std::min(panels, (batch + 1) * together);
        for (int64_t panel = batch * together; panel < last_panel; ++panel)
            kernel({&shape, packed + panel * panel_bytes, panel * kPanel, activations, chunk * kRowChunk,
                    std::min(rows, (chunk + 1) * kRowChunk), output});
    });
}

namespace {

struct Choice {
    const Kernels *sets[4] = {};
    const Kernels *chosen = nullptr;
    Choice() {
        int count = 0;
#if defined(PENSTOCK_AVX512) || defined(PENSTOCK_AVX2)
        __builtin_cpu_init();
#endif
#if defined(PENSTOCK_AVX512)
        if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16"))
            sets[count++] = avx512_kernels();
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
