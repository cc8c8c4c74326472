// What happens to each row of a step between the projections: norms, rotary embedding, gated activation. Values are
// float32 or bfloat16; everything is computed in float32 and rounded once, where it is stored.
#pragma once

#include "values.hpp"

#include <cstdint>

namespace penstock {

struct Norm {
    const float *weight; // with the 1 of 1 + w already added where the family wants that
    int64_t width;
    float eps;
};

// How a row of the fused projection is cut: query heads, key heads, value heads.
struct Heads {
    int64_t query, key, size;
};

enum class Activation : int { silu, gelu_tanh };

// output = x / sqrt(mean(x²) + eps) · weight
void rms_norm(const Norm &norm, const Rows &x, int64_t rows, const MutableRows &output);
// residual += x, stored; output = rms_norm(residual)
void add_rms_norm(
    const Norm &norm, const Rows &x, int64_t rows, const MutableRows &residual, const MutableRows &output);
// rms_norm of each query and key head in place, by the weight of its kind; both have heads.size as their width.
void head_norm(const Heads &heads, const Norm &query, const Norm &key, const MutableRows &qkv, int64_t rows);
// Turns query and key heads in place. `table` has for each position (cos, cos, −sin, sin), 2 · heads.size values.
void rotary(
    const Heads &heads, const Rows &table, const int64_t *positions, const MutableRows &qkv, int64_t rows);
// output [width] = activation(gate) · up of x = [gate | up]
void gated_activation(
    Activation activation, const Rows &x, int64_t rows, int64_t width, const MutableRows &output);

} // namespace penstock
