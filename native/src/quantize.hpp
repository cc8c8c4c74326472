// Weights to integers by rounding to the nearest, without calibration data.
#pragma once

#include "values.hpp"

#include <cstdint>

namespace penstock {

// Scales of values that are not finite are NaN; their integers are 0.

// int8, one scale an output: scale = max|w| / 127, values = round(w / scale).
void round_int8(const Stored &weight, int64_t outputs, int64_t inputs, int8_t *values, float *scales);

// int4 as formats.hpp has it, with `multiples` [outputs, groups] and a scale for each output. Of kSteps scales for each group
// the one is wanted whose rounding, with the scale refitted by least squares, leaves the least squared error. The largest
// that is wanted is the largest multiple; of the two multiples next to what another group wants, the better one is taken.
void round_int4(const Stored &weight, int64_t outputs, int64_t inputs, uint8_t *values, uint8_t *multiples, float *scales);

} // namespace penstock
