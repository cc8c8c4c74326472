#include "decoding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace penstock {

namespace {

// The sequences that go on, one token each, with the memory of their batch.
class Rest {
public:
    Rest(const Batch &batch, const std::vector<Tables> &tables, int64_t blocks)
        : batch_(batch), whole_(tables), tables_(tables), blocks_(blocks), rows_(tables.size()),
          ids_(static_cast<size_t>(batch.sequences)), context_(batch.context, batch.context + batch.sequences),
          sequences_(ids_.size()) {
        std::iota(sequences_.begin(), sequences_.end(), 0);
    }

    const Batch &batch() const { return batch_; }
    const std::vector<Tables> &tables() const { return tables_; }
    const std::vector<size_t> &sequences() const { return sequences_; }

    // Those whose next token is in `ids`, by sequence, go on: the others leave.
    template <typename Stays> void advance(const std::vector<int64_t> &ids, const Stays &stays) {
        const size_t before = sequences_.size();
        size_t count = 0;
        for (size_t i = 0; i < before; ++i) {
            if (!stays(sequences_[i])) continue;
            sequences_[count] = sequences_[i];
            ids_[count] = ids[i];
            context_[count++] = context_[i] + 1;
        }
        sequences_.resize(count);
        if (count < before) select_tables();
        positions_.resize(count);
        for (size_t i = 0; i < count; ++i) positions_[i] = context_[i] - 1;
        ones_.assign(count, 1);
        selected_.resize(count);
        std::iota(selected_.begin(), selected_.end(), 0);
        const auto size = static_cast<int64_t>(count);
        batch_ = {ids_.data(), positions_.data(), size, ones_.data(), context_.data(), size, selected_.data(), size,
                  batch_.block_size, nullptr, 0};
    }

private:
    void select_tables() {
        for (size_t group = 0; group < whole_.size(); ++group) {
            std::vector<int32_t> &rows = rows_[group];
            const int64_t width = std::min(blocks_, whole_[group].stride);
            rows.clear();
            for (const size_t sequence : sequences_) {
                const int32_t *row = whole_[group].blocks + static_cast<int64_t>(sequence) * whole_[group].stride;
                rows.insert(rows.end(), row, row + width);
            }
            tables_[group] = {rows.data(), width};
        }
    }

    Batch batch_;
    const std::vector<Tables> &whole_;
    std::vector<Tables> tables_;
    const int64_t blocks_; // of a table that are used
    std::vector<std::vector<int32_t>> rows_;
    std::vector<int64_t> ids_, context_, positions_, ones_, selected_;
    std::vector<size_t> sequences_; // which of the first batch's
};

// What each choice chooses, and then, with what it has chosen left out, as many more as it has ranks.
std::vector<Decoded> ranked(const float *logits, int64_t vocabulary, const std::vector<Choice> &choices,
                            const std::vector<int64_t> &ranks) {
    std::vector<Decoded> found(choices.size());
    const int64_t most = *std::max_element(ranks.begin(), ranks.end());
    const auto words = static_cast<size_t>((vocabulary + 31) / 32);
    std::vector<uint32_t> allowed(most > 1 ? choices.size() * words : 0, ~uint32_t{0});
    std::vector<double> left(choices.size(), 1.0);
    for (int64_t rank = 0; rank < most; ++rank) {
        std::vector<Choice> asked;
        std::vector<size_t> places;
        for (size_t i = 0; i < choices.size(); ++i) {
            if (ranks[i] <= rank) continue;
            places.push_back(i);
            asked.push_back(choices[i]);
            if (ranks[i] > 1) asked.back().logprobs = 0;
            if (rank > 0) asked.back().allowed = allowed.data() + i * words;
        }
        const std::vector<Chosen> chosen = choose(logits, vocabulary, asked);
        for (size_t at = 0; at < places.size(); ++at) {
            const size_t i = places[at];
            const Chosen &one = chosen[at];
            const bool there = std::isfinite(one.peak);
            found[i].ids.push_back(there ? one.token : rank == 0 ? 0 : -1);
            if (ranks[i] == 1) continue;
            const double probability = there ? left[i] * std::exp(one.logprob) : 0.0;
            found[i].probabilities.push_back(probability);
            left[i] -= probability;
            if (there) allowed[i * words + static_cast<size_t>(one.token / 32)] &= ~(uint32_t{1} << one.token % 32);
        }
    }
    return found;
}

} // namespace

std::vector<Decoded> decode(Program &program, const Logits &logits, const Batch &batch, const std::vector<Tables> &tables,
                            const std::vector<int64_t> &tokens, std::vector<Choice> choices, const std::vector<int64_t> &ranks,
                            const Feedback *feedback) {
    std::vector<Decoded> found(tokens.size());
    // What was made, and what of it is given to the next step.
    std::vector<float> made(feedback ? tokens.size() * static_cast<size_t>(feedback->width) : 0), fed(made.size());
    Stored given = feedback ? feedback->first : Stored{};
    std::vector<float> memory(tokens.size() * static_cast<size_t>(logits.vocabulary));
    std::vector<int64_t> ids;
    int64_t longest = 0;
    for (size_t i = 0; i < tokens.size(); ++i) longest = std::max(longest, batch.context[i] + tokens[i] - 1);
    Rest rest(batch, tables, (longest + batch.block_size - 1) / batch.block_size);
    while (!rest.sequences().empty()) {
        const std::vector<size_t> &sequences = rest.sequences();
        const auto rows = static_cast<int64_t>(sequences.size());
        std::vector<Boundary> inputs, outputs{
            {logits.reg, {memory.data(), Type::float32, logits.vocabulary}, rows, logits.vocabulary}};
        if (feedback) {
            inputs.push_back({feedback->input, given, rest.batch().tokens, feedback->width});
            outputs.push_back({feedback->output, {made.data(), Type::float32, feedback->width}, rows, feedback->width});
        }
        program.run(rest.batch(), rest.tables(), inputs, outputs);
        std::vector<Choice> asked;
        std::vector<int64_t> depths;
        for (size_t i = 0; i < sequences.size(); ++i) {
            Choice &choice = choices[sequences[i]];
            depths.push_back(ranks[sequences[i]]);
            asked.push_back(choice);
            asked.back().row = static_cast<int64_t>(i);
            ++choice.position;
        }
        ids.clear();
        const std::vector<Decoded> step = ranked(memory.data(), logits.vocabulary, asked, depths);
        for (size_t i = 0; i < sequences.size(); ++i) {
            Decoded &whole = found[sequences[i]];
            whole.ids.insert(whole.ids.end(), step[i].ids.begin(), step[i].ids.end());
            whole.probabilities.insert(whole.probabilities.end(), step[i].probabilities.begin(), step[i].probabilities.end());
            ids.push_back(step[i].ids.front());
        }
        const auto stays = [&](size_t sequence) {
            return static_cast<int64_t>(found[sequence].ids.size()) < tokens[sequence] * ranks[sequence];
        };
        if (feedback) {
            const auto width = static_cast<size_t>(feedback->width);
            float *into = fed.data();
            for (size_t i = 0; i < sequences.size(); ++i)
                if (stays(sequences[i])) into = std::copy_n(made.data() + i * width, width, into);
            given = {fed.data(), Type::float32, feedback->width};
        }
        rest.advance(ids, stays);
    }
    return found;
}

} // namespace penstock
