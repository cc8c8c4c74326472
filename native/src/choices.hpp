// How Python asks for tokens: the fields of sampling/choice.py: Choice and Chosen, in their order.
#pragma once

#include "arrays.hpp"
#include "sampling.hpp"

#include <limits>
#include <tuple>
#include <vector>

namespace penstock {

using Asked = std::tuple<int64_t, int64_t, uint32_t, double, int64_t, double, double, int64_t, uint64_t, uint32_t, uint32_t>;
using Found = std::tuple<int64_t, double, double, std::vector<int64_t>, std::vector<double>>;

// Row and mask are for the caller to check; `allowed` is the mask's bits, or null.
inline Choice choice_of(const Asked &asked, const uint32_t *allowed) {
    const auto &[row, mask, position, temperature, top_k, top_p, log_min_p, logprobs, seed, sample, purpose] = asked;
    require(temperature >= 0 && temperature < std::numeric_limits<double>::infinity(),
            "A temperature must be finite and not negative.");
    require(top_k >= 0 && top_p > 0 && top_p <= 1 && log_min_p <= 0,
            "top_k must not be negative, top_p in (0, 1] and log_min_p not above 0.");
    return {row, allowed, position, temperature, top_k, top_p, log_min_p, logprobs, {seed, sample, purpose}};
}

} // namespace penstock
