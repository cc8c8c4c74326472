// Choosing tokens: argmax, log probabilities, and draws from what top-k, top-p and min-p leave of a row of logits.
// Draws give the tokens of src/penstock/sampling, whatever the threads and the rows beside.
#pragma once

#include "sampling_numbers.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

// How one token is chosen.
struct Choice {
    int64_t row;             // of the logits
    const uint32_t *allowed; // bits by token, all where it is null
    uint32_t position;
    double temperature; // 0 takes the largest
    int64_t top_k;      // 0 keeps all
    double top_p;       // 1 keeps all
    double log_min_p;   // minus infinity keeps all
    int64_t logprobs;   // how many of the most likely tokens to report; −1 for no log probabilities
    Stream stream;
};

struct Chosen {
    int64_t token = 0;
    float peak = 0;     // the largest logit that is allowed, NaN where any is NaN; unless it is finite, `token` is its first place
    double logprob = 0; // of `token`
    std::vector<int64_t> top_tokens;
    std::vector<double> top_logprobs;
};

// `logits` is [rows, vocabulary], dense.
std::vector<Chosen> choose(const float *logits, int64_t vocabulary, const std::vector<Choice> &choices);

} // namespace penstock
