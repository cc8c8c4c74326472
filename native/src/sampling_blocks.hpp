// What is computed for every token of the vocabulary, a block at a time: plain loops for vector instructions. Nothing
// here decides which token is chosen; it says where to look, or with which error it is known.
#pragma once

#include "sampling_numbers.hpp"

#include <cstdint>

namespace penstock {

// Tokens in a block, at absolute places of the vocabulary.
constexpr int kBlock = 128;

// x → (x − peak) · inverse in float32, the inverse of a temperature.
struct Scale {
    float peak, inverse;
};

// The largest value; `unordered` becomes true where any value is NaN, which the result then leaves out.
float block_maximum(const float *values, bool &unordered);
// Writes an upper bound, up to rounding, of every token's scaled logit + noise; `first` is the block's first token id.
// Tokens with logits below `least` get minus infinity. Returns the largest.
float block_bounds(const float *values, const Scale &scale, const PositionKey &key, uint32_t first, float least,
                   float *bounds);
// The sum of e^scaled, in a fixed order.
double block_weight(const float *values, const Scale &scale);
// The sum of e^scaled over what precedes (value, id) in the order of (logit descending, id ascending).
double block_weight_before(const float *values, const Scale &scale, float value, int64_t id, int64_t first);
// e^scaled, and in which step below the peak the scaled logit lies, at most kSteps − 1.
constexpr float kStepsPerUnit = 32;
constexpr int kSteps = 88 * 32;
void block_steps(const float *values, const Scale &scale, float *weights, int32_t *steps);

} // namespace penstock
