// What happens to each row of a step between the projections: norms, rotary embedding, gated activation, in float32.
#pragma once

#include "linear.hpp"

#include <cstdint>

namespace penstock {

struct Norm {
    const float *weight; // with the 1 of 1 + w already added where the family wants that; null: of ones
    int64_t width;
    float eps;
};

// How a row of the fused projection is cut: query heads, key heads, value heads.
struct Heads {
    int64_t query, key, size;
};

// y = x / sqrt(mean(x²) + eps) · weight; y may be x.
void rms_norm(const Norm &norm, const Rows &x, int64_t rows, const MutableRows &y);
// y = (x − mean(x)) / sqrt(variance(x) + eps) · weight + bias, which may be null; y may be x.
void layer_norm(const Norm &norm, const float *bias, const Rows &x, int64_t rows, const MutableRows &y);
// residual += x; y = rms_norm(residual); y may be x.
void add_rms_norm(const Norm &norm, const Rows &x, int64_t rows, const MutableRows &residual, const MutableRows &y);
// rms_norm of each query and key head in place, by the weight of its kind; or of all query heads together, and of all key
// heads, where the weights are as wide. Value heads, too, where they are to be normed.
void head_norm(const Heads &heads, const Norm &query, const Norm &key, bool values, const MutableRows &qkv, int64_t rows);
// Turns query and key heads in place. `table` has for each position (cos, cos, −sin, sin), 2 · heads.size values.
void rotary(const Heads &heads, const Rows &table, const int64_t *positions, const MutableRows &qkv, int64_t rows);
// Query heads times 1 + beta · ln(1 + ⌊position / context⌋), in place.
void query_scale(int64_t width, float beta, int64_t context, const int64_t *positions, const MutableRows &qkv, int64_t rows);
// output[i] = silu(gate[i]) · up[i], the same for the tanh form of gelu, and what signature.py calls swigluoai.
void silu_gate(const float *gate, const float *up, float *output, int64_t count);
void gelu_gate(const float *gate, const float *up, float *output, int64_t count);
void exact_gelu_gate(const float *gate, const float *up, float *output, int64_t count);
void bounded_gate(const float *gate, const float *up, float *output, int64_t count);
// y [width] = gate of x = [gates | ups]
void gated_activation(Gate gate, const Rows &x, int64_t rows, int64_t width, const MutableRows &y);
// What a gate is before it is multiplied, in place.
using Activate = void (*)(float *values, int64_t count);
void silu(float *values, int64_t count);
void gelu(float *values, int64_t count);
void exact_gelu(float *values, int64_t count);
void relu(float *values, int64_t count);
void activation(Activate activate, float *values, int64_t count);
// Each head's columns of x beside those of y; and some columns of each head.
void side_by_side(int64_t heads, const Rows &x, int64_t x_width, const Rows &y, int64_t y_width, int64_t rows,
                  const MutableRows &output);
void some_columns(int64_t heads, int64_t width, int64_t first, int64_t count, const Rows &x, int64_t rows,
                  const MutableRows &output);
// into += x
void add(const float *x, float *into, int64_t count);
// values · factor, and cap · tanh(values / cap), in place
void scale(float factor, float *values, int64_t count);
void soft_cap(float cap, float *values, int64_t count);

} // namespace penstock
