// Weights to integers by rounding to the nearest, without calibration data.
#pragma once

#include "values.hpp"

#include <cstdint>

namespace penstock {

// Scales of values that are not finite, or too large for their scale's type, are NaN or infinite; their integers are 0.

// int8, one scale an output: scale = max|w| / 127, values = round(w / scale).
void round_int8(const Stored &weight, int64_t outputs, int64_t inputs, int8_t *values, float *scales);

// int4 in groups, weight = scale · (value − 8): of kCandidates scales for each group the one whose rounding, with the
// scale refitted by least squares, leaves the least squared error. `scales` are float16, [outputs, groups].
void round_int4(
    const Stored &weight, int64_t outputs, int64_t inputs, int64_t group, uint8_t *values, uint16_t *scales);

} // namespace penstock
