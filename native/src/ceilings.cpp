#include "ceilings.hpp"

#include "clones.hpp"
#include "linear.hpp"
#include "pool.hpp"

#include <atomic>

namespace penstock {

namespace {

constexpr int64_t kPiece = 1 << 20;
constexpr int64_t kAhead = 2048;

PENSTOCK_CLONES uint64_t sum_of(const uint64_t *words, int64_t count) {
    uint64_t sums[32] = {};
    for (int64_t i = 0; i < count; i += 32) {
        // Hardware prefetchers stop at the end of a page.
        for (int64_t line = 0; line < 4; ++line) __builtin_prefetch(words + i + line * 8 + kAhead / 8);
        for (int64_t lane = 0; lane < 32; ++lane) sums[lane] += words[i + lane];
    }
    uint64_t sum = 0;
    for (const uint64_t each : sums) sum += each;
    return sum;
}

int64_t on_all_threads(int64_t (*loop)(int64_t), int64_t rounds) {
    if (!loop) return 0;
    std::atomic<int64_t> done{0};
    const auto threads = pool();
    threads->run(threads->threads(), [&](int64_t) { done += loop(rounds); });
    return done;
}

} // namespace

uint64_t read_memory(const uint8_t *memory, int64_t bytes) {
    std::atomic<uint64_t> sum{0};
    pool()->run(bytes / kPiece, [&](int64_t piece) {
        sum += sum_of(reinterpret_cast<const uint64_t *>(memory + piece * kPiece), kPiece / 8);
    });
    return sum;
}

int64_t compute_int8(int64_t rounds) { return on_all_threads(kernels().compute[0], rounds); }
int64_t compute_bfloat16(int64_t rounds) { return on_all_threads(kernels().compute[1], rounds); }
int64_t compute_float32(int64_t rounds) { return on_all_threads(kernels().compute[2], rounds); }

} // namespace penstock
