#include "rows.hpp"

#include "clones.hpp"
#include "exponential.hpp"
#include "linear.hpp"
#include "pool.hpp"
#include "values.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace penstock {

namespace {

constexpr int64_t kLanes = 16;
// Values that one thread takes at once: below that, handing work over costs more than it gains.
constexpr int64_t kTaskValues = 16 * 1024;
// Of gpt-oss's gate (signature.py: GateName).
constexpr float kMostGate = 7.0f, kGateSteepness = 1.702f;

template <typename Work> void for_rows(int64_t rows, int64_t width, const Work &work) {
    const int64_t together = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(width, 1));
    const int64_t tasks = (rows + together - 1) / together;
    pool()->run(tasks, [&](int64_t task) {
        const int64_t last = std::min(rows, (task + 1) * together);
        for (int64_t row = task * together; row < last; ++row) work(row);
    });
}

PENSTOCK_CLONES void normalise(const Norm &norm, const float *x, float *y) {
    float sums[kLanes] = {};
    const int64_t whole = norm.width / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    for (int64_t i = whole; i < norm.width; ++i) sums[i - whole] += x[i] * x[i];
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    const float factor = 1.0f / std::sqrt(sums[0] / static_cast<float>(norm.width) + norm.eps);
    if (!norm.weight)
        for (int64_t i = 0; i < norm.width; ++i) y[i] = x[i] * factor;
    else
        for (int64_t i = 0; i < norm.width; ++i) y[i] = x[i] * factor * norm.weight[i];
}

// The mean of what `value` makes of each index.
template <typename Value> PENSTOCK_INLINE float mean_of(int64_t width, const Value &value) {
    float sums[kLanes] = {};
    const int64_t whole = width / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += value(i + lane);
    for (int64_t i = whole; i < width; ++i) sums[i - whole] += value(i);
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    return sums[0] / static_cast<float>(width);
}

PENSTOCK_CLONES float mean(const float *x, int64_t width) {
    return mean_of(width, [=](int64_t i) { return x[i]; });
}

PENSTOCK_CLONES float variance(const float *x, int64_t width, float mean) {
    return mean_of(width, [=](int64_t i) {
        const float apart = x[i] - mean;
        return apart * apart;
    });
}

PENSTOCK_CLONES void centre(const Norm &norm, const float *bias, const float *x, float *y) {
    const float middle = mean(x, norm.width);
    const float factor = 1.0f / std::sqrt(variance(x, norm.width, middle) + norm.eps);
    if (!bias)
        for (int64_t i = 0; i < norm.width; ++i) y[i] = (x[i] - middle) * factor * norm.weight[i];
    else
        for (int64_t i = 0; i < norm.width; ++i) y[i] = (x[i] - middle) * factor * norm.weight[i] + bias[i];
}

PENSTOCK_INLINE float silu_of(float x) { return x / (1.0f + exponential(-x)); }

// By the tanh form: (1 + tanh y) / 2 = 1 / (1 + e^(−2y))
PENSTOCK_INLINE float gelu_of(float x) {
    const float inner = 1.5957691216f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(-inner));
}

PENSTOCK_INLINE float exact_gelu_of(float x) { return 0.5f * x * (1.0f + error_function(x * 0.70710678f)); }

PENSTOCK_CLONES void plain_exact_gelu(float *values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = exact_gelu_of(values[i]);
}

PENSTOCK_CLONES void multiply(const float *x, float *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] *= x[i];
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

PENSTOCK_CLONES void bound(float cap, float *values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = soft_capped(values[i], cap);
}

// Pieces of a long run of values for all threads; what a value becomes does not depend on where it is cut.
template <typename Work> void for_pieces(float *values, int64_t count, const Work &work) {
    pool()->run((count + kTaskValues - 1) / kTaskValues, [&](int64_t task) {
        work(values + task * kTaskValues, std::min(kTaskValues, count - task * kTaskValues));
    });
}

} // namespace

PENSTOCK_CLONES void silu_gate(const float *gate, const float *up, float *output, int64_t count) {
    for (int64_t i = 0; i < count; ++i) output[i] = silu_of(gate[i]) * up[i];
}

PENSTOCK_CLONES void gelu_gate(const float *gate, const float *up, float *output, int64_t count) {
    for (int64_t i = 0; i < count; ++i) output[i] = gelu_of(gate[i]) * up[i];
}

void exact_gelu_gate(const float *gate, const float *up, float *output, int64_t count) {
    std::memmove(output, gate, static_cast<size_t>(count) * sizeof(float));
    exact_gelu(output, count);
    multiply(up, output, count);
}

void exact_gelu(float *values, int64_t count) {
    const auto vectors = kernels().exact_gelu;
    (vectors ? vectors : plain_exact_gelu)(values, count);
}

