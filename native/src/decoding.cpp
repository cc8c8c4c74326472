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
            rows.clear();
            for (const size_t sequence : sequences_) {
                const int32_t *row = whole_[group].blocks + static_cast<int64_t>(sequence) * whole_[group].stride;
                rows.insert(rows.end(), row, row + blocks_);
            }
            tables_[group] = {rows.data(), blocks_};
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

} // namespace

std::vector<std::vector<int64_t>> decode(Program &program, const Logits &logits, const Batch &batch,
                                         const std::vector<Tables> &tables, const std::vector<int64_t> &tokens,
                                         std::vector<Choice> choices, const Feedback *feedback) {
    std::vector<std::vector<int64_t>> found(tokens.size());
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
        for (size_t i = 0; i < sequences.size(); ++i) {
            Choice &choice = choices[sequences[i]];
            asked.push_back(choice);
            asked.back().row = static_cast<int64_t>(i);
            ++choice.position;
        }
        ids.clear();
        for (const Chosen &chosen : choose(memory.data(), logits.vocabulary, asked))
            ids.push_back(std::isfinite(chosen.peak) ? chosen.token : 0);
        for (size_t i = 0; i < sequences.size(); ++i) found[sequences[i]].push_back(ids[i]);
        const auto stays = [&](size_t sequence) { return static_cast<int64_t>(found[sequence].size()) < tokens[sequence]; };
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
