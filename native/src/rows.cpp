#include "rows.hpp"

#include "clones.hpp"
#include "exponential.hpp"
#include "pool.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace penstock {

namespace {

constexpr int64_t kLanes = 16;
// Values that one thread takes at once: below that, handing work over costs more than it gains.
constexpr int64_t kTaskValues = 16 * 1024;

template <typename Work> void for_rows(int64_t rows, int64_t width, const Work &work) {
    const int64_t together = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(width, 1));
    const int64_t tasks = (rows + together - 1) / together;
    pool()->run(tasks, [&](int64_t task) {
        const int64_t last = std::min(rows, (task + 1) * together);
        for (int64_t row = task * together; row < last; ++row) work(row);
    });
}

// A thread's own memory for `count` floats.
float *scratch(int64_t count) {
    thread_local std::vector<float> memory;
    if (static_cast<int64_t>(memory.size()) < count) memory.resize(static_cast<size_t>(count));
    return memory.data();
}

PENSTOCK_CLONES void normalise(const Norm &norm, float *x) {
    float sums[kLanes] = {};
    const int64_t whole = norm.width / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (int64_t i = whole; i < norm.width; ++i) sums[i - whole] += x[i] * x[i];
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    const float factor = 1.0f / std::sqrt(sums[0] / static_cast<float>(norm.width) + norm.eps);
    for (int64_t i = 0; i < norm.width; ++i) x[i] = x[i] * factor * norm.weight[i];
}

PENSTOCK_CLONES void add(const float *x, float *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] += x[i];
}

PENSTOCK_CLONES void turn(const float *cos_sin, float *head, int64_t size) {
    const int64_t half = size / 2;
    const float *cosine = cos_sin, *sine = cos_sin + size;
    for (int64_t i = 0; i < half; ++i) {
        const float low = head[i], high = head[i + half];
        head[i] = low * cosine[i] + high * sine[i];
        head[i + half] = high * cosine[i + half] + low * sine[i + half];
    }
}

PENSTOCK_CLONES void silu_gate(const float *gate, const float *up, float *output, int64_t count) {
    for (int64_t i = 0; i < count; ++i) output[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

PENSTOCK_CLONES void gelu_gate(const float *gate, const float *up, float *output, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const float x = gate[i];
        // (1 + tanh y) / 2 = 1 / (1 + e^(−2y))
        const float inner = 1.5957691216f * (x + 0.044715f * x * x * x);
        output[i] = x / (1.0f + exponential(-inner)) * up[i];
    }
}

} // namespace

void rms_norm(const Norm &norm, const Rows &x, int64_t rows, const MutableRows &output) {
    for_rows(rows, norm.width, [&](int64_t row) {
        float *values = scratch(norm.width);
        read_values(x.data, x.type, row * x.stride, norm.width, values);
        normalise(norm, values);
        write_values(values, output, row * output.stride, norm.width);
    });
}

void add_rms_norm(
    const Norm &norm, const Rows &x, int64_t rows, const MutableRows &residual, const MutableRows &output) {
    for_rows(rows, norm.width, [&](int64_t row) {
        float *values = scratch(2 * norm.width), *other = values + norm.width;
        read_values(residual.data, residual.type, row * residual.stride, norm.width, values);
        read_values(x.data, x.type, row * x.stride, norm.width, other);
        add(other, values, norm.width);
        write_values(values, residual, row * residual.stride, norm.width);
        // What is normalised is what the next layer reads.
        read_values(residual.data, residual.type, row * residual.stride, norm.width, values);
        normalise(norm, values);
        write_values(values, output, row * output.stride, norm.width);
    });
}

void head_norm(const Heads &heads, const Norm &query, const Norm &key, const MutableRows &qkv, int64_t rows) {
    const int64_t width = (heads.query + heads.key) * heads.size;
    for_rows(rows, width, [&](int64_t row) {
        float *values = scratch(width);
        read_values(qkv.data, qkv.type, row * qkv.stride, width, values);
        for (int64_t head = 0; head < heads.query + heads.key; ++head)
            normalise(head < heads.query ? query : key, values + head * heads.size);
        write_values(values, qkv, row * qkv.stride, width);
    });
}

void rotary(
    const Heads &heads, const Rows &table, const int64_t *positions, const MutableRows &qkv, int64_t rows) {
    const int64_t width = (heads.query + heads.key) * heads.size;
    for_rows(rows, width, [&](int64_t row) {
        float *values = scratch(width + 2 * heads.size), *angles = values + width;
        read_values(qkv.data, qkv.type, row * qkv.stride, width, values);
        read_values(table.data, table.type, positions[row] * table.stride, 2 * heads.size, angles);
        for (int64_t head = 0; head < heads.query + heads.key; ++head)
            turn(angles, values + head * heads.size, heads.size);
        write_values(values, qkv, row * qkv.stride, width);
    });
}

void gated_activation(
    Activation activation, const Rows &x, int64_t rows, int64_t width, const MutableRows &output) {
    const auto gate_with = activation == Activation::silu ? silu_gate : gelu_gate;
    for_rows(rows, 2 * width, [&](int64_t row) {
        float *gate = scratch(3 * width), *result = gate + 2 * width;
        read_values(x.data, x.type, row * x.stride, 2 * width, gate);
        gate_with(gate, gate + width, result, width);
        write_values(result, output, row * output.stride, width);
    });
}

} // namespace penstock