PENSTOCK_CLONES void bounded_gate(const float *gate, const float *up, float *output, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        // What is not a number is not larger than the bound, and stays.
        const float g = gate[i] > kMostGate ? kMostGate : gate[i];
        const float above = up[i] > kMostGate ? kMostGate : up[i], u = above < -kMostGate ? -kMostGate : above;
        output[i] = g / (1.0f + exponential(-kGateSteepness * g)) * (u + 1.0f);
    }
}

PENSTOCK_CLONES void silu(float *values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = silu_of(values[i]);
}

PENSTOCK_CLONES void gelu(float *values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = gelu_of(values[i]);
}

// What is not a number is not below 0, and stays.
PENSTOCK_CLONES void relu(float *values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0.0f ? 0.0f : values[i];
}

PENSTOCK_CLONES void add(const float *x, float *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] += x[i];
}

void rms_norm(const Norm &norm, const Rows &x, int64_t rows, const MutableRows &y) {
    for_rows(rows, norm.width, [&](int64_t row) { normalise(norm, x.row(row), y.row(row)); });
}

void layer_norm(const Norm &norm, const float *bias, const Rows &x, int64_t rows, const MutableRows &y) {
    for_rows(rows, norm.width, [&](int64_t row) { centre(norm, bias, x.row(row), y.row(row)); });
}

void query_scale(int64_t width, float beta, int64_t context, const int64_t *positions, const MutableRows &qkv, int64_t rows) {
    for_rows(rows, width, [&](int64_t row) {
        const int64_t times = positions[row] / context;
        if (times > 0) multiply_values(1.0f + beta * std::log1p(static_cast<float>(times)), qkv.row(row), width);
    });
}

void add_rms_norm(const Norm &norm, const Rows &x, int64_t rows, const MutableRows &residual, const MutableRows &y) {
    for_rows(rows, norm.width, [&](int64_t row) {
        add(x.row(row), residual.row(row), norm.width);
        normalise(norm, residual.row(row), y.row(row));
    });
}

void head_norm(const Heads &heads, const Norm &query, const Norm &key, bool values, const MutableRows &qkv, int64_t rows) {
    const int64_t keys_at = heads.query * heads.size, values_at = keys_at + heads.key * heads.size;
    const int64_t end = values ? values_at + heads.key * heads.size : values_at;
    const Norm value{nullptr, heads.size, query.eps};
    for_rows(rows, end, [&](int64_t row) {
        float *x = qkv.row(row);
        for (int64_t at = 0; at < keys_at; at += query.width) normalise(query, x + at, x + at);
        for (int64_t at = keys_at; at < values_at; at += key.width) normalise(key, x + at, x + at);
        for (int64_t at = values_at; at < end; at += value.width) normalise(value, x + at, x + at);
    });
}

void rotary(const Heads &heads, const Rows &table, const int64_t *positions, const MutableRows &qkv, int64_t rows) {
    for_rows(rows, (heads.query + heads.key) * heads.size, [&](int64_t row) {
        for (int64_t head = 0; head < heads.query + heads.key; ++head)
            turn(table.row(positions[row]), qkv.row(row) + head * heads.size, heads.size);
    });
}

void gated_activation(Gate gate, const Rows &x, int64_t rows, int64_t width, const MutableRows &y) {
    for_rows(rows, 2 * width, [&](int64_t row) { gate(x.row(row), x.row(row) + width, y.row(row), width); });
}

void side_by_side(int64_t heads, const Rows &x, int64_t x_width, const Rows &y, int64_t y_width, int64_t rows,
                  const MutableRows &output) {
    const int64_t left = x_width / heads, right = y_width / heads;
    for_rows(rows, x_width + y_width, [&](int64_t row) {
        float *into = output.row(row);
        for (int64_t head = 0; head < heads; ++head, into += left + right) {
            std::memcpy(into, x.row(row) + head * left, static_cast<size_t>(left) * sizeof(float));
            std::memcpy(into + left, y.row(row) + head * right, static_cast<size_t>(right) * sizeof(float));
        }
    });
}

void some_columns(int64_t heads, int64_t width, int64_t first, int64_t count, const Rows &x, int64_t rows,
                  const MutableRows &output) {
    const int64_t size = width / heads;
    for_rows(rows, heads * count, [&](int64_t row) {
        for (int64_t head = 0; head < heads; ++head)
            std::memcpy(output.row(row) + head * count, x.row(row) + head * size + first,
                        static_cast<size_t>(count) * sizeof(float));
    });
}

void activation(Activate activate, float *values, int64_t count) { for_pieces(values, count, activate); }

void scale(float factor, float *values, int64_t count) {
    for_pieces(values, count, [&](float *piece, int64_t size) { multiply_values(factor, piece, size); });
}

void soft_cap(float cap, float *values, int64_t count) {
    for_pieces(values, count, [&](float *piece, int64_t size) { bound(cap, piece, size); });
}

} // namespace penstock
