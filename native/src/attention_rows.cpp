// Attention where a step has all tokens of its sequences, and keys and values are not kept.
#include "attention.hpp"

#include "attention_head.hpp"
#include "memory.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace penstock {
namespace {

// Fewer tasks than this for each thread are cut further.
constexpr int64_t kTasksPerThread = 2;
// A task reads the keys and values that its queries see. It has as many queries as fit into this number of floats, and the least
// number at least; both are multiples of 16.
constexpr int64_t kMostFloats = 64 * 1024, kLeastQueries = 64;

thread_local Memory t_scratch;

// A task is one KV head of one row, or some of its queries. Long rows are first: the last tasks should be short, so that threads
// end together.
void attend_heads(const Attention &attention, const Batch &batch, const Rows &qkv, const MutableRows &output) {
    const Heads &heads = attention.heads;
    if (batch.sequences == 0) return;
    const int64_t size = heads.size, group = heads.query / heads.key, width = heads.query * size;
    const auto threads = pool();
    const int64_t wanted = threads->threads() > 1 ? kTasksPerThread * threads->threads() : 1;
    // With fewer rows and heads than threads want, queries are divided.
    const int64_t pieces = (wanted + batch.sequences * heads.key - 1) / (batch.sequences * heads.key);
    const int64_t most = kMostFloats / (group * size) / 16 * 16;
    std::vector<HeadRows> tasks;
    for (int64_t i = 0, row = 0; i < batch.sequences; row += batch.added[i++]) {
        const int64_t tokens = batch.added[i], part = (tokens / pieces + 15) / 16 * 16;
        const int64_t each = std::max(kLeastQueries, std::min(most, part));
        for (int64_t first = 0; first < tokens; first += each)
            for (int64_t head = 0; head < heads.key; ++head) {
                const float *from = qkv.row(row), *keys = from + width + head * size;
                const float *bias = attention.bias ? attention.bias + head * group * (2 * attention.reach + 1) : nullptr;
                tasks.push_back({from + head * group * size, keys, keys + heads.key * size, qkv.stride, first,
                                 std::min(first + each, tokens), batch.seen ? batch.seen[i] : tokens, attention.window, size, group,
                                 attention.scale, bias, attention.reach, output.row(row) + head * group * size, output.stride,
                                 nullptr});
            }
    }
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const HeadRows &left, const HeadRows &right) { return left.seen > right.seen; });
    threads->run(static_cast<int64_t>(tasks.size()), [&](int64_t task) {
        HeadRows rows = tasks[static_cast<size_t>(task)];
        rows.scratch = t_scratch.take(scratch_bytes(rows));
        kernels().attend_head(rows);
    });
}

// Keys and values of a step.
thread_local Memory t_stored;

} // namespace

void attend_rows(const Attention &attention, Type type, const Batch &batch, const std::vector<int64_t> &sequences, const Rows &qkv,
                 const MutableRows &output) {
    const Heads &heads = attention.heads;
    if (kernels().attend_head && type == Type::bfloat16 && heads.size % 32 == 0)
        return attend_heads(attention, batch, qkv, output);
    Batch own = batch;
    own.block_size = kStep;
    own.shares = 0;
    int64_t blocks = 0, stride = 0;
    for (int64_t i = 0; i < batch.sequences; ++i) stride = std::max(stride, (batch.added[i] + kStep - 1) / kStep);
    std::vector<int32_t> table(static_cast<size_t>(batch.sequences * stride));
    for (int64_t i = 0; i < batch.sequences; ++i)
        for (int64_t block = 0; block * kStep < batch.added[i]; ++block)
            table[static_cast<size_t>(i * stride + block)] = static_cast<int32_t>(blocks++);
    Cache cache{nullptr, nullptr, 0, type, heads.key, heads.size};
    cache.block_bytes = heads.key * cache.multiplied_bytes();
    cache.keys = t_stored.take(2 * blocks * cache.block_bytes);
    cache.values = cache.keys + blocks * cache.block_bytes;
    // What is behind the last token of a sequence is multiplied by nothing, and must be a number.
    for (int64_t i = 0, end = 0; i < batch.sequences; ++i) {
        end += (batch.added[i] + kStep - 1) / kStep;
        std::memset(cache.keys + (end - 1) * cache.block_bytes, 0, static_cast<size_t>(cache.block_bytes));
        std::memset(cache.values + (end - 1) * cache.block_bytes, 0, static_cast<size_t>(cache.block_bytes));
    }
    const Tables tables{table.data(), stride};
    store_kv(heads, own, sequences, tables, qkv, cache);
    attend(attention, own, tables, qkv, cache, output);
}

} // namespace penstock
