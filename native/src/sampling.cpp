#include "sampling.hpp"

#include "pool.hpp"
#include "sampling_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

namespace penstock {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Blocks that a thread takes at once where there are fewer rows than threads could take.
constexpr int64_t kPartBlocks = 128;
// The best token's noise is at least −3.14 and another's at most 22.88, so one further behind than their sum never wins.
constexpr double kReach = 26.5;
// Above all rounding of a bound: its terms stay below 160, with 2^-23 relative error in each of six steps.
constexpr double kSlack = 1e-3;
// e^x of less is 0 in float32, and in float64 too little to change a sum that is at least 1.
constexpr float kNoWeight32 = 88.0f;
constexpr double kNoWeight64 = -37.0;
// Above the relative error of sums of e^scaled in float32, whose exponents are known to 1.6e-5.
constexpr double kEdge = 5e-5;
// Below that temperature float32 does not hold its inverse: bounds stay bounds, and sums are float64 ones.
constexpr double kLeastTemperature = 1e-30;

struct Candidate {
    float value;
    int64_t id;
};

// The order in which top-k, top-p and min-p keep tokens.
bool precedes(const Candidate &a, const Candidate &b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The last token that is kept: survivors are what precedes it, and itself.
using Cut = Candidate;

bool keeps(const Cut &cut, const Candidate &token) { return !precedes(cut, token); }

// One choice on its way, with what is known of each block of its logits.
struct Row {
    const Choice *choice;
    const float *given;  // the logits
    float *masked;       // memory for them with a mask, null where there is none
    const float *logits; // what is chosen from: one or the other
    int64_t vocabulary, blocks;
    float *maxima, *bounds;         // [blocks]: of logits, and of perturbed values
    double *likelihoods;            // [blocks]: sums of e^(logit − peak)
    std::vector<uint8_t> unordered; // by part, as threads write it
    PositionKey key{};
    Scale scale{};
    Cut least{-kInfinity, std::numeric_limits<int64_t>::max()}; // what min-p keeps
    Chosen result{};

    double scaled(float value) const {
        return (static_cast<double>(value) - static_cast<double>(result.peak)) / choice->temperature;
    }
    int64_t count(int64_t block) const { return std::min<int64_t>(kBlock, vocabulary - block * kBlock); }
    bool samples() const { return choice->temperature > 0 && std::isfinite(result.peak); }
    bool reports() const { return choice->logprobs >= 0 && std::isfinite(result.peak); }
    bool narrows() const { return choice->top_p < 1; }
    // Whether survivors are listed before the draw; else a draw from all is likely to be one from the survivors.
    bool lists() const {
        const bool few = choice->top_k > 0 && choice->top_k < vocabulary;
        return few || (narrows() && choice->temperature < kLeastTemperature);
    }
    // The logits of a block, a last one that is not whole being filled up in `padded`.
    const float *values(int64_t block, float *padded) const {
        const float *first = logits + block * kBlock;
        if (count(block) == kBlock) return first;
        std::copy_n(first, count(block), padded);
        std::fill(padded + count(block), padded + kBlock, -kInfinity);
        return padded;
    }
    // Whether e^scaled is 0 in the whole block.
    bool weightless(int64_t block, const Scale &by) const {
        return (by.peak - maxima[block]) * by.inverse > kNoWeight32;
    }
};

// Calls work(block, values) for the blocks in [first, last) that have a logit of at least `least`.
template <typename Work>
void each_block(const Row &row, int64_t first, int64_t last, float least, const Work &work) {
    float padded[kBlock];
    for (int64_t block = first; block < last; ++block)
        if (row.maxima[block] >= least) work(block, row.values(block, padded));
}

// A word of a mask for each of its tokens: that token's bit alone.
struct Bits {
    uint32_t of[32];
    constexpr Bits() : of() {
        for (int bit = 0; bit < 32; ++bit) of[bit] = uint32_t{1} << bit;
    }
};
constexpr Bits kBits;

// Of tokens [first, last): minus infinity where a token is not allowed, except for NaN, which says that all is broken.
// `first` is a multiple of 32. Without a branch for a token, so that compilers make vector instructions of it.
void mask(const Row &row, int64_t first, int64_t last) {
    const auto word = [&](int64_t token, int64_t count) {
        const uint32_t allowed = row.choice->allowed[token / 32];
        const float *given = row.given + token;
        float *masked = row.masked + token;
        for (int64_t lane = 0; lane < count; ++lane) {
            const float value = given[lane];
            const bool drops = ((allowed & kBits.of[lane]) == 0) & (value == value);
            masked[lane] = drops ? -kInfinity : value;
        }
    };
    int64_t token = first;
    for (; token + 32 <= last; token += 32) word(token, 32);
    if (token < last) word(token, last - token);
}

void find_maxima(Row &row, int64_t part) {
    float padded[kBlock];
    bool unordered = false;
    const int64_t last = std::min(row.blocks, (part + 1) * kPartBlocks);
    if (row.masked) mask(row, part * kPartBlocks * kBlock, std::min(row.vocabulary, last * kBlock));
    for (int64_t block = part * kPartBlocks; block < last; ++block)
        row.maxima[block] = block_maximum(row.values(block, padded), unordered);
    row.unordered[static_cast<size_t>(part)] = unordered;
}

// The lowest logit that min-p keeps. What it keeps is defined in float64, and no logit is between two neighbours.
float least_of_min_p(const Row &row) {
    const double log_min_p = row.choice->log_min_p;
    if (!(log_min_p > -std::numeric_limits<double>::infinity())) return -kInfinity;
    const float peak = row.result.peak;
    float least = std::min(peak, static_cast<float>(static_cast<double>(peak) + log_min_p * row.choice->temperature));
    while (row.scaled(least) < log_min_p) least = std::nextafter(least, kInfinity);
    for (float lower; row.scaled(lower = std::nextafter(least, -kInfinity)) >= log_min_p;) least = lower;
    return least;
}

// The largest logit and what follows from it.
void find_peak(Row &row) {
    const float *first = row.logits, *last = row.logits + row.vocabulary;
    if (std::count(row.unordered.begin(), row.unordered.end(), 0) < static_cast<int64_t>(row.unordered.size())) {
        row.result.token = std::find_if(first, last, [](float value) { return value != value; }) - first;
    } else {
        const float *block = std::max_element(row.maxima, row.maxima + row.blocks);
        row.result.token = std::find(first + (block - row.maxima) * kBlock, last, *block) - first;
    }
    row.result.peak = row.logits[row.result.token];
    if (!row.samples()) return;
    const double temperature = std::max(row.choice->temperature, kLeastTemperature);
    row.scale = {row.result.peak, static_cast<float>(1.0 / temperature)};
    row.key = position_key(row.choice->stream, row.choice->position);
    row.least.value = least_of_min_p(row);
}

void find_bounds(Row &row, int64_t first, int64_t last, float least) {
    std::fill(row.bounds + first, row.bounds + last, -kInfinity);
    const float reach = float_below(static_cast<double>(row.result.peak) - kReach * row.choice->temperature);
    each_block(row, first, last, std::max(least, reach), [&](int64_t block, const float *values) {
        float bounds[kBlock];
        row.bounds[block] =
            block_bounds(values, row.scale, row.key, static_cast<uint32_t>(block * kBlock), least, bounds);
    });
}

void find_likelihoods(Row &row, int64_t first, int64_t last) {
    const Scale scale{row.result.peak, 1.0f};
    std::fill(row.likelihoods + first, row.likelihoods + last, 0.0);
    each_block(row, first, last, -kInfinity, [&](int64_t block, const float *values) {
        if (!row.weightless(block, scale)) row.likelihoods[block] = block_weight(values, scale);
    });
}

void weigh(Row &row, int64_t part) {
    const int64_t first = part * kPartBlocks, last = std::min(row.blocks, first + kPartBlocks);
    if (row.samples() && !row.lists()) find_bounds(row, first, last, row.least.value);
    if (row.reports()) find_likelihoods(row, first, last);
}

// Of what `cut` keeps, the token with the largest perturbed value, the lowest of equals. Blocks are looked at in the
// order of their bounds, until no bound reaches the best value found. The blocks' bounds are used up.
int64_t best_of_bounds(Row &row, const Cut &cut) {
    double largest = -std::numeric_limits<double>::infinity();
    int64_t chosen = -1;
    while (true) {
        float *highest = std::max_element(row.bounds, row.bounds + row.blocks);
        if (!(*highest > float_below(largest - kSlack))) return chosen;
        *highest = -kInfinity;
        const int64_t block = highest - row.bounds, first = block * kBlock;
        float padded[kBlock], bounds[kBlock];
        const float *values = row.values(block, padded);
        block_bounds(values, row.scale, row.key, static_cast<uint32_t>(first), cut.value, bounds);
        for (int64_t i = 0; i < row.count(block); ++i) {
            const Candidate token{values[i], first + i};
            if (!(bounds[i] > float_below(largest - kSlack)) || !keeps(cut, token)) continue;
            const double noise = gumbel(random_word(row.key, static_cast<uint32_t>(token.id)));
            const double value = row.scaled(token.value) + noise;
            if (value < largest || (value == largest && token.id > chosen)) continue;
            largest = value;
            chosen = token.id;
        }
    }
}

int64_t draw_from(Row &row, const Cut &cut) {
    find_bounds(row, 0, row.blocks, cut.value);
    return best_of_bounds(row, cut);
}

// All tokens with logits of at least `least`, in no order that matters.
std::vector<Candidate> gather(const Row &row, float least) {
    std::vector<Candidate> found;
    each_block(row, 0, row.blocks, least, [&](int64_t block, const float *values) {
        const int64_t count = row.count(block);
        for (int64_t i = 0; i < count; ++i)
            if (values[i] >= least) found.push_back({values[i], block * kBlock + i});
    });
    return found;
}

// The `count` first tokens, in order. The count-th largest of the blocks' maxima, where there are so many, is at most the
// count-th largest logit, and not many logits are between the two.
std::vector<Candidate> first_tokens(const Row &row, int64_t count) {
    const bool by_blocks = count <= row.blocks;
    const float *from = by_blocks ? row.maxima : row.logits;
    std::vector<float> values(from, from + (by_blocks ? row.blocks : row.vocabulary));
    const auto least = values.begin() + (count - 1);
    std::nth_element(values.begin(), least, values.end(), std::greater<float>());
    std::vector<Candidate> found = gather(row, *least);
    if (count < static_cast<int64_t>(found.size())) {
        std::nth_element(found.begin(), found.begin() + (count - 1), found.end(), precedes);
        found.resize(static_cast<size_t>(count));
    }
    std::sort(found.begin(), found.end(), precedes);
    return found;
}

// Of tokens in order, how many top-p keeps, by its definition: sums of float64 in that order.
size_t nucleus_of(const Row &row, const std::vector<Candidate> &tokens, float weighty) {
    std::vector<double> sums;
    double sum = 0;
    for (const Candidate &token : tokens) {
        if (!(token.value > weighty)) break;
        sums.push_back(sum += exact_exp(row.scaled(token.value)));
    }
    return static_cast<size_t>(std::lower_bound(sums.begin(), sums.end(), row.choice->top_p * sum) - sums.begin()) + 1;
}

// The last survivor of top-k, top-p and min-p, by their definitions.
Cut exact_cut(const Row &row) {
    const Choice &choice = *row.choice;
    const float weighty = float_below(static_cast<double>(row.result.peak) + kNoWeight64 * choice.temperature);
    std::vector<Candidate> tokens;
    if (choice.top_k > 0) {
        tokens = first_tokens(row, std::min(choice.top_k, row.vocabulary));
    } else {
        tokens = gather(row, weighty);
        std::sort(tokens.begin(), tokens.end(), precedes);
    }
    size_t count = tokens.size();
    if (row.narrows()) count = nucleus_of(row, tokens, weighty);
    while (!keeps(row.least, tokens[count - 1])) --count;
    return tokens[count - 1];
}

// What float32 says of top-p's cut: what precedes or is `sure` survives, what comes after `possible` does not.
struct Nucleus {
    Cut sure, possible;
};

bool surely_below(double sum, double limit) { return sum * (1 + kEdge) < limit * (1 - kEdge); }
bool possibly_below(double sum, double limit) { return sum * (1 - kEdge) < limit * (1 + kEdge); }

// Weights are summed by steps of their logits; only those of the steps near the cut are put in order.
Nucleus narrow(const Row &row, double limit) {
    double sums[kSteps] = {};
    float weights[kBlock];
    int32_t steps[kBlock];
    each_block(row, 0, row.blocks, -kInfinity, [&](int64_t block, const float *values) {
        if (row.weightless(block, row.scale)) return;
        block_steps(values, row.scale, weights, steps);
        for (int64_t i = 0; i < kBlock; ++i) sums[steps[i]] += static_cast<double>(weights[i]);
    });
    int first = 0;
    double sum = 0;
    while (first < kSteps - 1 && surely_below(sum + sums[first], limit)) sum += sums[first++];
    int last = first;
    for (double until = sum + sums[first]; last < kSteps - 1 && possibly_below(until, limit);) until += sums[++last];

    struct Weighted {
        Candidate token;
        float weight;
    };
    std::vector<Weighted> tokens;
    each_block(row, 0, row.blocks, -kInfinity, [&](int64_t block, const float *values) {
        const float highest = (row.scale.peak - row.maxima[block]) * row.scale.inverse * kStepsPerUnit;
        if (highest >= static_cast<float>(last + 1) || row.weightless(block, row.scale)) return;
        block_steps(values, row.scale, weights, steps);
        const int64_t count = row.count(block);
        for (int64_t i = 0; i < count; ++i)
            if (steps[i] >= first && steps[i] <= last && weights[i] > 0)
                tokens.push_back({{values[i], block * kBlock + i}, weights[i]});
    });
    std::sort(tokens.begin(), tokens.end(),
              [](const Weighted &a, const Weighted &b) { return precedes(a.token, b.token); });
    // What precedes the first of them is kept, whatever becomes of it.
    Nucleus nucleus{{tokens[0].token.value, tokens[0].token.id - 1}, tokens[0].token};
    for (const Weighted &next : tokens) {
        if (surely_below(sum, limit)) nucleus.sure = next.token;
        if (!possibly_below(sum, limit)) break;
        nucleus.possible = next.token;
        sum += static_cast<double>(next.weight);
    }
    return nucleus;
}

double weight_of_all(const Row &row) {
    double sum = 0;
    each_block(row, 0, row.blocks, -kInfinity, [&](int64_t block, const float *values) {
        if (!row.weightless(block, row.scale)) sum += block_weight(values, row.scale);
    });
    return sum;
}

double weight_before(const Row &row, const Candidate &token) {
    double sum = 0;
    each_block(row, 0, row.blocks, token.value, [&](int64_t block, const float *values) {
        sum += block_weight_before(values, row.scale, token.value, token.id, block * kBlock);
    });
    return sum;
}

// The largest of all perturbed values is the survivors' too where its token survives; so is the largest of any other
// set that has all survivors. Sums of float32 settle that for all but those few that fall near the edge.
int64_t draw(Row &row) {
    if (row.lists()) return draw_from(row, exact_cut(row));
    const int64_t token = best_of_bounds(row, row.least);
    if (!row.narrows() || token == row.result.token) return token;
    const double limit = row.choice->top_p * weight_of_all(row);
    if (surely_below(weight_before(row, {row.logits[token], token}), limit)) return token;
    const Nucleus nucleus = narrow(row, limit);
    const bool tighter = keeps(nucleus.possible, row.least);
    const int64_t other = draw_from(row, tighter ? row.least : nucleus.possible);
    if (keeps(nucleus.sure, {row.logits[other], other})) return other;
    return draw_from(row, exact_cut(row));
}

void find_logprobs(Row &row) {
    Chosen &result = row.result;
    double sum = 0;
    for (int64_t block = 0; block < row.blocks; ++block) sum += row.likelihoods[block];
    const double total = static_cast<double>(result.peak) + exact_log(sum);
    result.logprob = static_cast<double>(row.logits[result.token]) - total;
    if (row.choice->logprobs == 0) return;
    for (const Candidate &token : first_tokens(row, std::min(row.choice->logprobs, row.vocabulary))) {
        if (token.value == -kInfinity) break;
        result.top_tokens.push_back(token.id);
        result.top_logprobs.push_back(static_cast<double>(token.value) - total);
    }
}

void decide(Row &row) {
    if (row.samples()) row.result.token = draw(row);
    if (row.reports()) find_logprobs(row);
}

// A thread's own memory for `count` numbers, one for each purpose.
enum class Purpose { bounds, likelihoods, masked };
template <Purpose, typename Number> Number *scratch(int64_t count) {
    thread_local std::vector<Number> memory;
    if (static_cast<int64_t>(memory.size()) < count) memory.resize(static_cast<size_t>(count));
    return memory.data();
}

std::vector<Row> rows_of(const float *logits, int64_t vocabulary, const std::vector<Choice> &choices) {
    const int64_t blocks = (vocabulary + kBlock - 1) / kBlock, parts = (blocks + kPartBlocks - 1) / kPartBlocks;
    const auto count = static_cast<int64_t>(choices.size());
    const auto constrained = std::count_if(choices.begin(), choices.end(), [](const Choice &one) { return one.allowed; });
    float *floats = scratch<Purpose::bounds, float>(2 * blocks * count);
    float *edited = scratch<Purpose::masked, float>(vocabulary * constrained);
    double *doubles = scratch<Purpose::likelihoods, double>(blocks * count);
    std::vector<Row> rows;
    rows.reserve(choices.size());
    for (const Choice &choice : choices) {
        const float *given = logits + choice.row * vocabulary;
        float *masked = nullptr;
        if (choice.allowed) {
            masked = edited;
            edited += vocabulary;
        }
        rows.push_back({&choice, given, masked, masked ? masked : given, vocabulary, blocks, floats, floats + blocks, doubles,
                        std::vector<uint8_t>(static_cast<size_t>(parts))});
        floats += 2 * blocks;
        doubles += blocks;
    }
    return rows;
}

} // namespace

std::vector<Chosen> choose(const float *logits, int64_t vocabulary, const std::vector<Choice> &choices) {
    if (choices.empty()) return {};
    std::vector<Row> rows = rows_of(logits, vocabulary, choices);
    const auto count = static_cast<int64_t>(rows.size()), parts = static_cast<int64_t>(rows[0].unordered.size());
    const std::shared_ptr<Pool> threads = pool();
    const auto row_at = [&](int64_t index) -> Row & { return rows[static_cast<size_t>(index)]; };
    if (count >= 2 * threads->threads()) {
        // A row at a time stays in its core's cache.
        threads->run(count, [&](int64_t index) {
            Row &row = row_at(index);
            for (int64_t part = 0; part < parts; ++part) find_maxima(row, part);
            find_peak(row);
            for (int64_t part = 0; part < parts; ++part) weigh(row, part);
            decide(row);
        });
    } else {
        threads->run(count * parts, [&](int64_t task) { find_maxima(row_at(task / parts), task % parts); });
        for (Row &row : rows) find_peak(row);
        if (std::any_of(rows.begin(), rows.end(), [](const Row &row) { return row.samples() || row.reports(); })) {
            threads->run(count * parts, [&](int64_t task) { weigh(row_at(task / parts), task % parts); });
            threads->run(count, [&](int64_t index) { decide(row_at(index)); });
        }
    }
    std::vector<Chosen> results;
    results.reserve(rows.size());
    for (Row &row : rows) results.push_back(std::move(row.result));
    return results;
}

} // namespace penstock
