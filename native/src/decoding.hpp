// Several tokens of each sequence without a caller in between, as a model that drafts for another decodes them: where a step
// takes a tenth of a millisecond, what comes between steps is most of it.
#pragma once

#include "program.hpp"
#include "sampling.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

// The register with a program's logits, and their width.
struct Logits {
    int reg;
    int64_t vocabulary;
};

// What a program is given beside tokens, and makes anew for the next step: rows of `width` for the tokens of a batch, and
// for its selected ones.
struct Feedback {
    int input, output;
    int64_t width;
    Stored first; // for the first batch
};

// What was decoded of one sequence: for each of its tokens as many ids as it has ranks, and their probabilities by the logits
// alone where these are more than one.
struct Decoded {
    std::vector<int64_t> ids;
    std::vector<double> probabilities;
};

// The next tokens[i] tokens of each sequence i of `batch`, which selects one token of each, in order; the first of them is
// chosen as choices[i] says, each further one at a position one further. A token is 0 where the logits are not finite at
// their largest. Block tables reach as far as the last token but one. The ids of further ranks, of which sequence i has
// ranks[i] in all, are what would be chosen if those before were not there, −1 where nothing would.
std::vector<Decoded> decode(Program &program, const Logits &logits, const Batch &batch, const std::vector<Tables> &tables,
                            const std::vector<int64_t> &tokens, std::vector<Choice> choices, const std::vector<int64_t> &ranks,
                            const Feedback *feedback = nullptr);

} // namespace penstock
