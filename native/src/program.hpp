// A model as a list of operations on registers, run with one call for each step.
//
// A register is a matrix of float32, one row for each token or, behind select_rows, for each token whose logits are wanted.
// Values are rounded to 8 or 16 bits only where weights or the cache want them so.
#pragma once

#include "attention.hpp"
#include "experts.hpp"
#include "linear.hpp"
#include "memory.hpp"
#include "ranks.hpp"
#include "rows.hpp"
#include "values.hpp"

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock {

class Register {
public:
    // Makes it rows · width floats, whose values are not kept.
    void shape(int64_t rows, int64_t width);
    // Makes it stand for memory that is not its own until the next `release`.
    void lend(float *memory, int64_t rows, int64_t width);
    void release() { lent_ = nullptr; }

    int64_t rows() const { return rows_; }
    int64_t width() const { return width_; }
    int64_t size() const { return rows_ * width_; }
    float *data() const { return lent_ ? lent_ : own_; }
    float *row(int64_t index) const { return data() + index * width_; }
    Rows read() const { return {data(), width_}; }
    MutableRows write() const { return {data(), width_}; }

private:
    Memory memory_;
    float *own_ = nullptr, *lent_ = nullptr;
    int64_t rows_ = 0, width_ = 0;
};

// A value that comes from outside, or goes there: rows · width values of either type.
struct Boundary {
    int reg;
    Stored values;
    int64_t rows, width;
};

class Program {
public:
    // What an operation sees of a step.
    struct Step {
        const Batch &batch;
        const std::vector<Tables> &groups;
        std::vector<Register> &registers;
        const std::vector<int64_t> sequences; // of the tokens
        std::optional<Selected> own{};        // of the selected tokens, once an operation has asked for them

        // What the rows of an operation are: all tokens, or those that are selected.
        const Batch &rows(bool selected) { return selected ? of_selected().batch() : batch; }
        const Tables &tables(bool selected, size_t group) { return selected ? of_selected().tables()[group] : groups[group]; }

    private:
        const Selected &of_selected() {
            if (!own) own.emplace(batch, groups, sequences);
            return *own;
        }
    };
    using Operation = std::function<void(Step &)>;

    explicit Program(int registers) : registers_(static_cast<size_t>(registers)) {}

    void add(Operation operation) { operations_.push_back(std::move(operation)); }

    // Inputs are read before the first operation, outputs written after the last. Callers take turns.
    void run(const Batch &batch, const std::vector<Tables> &groups, const std::vector<Boundary> &inputs,
             const std::vector<Boundary> &outputs);

private:
    std::vector<Register> registers_;
    std::vector<Operation> operations_;
    std::mutex turn_;
};

// Of all programs of this process, so far; may be asked on any thread.
int64_t operations_done();

// The operations (kernels/signature.py says what each means). `x`, `y`, … are registers; where an operation may work in
// place, both may be the same.
struct Matrix {
    Shape shape;
    const uint8_t *packed;
};

// Ids from `first` on have rows in a weight, and others have zeros.
Program::Operation embedding(const Matrix &weight, int64_t first, int y);
Program::Operation embedding(const Stored &table, int64_t first, int64_t count, int64_t width, int y);
// Rows of a table for positions.
Program::Operation positions(const Stored &table, int64_t width, int y);
// Rows of a table for types, the first where a step has none.
Program::Operation types(const Stored &table, int64_t width, int y);
// Its outputs are columns of y, which has `width`, from `first` on; the others stay as they are.
Program::Operation linear(const Matrix &weight, const float *bias, int x, int y, int64_t first, int64_t width);
// A linear of outputs [gates | ups] and what becomes of them, without a pass over memory between.
Program::Operation gated_linear(const Matrix &weight, const float *bias, Gate gate, int x, int y);
// Of each head's columns what its own matrix makes; `weight` is that of the first head.
Program::Operation head_linear(int64_t heads, const Matrix &weight, int x, int y);
Program::Operation rms_norm(const Norm &norm, int x, int y);
Program::Operation layer_norm(const Norm &norm, const float *bias, int x, int y);
// `total` becomes x + residual, and y its norm.
Program::Operation add_rms_norm(const Norm &norm, int x, int residual, int y, int total);
Program::Operation head_norm(const Heads &heads, const Norm &query, const Norm &key, bool values, int x, int y);
// `routed` becomes what `route` makes of the logits of a router.
Program::Operation route(const Matrix &weight, const float *bias, const Routing &routing, int x, int routed);
Program::Operation mix(const Experts &experts, int x, int routed, int y);
Program::Operation sigmoid_gate(int x, int gate, int y);
// Where rows are those of `selected` tokens, x has only these.
// Where there are several stripes, x has the rows of this one's share.
Program::Operation rotary(const Heads &heads, const Rows *table, bool selected, const Stripe &stripe, int x, int y);
Program::Operation query_scale(const Heads &heads, float beta, int64_t context, bool selected, const Stripe &stripe, int x, int y);
Program::Operation write_kv(const Heads &heads, const Cache &cache, size_t group, const Stripe &stripe, int x);
Program::Operation attention(const Attention &attention, const Cache &cache, size_t group, bool selected, int x, int y);
// What the attention of all ranks comes to, whose columns are beside each other.
Program::Operation merge_stripes(const Heads &heads, int64_t ranks, const float *sinks, int x, int y);
// Queries alone, over all of their sequences' sources.
Program::Operation source_attention(const Attention &attention, const Cache &cache, size_t group, bool selected, int x, int y);
Program::Operation row_attention(const Attention &attention, Type type, int x, int y);
Program::Operation gated_activation(Gate gate, int x, int y);
Program::Operation activation(Activate activate, int x, int y);
Program::Operation add(int x, int other, int y);
Program::Operation concatenate(int64_t heads, int x, int other, int y);
Program::Operation columns(int64_t heads, int64_t first, int64_t count, int x, int y);
Program::Operation scale(float factor, int x, int y);
Program::Operation soft_cap(float cap, int x, int y);
// Where there are several stripes, x has the rows of this one's share, and others are zeros.
Program::Operation select_rows(const Stripe &stripe, int x, int y);
// The sum of what all ranks have, and their columns beside each other.
Program::Operation all_reduce(Ranks &ranks, int x, int y);
// Where there are several stripes, of the rows of this one's share alone.
Program::Operation gather(Ranks &ranks, const std::vector<int64_t> &widths, bool everywhere, const Stripe &stripe, int x, int y);
// The rows of a share, and those of all ranks' shares.
Program::Operation share_rows(const Stripe &stripe, int x, int y);
Program::Operation gather_rows(Ranks &ranks, int x, int y);

} // namespace penstock
