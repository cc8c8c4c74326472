// A native program as Python builds it, and all that must be true of what it is given.
#pragma once

#include "arrays.hpp"
#include "choices.hpp"
#include "decoding.hpp"
#include "program.hpp"
#include "row_wise.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock {

// Cosines and sines [positions, 2, head size].
using Angles = nb::ndarray<const float, nb::shape<-1, 2, -1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu>;
using Biases = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masses = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Keeps something alive, whatever it is.
using Keeper = std::shared_ptr<const void>;

template <typename Value> Keeper keeper(const Value &value) { return std::make_shared<Value>(value); }

// Ranks, and the memory in which they meet.
struct BoundRanks {
    BoundRanks(Bytes shared, int rank, int size, double patience)
        : memory(std::move(shared)), ranks(memory.data(), rank, size, patience) {
        require(size > 1 && 0 <= rank && rank < size, "There must be ranks, and this must be one of them.");
        require(memory.size() >= Ranks::bytes_for(size), "The memory is too small for these ranks.");
        require(reinterpret_cast<uintptr_t>(memory.data()) % kLine == 0, "The memory must begin at a multiple of 64 bytes.");
    }

    Bytes memory;
    Ranks ranks;
};

// A program, the objects whose memory it reads, and what the inputs of a step must keep to.
class BoundProgram {
public:
    explicit BoundProgram(int registers) : registers_(registers), program_(registers) {
        require(registers > 0, "A program needs registers.");
    }

    // A weight has rows of some ids, from `first` on, where there are more, `all`.
    void embedding(const Weight &weight, Keeper owner, int y, int64_t first, std::optional<int64_t> all) {
        limit_ids(first, weight.shape.outputs, all);
        keep(penstock::embedding(Matrix{weight.shape, weight.packed()}, first, known(y)), std::move(owner));
    }

    void plain_embedding(const Array &table, int y, int64_t first, std::optional<int64_t> all) {
        require(table.ndim() == 2 && table.stride(1) == 1, "An embedding must be [ids, width] with adjacent columns.");
        const auto count = static_cast<int64_t>(table.shape(0)), width = static_cast<int64_t>(table.shape(1));
        limit_ids(first, count, all);
        keep(penstock::embedding(stored(table), first, count, width, known(y)), keeper(table));
    }

    void all_reduce(BoundRanks &ranks, Keeper owner, int x, int y) {
        keep(penstock::all_reduce(ranks.ranks, known(x), known(y)), std::move(owner));
    }

    void gather(BoundRanks &ranks, Keeper owner, const std::vector<int64_t> &widths, bool everywhere, int x, int y,
                const std::pair<int64_t, int64_t> &stripe) {
        require(x != y, "Columns of all ranks need a register of their own.");
        require(widths.size() == static_cast<size_t>(ranks.ranks.size()), "Each rank has a number of columns.");
        require(std::all_of(widths.begin(), widths.end(), [](int64_t width) { return width > 0; }), "Each has some columns.");
        const Stripe own = share_of(stripe);
        keep(penstock::gather(ranks.ranks, widths, everywhere, own, known(x), known(y)), std::move(owner));
    }

    void share_rows(int x, int y, const std::pair<int64_t, int64_t> &stripe) {
        require(x != y, "A share of rows needs a register of its own.");
        add_operation(penstock::share_rows(share_of(stripe), known(x), known(y)));
    }

    void gather_rows(BoundRanks &ranks, Keeper owner, int x, int y) {
        require(x != y, "Rows of all ranks need a register of their own.");
        keep(penstock::gather_rows(ranks.ranks, known(x), known(y)), std::move(owner));
    }

    void positions(const Array &table, int y) {
        require(table.ndim() == 2 && table.stride(1) == 1, "An embedding must be [positions, width] with adjacent columns.");
        limit(positions_, static_cast<int64_t>(table.shape(0)));
        keep(penstock::positions(stored(table), static_cast<int64_t>(table.shape(1)), known(y)), keeper(table));
    }

    void types(const Array &table, int y) {
        require(table.ndim() == 2 && table.stride(1) == 1, "An embedding must be [types, width] with adjacent columns.");
        require(table.shape(0) > 0, "There must be a type.");
        limit(types_, static_cast<int64_t>(table.shape(0)));
        keep(penstock::types(stored(table), static_cast<int64_t>(table.shape(1)), known(y)), keeper(table));
    }

    void linear(const Weight &weight, Keeper owner, const std::optional<Floats> &bias, int x, int y, int64_t first,
                std::optional<int64_t> width) {
        require(x != y, "A projection cannot work in place.");
        const int64_t outputs = weight.shape.outputs, all = width.value_or(outputs);
        require(0 <= first && first <= all - outputs, "A projection's outputs must be among the columns.");
        keep(penstock::linear({weight.shape, weight.packed()}, kept_bias(weight, bias), known(x), known(y), first, all),
            std::move(owner));
    }

    void head_linear(const Weight &weight, Keeper owner, int64_t heads, int x, int y) {
        const Shape one = of_one(weight.shape, heads);
        require(one.outputs % kPanel == 0, "A head's outputs must be whole panels of 32.");
        require(x != y, "A projection cannot work in place.");
        keep(penstock::head_linear(heads, {one, weight.packed()}, known(x), known(y)), std::move(owner));
    }

    void rms_norm(const Floats &weight, float eps, int x, int y) {
        keep(penstock::rms_norm(norm(weight, eps), known(x), known(y)), keeper(weight));
    }

    void layer_norm(const Floats &weight, const std::optional<Floats> &bias, float eps, int x, int y) {
        require(!bias || bias->size() == weight.size(), "A norm's bias must be as long as its weight.");
        if (bias) kept_.push_back(keeper(*bias));
        keep(penstock::layer_norm(norm(weight, eps), bias ? bias->data() : nullptr, known(x), known(y)), keeper(weight));
    }

    void add_rms_norm(const Floats &weight, float eps, int x, int residual, int y, int total) {
        require(y != total && x != total && y != residual, "The sum and its norm need registers of their own.");
        keep(penstock::add_rms_norm(norm(weight, eps), known(x), known(residual), known(y), known(total)),
            keeper(weight));
    }

    // Weights of one size are of single heads; else they are of all query heads together, and of all key heads.
    void head_norm(int64_t query_heads, int64_t kv_heads, int64_t size, const Floats &query, const Floats &key, bool values,
                   float eps, int x, int y) {
        const Heads heads = heads_of(query_heads, kv_heads, size);
        const auto fits = [&](int64_t queries, int64_t keys) {
            return static_cast<int64_t>(query.size()) == queries && static_cast<int64_t>(key.size()) == keys;
        };
        require(fits(size, size) || fits(query_heads * size, kv_heads * size), "Norms must fit heads, or all of them.");
        kept_.push_back(keeper(query));
        keep(penstock::head_norm(heads, norm(query, eps), norm(key, eps), values, known(x), known(y)), keeper(key));
    }

    void route(const Weight &weight, Keeper owner, const std::optional<Floats> &bias, const std::optional<Floats> &correction,
               const std::optional<Floats> &scales, int64_t chosen, bool sigmoid, bool renormalise, float epsilon, float scale,
               int64_t groups, int64_t kept_groups, int64_t best_of_group, int x, int routed) {
        const int64_t experts = weight.shape.outputs;
        require(x != routed, "Choices need a register of their own.");
        require(0 < groups && experts % groups == 0 && 0 < kept_groups && kept_groups <= groups,
                "Groups of experts must be of one size, and some must be kept.");
        require(groups == 1 || (0 < best_of_group && best_of_group <= experts / groups), "A group has too few experts.");
        require(0 < chosen && chosen <= experts / groups * kept_groups, "There must be as many experts as are chosen.");
        const Routing routing{experts,     chosen,        sigmoid, renormalise, epsilon, scale, groups, kept_groups,
                              best_of_group, kept_of_each(experts, correction), kept_of_each(experts, scales)};
        keep(penstock::route({weight.shape, weight.packed()}, kept_bias(weight, bias), routing, known(x), known(routed)),
             std::move(owner));
    }

    void experts(const Weight &gate_up, Keeper gate_up_owner, const Weight &down, Keeper down_owner,
                 const std::optional<Floats> &gate_up_bias, const std::optional<Floats> &down_bias, int64_t count,
                 const std::string &gate, int x, int routed, int y,
                 const std::optional<std::vector<std::vector<int64_t>>> &holders, int64_t group, int64_t groups,
                 const std::optional<Integers> &choices) {
        const Shape one = of_one(gate_up.shape, count), back = of_one(down.shape, count);
        require(one.outputs % (2 * kPanel) == 0 && back.outputs % kPanel == 0,
                "An expert's gates, ups and outputs must be whole panels of 32.");
        require(one.outputs == 2 * back.inputs && one.inputs == back.outputs, "The experts' matrices do not fit together.");
        require(x != y && routed != y, "Experts cannot work in place.");
        if (holders)
            for (const std::vector<int64_t> &each : *holders)
                require(!each.empty() && each.front() >= 0 && each.back() < groups && std::is_sorted(each.begin(), each.end()),
                        "An expert must be held by some of the groups, in their order.");
        Placement placement = holders ? Placement(*holders, group, groups) : Placement(count);
        require(placement.held == count, "The weights must be of the experts that the group has.");
        require(!choices || static_cast<int64_t>(choices->size()) == placement.all() + 2,
                "Choices are counted of each expert, and two numbers of all.");
        kept_.push_back(std::move(gate_up_owner));
        if (choices) kept_.push_back(keeper(*choices));
        const Experts experts{std::move(placement), count, one, back, gate_up.packed(), down.packed(),
                              kept_bias(gate_up, gate_up_bias), kept_bias(down, down_bias), gate_of(gate),
                              choices ? choices->data() : nullptr};
        keep(penstock::mix(experts, known(x), known(routed), known(y)), std::move(down_owner));
    }

    void sigmoid_gate(int x, int gate, int y) {
        require(gate != y, "A gate cannot be the place of what it multiplies.");
        add_operation(penstock::sigmoid_gate(known(x), known(gate), known(y)));
    }

    // Returns the table's number.
    size_t add_rope(const Angles &table) {
        ropes_.emplace_back();
        rope_owners_.emplace_back();
        set_rope(ropes_.size() - 1, table);
        return ropes_.size() - 1;
    }

    void set_rope(size_t index, const Angles &table) {
        require(index < ropes_.size(), "There is no such table.");
        const auto size = static_cast<int64_t>(table.shape(2));
        ropes_[index] = {{table.data(), 2 * size}, static_cast<int64_t>(table.shape(0)), size};
        rope_owners_[index] = keeper(table);
    }

    void rotary(int64_t query_heads, int64_t kv_heads, int64_t size, size_t rope, bool selected, int x, int y,
                const std::pair<int64_t, int64_t> &stripe) {
        const Heads heads = heads_of(query_heads, kv_heads, size);
        require(rope < ropes_.size() && ropes_[rope].size == size && size % 2 == 0, "There is no table for such heads.");
        add_operation(penstock::rotary(heads, &ropes_[rope].rows, selected, share_of(stripe), known(x), known(y)));
    }

    void query_scale(int64_t query_heads, int64_t kv_heads, int64_t size, float beta, int64_t context, bool selected, int x,
                     int y, const std::pair<int64_t, int64_t> &stripe) {
        require(context > 0, "A context must be there.");
        const Heads heads = heads_of(query_heads, kv_heads, size);
        add_operation(penstock::query_scale(heads, beta, context, selected, share_of(stripe), known(x), known(y)));
    }

    void write_kv(int64_t query_heads, int64_t kv_heads, const std::vector<Array> &planes, const std::string &kept,
                  const std::string &type, size_t group, int x, const std::pair<int64_t, int64_t> &stripe) {
        const Cache cache = cache_of(planes, kept, type);
        require(cache.heads == kv_heads, "The cache is for another number of heads.");
        require(query_heads >= 0, "Heads must be there.");
        use(group, Use::own);
        add_operation(penstock::write_kv({query_heads, kv_heads, cache.size}, cache, group, stripe_of(stripe), known(x)));
    }

    void attention(int64_t query_heads, const std::vector<Array> &planes, const std::string &kept,
                   const std::string &type, size_t group, float factor, int64_t window, float softcap,
                   const std::optional<Floats> &sinks, const std::optional<Biases> &bias, bool selected, int x, int y,
                   const std::pair<int64_t, int64_t> &stripe) {
        const Cache cache = cache_of(planes, kept, type);
        require(query_heads % cache.heads == 0, "Query heads must be a multiple of KV heads.");
        require(x != y, "Attention cannot work in place.");
        use(group, Use::own);
        Attention operation{heads_of(query_heads, cache.heads, cache.size), factor, window, softcap,
                            kept_sinks(sinks, query_heads)};
        operation.stripe = stripe_of(stripe);
        require(!sinks || operation.stripe.ranks == 1, "Sinks are merged with what all ranks have.");
        add_bias(operation, bias);
        add_operation(penstock::attention(operation, cache, group, selected, known(x), known(y)));
    }

    void merge_stripes(int64_t query_heads, int64_t size, int64_t ranks, const std::optional<Floats> &sinks, int x, int y) {
        require(ranks > 1, "There must be ranks.");
        require(x != y, "What ranks have cannot be merged in place.");
        add_operation(penstock::merge_stripes(heads_of(query_heads, 1, size), ranks, kept_sinks(sinks, query_heads), known(x),
                                              known(y)));
    }

    void source_attention(int64_t query_heads, const std::vector<Array> &planes, const std::string &kept,
                          const std::string &type, size_t group, float factor, bool selected, int x, int y) {
        const Cache cache = cache_of(planes, kept, type);
        require(query_heads % cache.heads == 0, "Query heads must be a multiple of KV heads.");
        require(x != y, "Attention cannot work in place.");
        use(group, Use::sources);
        const Attention operation{heads_of(query_heads, cache.heads, cache.size), factor, 0, 0.0f, nullptr, true};
        add_operation(penstock::source_attention(operation, cache, group, selected, known(x), known(y)));
    }

    void row_attention(int64_t query_heads, int64_t kv_heads, int64_t size, const std::string &type, float factor, int64_t window,
                       const std::optional<Biases> &bias, int x, int y) {
        require(type == "float32" || type == "bfloat16", "Attention multiplies float32 or bfloat16.");
        require(kv_heads > 0 && query_heads % kv_heads == 0, "Query heads must be a multiple of KV heads.");
        require(size % 2 == 0, "Heads must be of an even size.");
        require(x != y, "Attention cannot work in place.");
        whole_ = true;
        Attention operation{heads_of(query_heads, kv_heads, size), factor, window, 0.0f, nullptr, true};
        add_bias(operation, bias);
        const Type multiplied = type == "float32" ? Type::float32 : Type::bfloat16;
        add_operation(penstock::row_attention(operation, multiplied, known(x), known(y)));
    }

    void gated_linear(const Weight &weight, Keeper owner, const std::optional<Floats> &bias, const std::string &gate,
                      int x, int y) {
        require(weight.shape.outputs % (2 * kPanel) == 0, "Gates and ups must be whole panels of 32 outputs.");
        require(x != y, "A projection cannot work in place.");
        keep(penstock::gated_linear({weight.shape, weight.packed()}, kept_bias(weight, bias), gate_of(gate),
                                   known(x), known(y)), std::move(owner));
    }

    void gated_activation(const std::string &gate, int x, int y) {
        require(x != y, "A gated activation cannot work in place.");
        add_operation(penstock::gated_activation(gate_of(gate), known(x), known(y)));
    }

    void activation(const std::string &name, int x, int y) {
        add_operation(penstock::activation(activate_of(name), known(x), known(y)));
    }

    void add(int x, int other, int y) {
        require(y != other, "A sum can take the place of its first term only.");
        add_operation(penstock::add(known(x), known(other), known(y)));
    }

    void concatenate(int64_t heads, int x, int other, int y) {
        require(heads > 0 && y != x && y != other, "Values cannot be put side by side in place.");
        add_operation(penstock::concatenate(heads, known(x), known(other), known(y)));
    }

    void columns(int64_t heads, int64_t first, int64_t count, int x, int y) {
        require(heads > 0 && first >= 0 && count > 0 && x != y, "Columns need heads, and a register of their own.");
        add_operation(penstock::columns(heads, first, count, known(x), known(y)));
    }

    void scale(float factor, int x, int y) {
        add_operation(penstock::scale(factor, known(x), known(y)));
    }

    void soft_cap(float cap, int x, int y) {
        add_operation(penstock::soft_cap(cap, known(x), known(y)));
    }

    void select_rows(int x, int y, const std::pair<int64_t, int64_t> &stripe) {
        require(x != y, "Rows cannot be selected in place.");
        add_operation(penstock::select_rows(share_of(stripe), known(x), known(y)));
    }

    // The operations that follow, up to `end_rows`, are those of a run (row_wise.hpp). Pairs are registers of the program, and
    // those that stand for them within it; what the run makes has a width, too. All others are the run's own within it.
    void begin_rows(const std::vector<std::pair<int, int>> &given, const std::vector<std::tuple<int, int, int64_t>> &made) {
        require(!run_, "Runs cannot be within each other.");
        run_.emplace(RowWise{{}, registers_, {}, {}});
        for (const auto &[outer, inner] : given) run_->given.push_back({known(outer), known(inner)});
        for (const auto &[outer, inner, width] : made) run_->made.push_back({{known(outer), known(inner)}, width});
    }

    void end_rows() {
        require(run_.has_value(), "There is no run to end.");
        RowWise done = std::move(*run_);
        run_.reset();
        program_.add(row_wise(std::move(done)));
    }

    void run(const Indices &ids, const Indices &positions, const std::vector<int64_t> &added,
             const std::vector<int64_t> &context, const Indices &selected, const std::vector<Table> &tables,
             int64_t block_size, const Indices &shared, const std::vector<std::pair<int, Array>> &inputs,
             const std::vector<std::pair<int, Array>> &outputs, const std::vector<Indices> &dropped,
             const std::vector<int64_t> &weighed, const std::vector<Masses> &masses, const std::optional<Indices> &types,
             const std::vector<int64_t> &sources, const std::optional<Indices> &seen) {
        Batch batch = batch_of(ids, positions, added, context, selected, block_size, shared);
        if (types) batch.types = of_types(*types, batch);
        if (!sources.empty()) batch.sources = of_sources(sources, batch);
        if (seen) batch.seen = of_seen(*seen, batch);
        std::vector<Tables> groups = checked(batch, context, tables, dropped);
        weigh(groups, weighed, masses, batch);
        const std::vector<Boundary> from = boundaries(inputs), into = boundaries(outputs);
        nb::gil_scoped_release unlocked;
        program_.run(batch, groups, from, into);
    }

    // The choices' rows are those of the sequences, whatever they say, and none has a mask.
    std::vector<std::pair<std::vector<int64_t>, std::vector<double>>> decode(
        const Indices &ids, const Indices &positions, const std::vector<int64_t> &added, const std::vector<int64_t> &context,
        const Indices &selected, const std::vector<Table> &tables, int64_t block_size, const Indices &shared, int logits,
        int64_t vocabulary, const std::vector<int64_t> &tokens, const std::vector<Asked> &asked,
        const std::vector<int64_t> &ranks,
        const std::optional<std::tuple<int, int, Array>> &feedback) {
        const Batch batch = batch_of(ids, positions, added, context, selected, block_size, shared);
        require(tokens.size() == added.size() && asked.size() == added.size() && selected.size() == added.size(),
                "Each sequence must have a selected token, a count and a choice.");
        require(vocabulary > 0 && vocabulary <= ids_, "Each token that may be chosen must have an embedding.");
        require(ranks.size() == added.size() && *std::min_element(ranks.begin(), ranks.end()) > 0,
                "Each sequence must have a rank at least.");
        std::vector<int64_t> ends;
        for (size_t i = 0; i < tokens.size(); ++i) {
            require(tokens[i] > 0, "Each sequence must be given a token.");
            ends.push_back(context[i] + tokens[i] - 1);
        }
        const std::vector<Tables> groups = checked(batch, ends, tables, {});
        std::vector<Choice> choices;
        for (const Asked &one : asked) choices.push_back(choice_of(one, nullptr));
        const Logits output{known(logits), vocabulary};
        Feedback fed{};
        if (feedback) {
            const auto &[input, made, first] = *feedback;
            const Boundary given = boundary(input, first);
            require(given.rows == batch.tokens, "There must be a row of what is given for each token.");
            fed = {given.reg, known(made), given.width, given.values};
        }
        nb::gil_scoped_release unlocked;
        std::vector<std::pair<std::vector<int64_t>, std::vector<double>>> found;
        for (Decoded &one : penstock::decode(program_, output, batch, groups, tokens, std::move(choices), ranks,
                                             feedback ? &fed : nullptr))
            found.emplace_back(std::move(one.ids), std::move(one.probabilities));
        return found;
    }

private:
    // What a group of the cache has of a sequence: nothing that is used here, its own tokens, or its source's.
    enum class Use { none, own, sources };

    void use(size_t group, Use as) {
        uses_.resize(std::max(uses_.size(), group + 1), Use::none);
        require(uses_[group] == Use::none || uses_[group] == as, "A group has either sequences' own tokens or their sources'.");
        uses_[group] = as;
    }

    const float *kept_sinks(const std::optional<Floats> &sinks, int64_t query_heads) {
        if (!sinks) return nullptr;
        require(static_cast<int64_t>(sinks->size()) == query_heads, "Each query head must have a sink.");
        kept_.push_back(keeper(*sinks));
        return sinks->data();
    }

    // The stripe whose share of rows an operation has; with a single one, it has all.
    Stripe share_of(const std::pair<int64_t, int64_t> &rank) { return rank.second == 1 ? Stripe{} : stripe_of(rank); }

    // Of a rank and how many there are; all operations have the same.
    Stripe stripe_of(const std::pair<int64_t, int64_t> &rank) {
        const auto [index, ranks] = rank;
        require(0 <= index && index < ranks, "There is no such rank.");
        require(stripes_ == 0 || stripes_ == ranks, "All of a program's ranks must be as many.");
        stripes_ = ranks;
        return {index, ranks};
    }

    // A bias is [query heads, 2 · reach + 1].
    void add_bias(Attention &operation, const std::optional<Biases> &bias) {
        if (!bias) return;
        require(static_cast<int64_t>(bias->shape(0)) == operation.heads.query && bias->shape(1) % 2 == 1,
                "A bias must have a row for each query head, and as many keys before a query as behind it.");
        kept_.push_back(keeper(*bias));
        operation.bias = bias->data();
        operation.reach = static_cast<int64_t>(bias->shape(1)) / 2;
    }

    struct Rope {
        Rows rows;
        int64_t positions, size;
    };

    int known(int index) const {
        require(index >= 0 && index < registers_, "There is no such register.");
        return index;
    }

    void keep(Program::Operation operation, Keeper owner) {
        kept_.push_back(std::move(owner));
        add_operation(std::move(operation));
    }

    void add_operation(Program::Operation operation) {
        if (run_) run_->operations.push_back(std::move(operation));
        else program_.add(std::move(operation));
    }

    // The values of a projection's bias, or null.
    const float *kept_bias(const Weight &weight, const std::optional<Floats> &bias) {
        if (!bias) return nullptr;
        require(static_cast<int64_t>(bias->size()) == weight.shape.outputs, "The bias must have one value an output.");
        kept_.push_back(keeper(*bias));
        return bias->data();
    }

    const float *kept_of_each(int64_t experts, const std::optional<Floats> &values) {
        if (!values) return nullptr;
        require(static_cast<int64_t>(values->size()) == experts, "There must be one value an expert.");
        kept_.push_back(keeper(*values));
        return values->data();
    }

    static void limit(int64_t &bound, int64_t value) { bound = std::min(bound, value); }

    void limit_ids(int64_t first, int64_t count, std::optional<int64_t> all) {
        require(0 <= first && first + count <= all.value_or(first + count), "An embedding's rows must be among all.");
        require(first == 0 || all, "Of an embedding's part it must be known how many ids there are.");
        limit(ids_, all.value_or(count));
    }

    static Norm norm(const Floats &weight, float eps) {
        return {weight.data(), static_cast<int64_t>(weight.size()), eps};
    }

    // Of the matrices of `count` experts, one below the other, that of one.
    static Shape of_one(const Shape &all, int64_t count) {
        require(count > 0 && all.outputs % count == 0 && !all.ordered, "Each expert must have as many outputs, in order.");
        Shape one = all;
        one.outputs = all.outputs / count;
        return one;
    }

    static Activate activate_of(const std::string &name) {
        if (name == "relu") return relu;
        if (name == "gelu") return exact_gelu;
        return is_silu(name) ? silu : gelu;
    }

    static bool is_silu(const std::string &name) {
        require(name == "silu" || name == "gelu_tanh", "There is no such activation.");
        return name == "silu";
    }

    static Gate gate_of(const std::string &name) {
        if (name == "swigluoai") return bounded_gate;
        if (name == "gelu") return exact_gelu_gate;
        return is_silu(name) ? silu_gate : gelu_gate;
    }

    static Heads heads_of(int64_t query, int64_t key, int64_t size) {
        require(query > 0 && key >= 0 && size > 0, "Heads must be there.");
        return {query, key, size};
    }

    // Keys and values are [blocks, tokens of a block, KV heads, size], and scales without the last; a block is dense, and all
    // planes are as far from block to block. kv.hpp says what is in them. Bytes come as uint8, two values to a byte as half as
    // many, with scales [blocks, tokens, heads, 2 · groups].
    Cache cache_of(const std::vector<Array> &planes, const std::string &kept, const std::string &type) {
        require(kept == "plain" || kept == "int8" || kept == "fp8" || kept == "int4",
                "Values are kept plain, as int8, as fp8 or as int4.");
        require(type == "float32" || type == "bfloat16", "Attention multiplies float32 or bfloat16.");
        const bool plain = kept == "plain", nibbles = kept == "int4";
        // Without values, keys are values, too.
        const bool latent = planes.size() == (plain ? 1u : 2u);
        require(latent || planes.size() == (plain ? 2u : 4u), "Keys and values, and scales of bytes, must be there.");
        require(!latent || plain || kept == "int8", "Keys that are values, too, are kept plain or as int8.");
        const Array &keys = planes[0];
        require(keys.ndim() == 4, "Keys must be [blocks, tokens, heads, size].");
        const auto extent = [&](size_t axis) { return static_cast<int64_t>(keys.shape(axis)); };
        const int64_t block_bytes = bytes_between_blocks(keys);
        for (size_t i = 0; i < planes.size(); ++i) {
            const Array &plane = planes[i];
            const bool scales = i >= planes.size() / (plain ? 1 : 2);
            require(plane.ndim() == (scales && !nibbles ? 3u : 4u) && plane.shape(0) == keys.shape(0) &&
                        plane.shape(1) == keys.shape(1) && plane.shape(2) == keys.shape(2) &&
                        (scales || plane.shape(3) == keys.shape(3)),
                    "Planes of the cache must be of one shape.");
            require(!scales || !nibbles || static_cast<int64_t>(plane.shape(3)) * kKvGroup == 4 * extent(3),
                    "There must be a scale and a least value for each group.");
            int64_t stride = 1;
            for (size_t axis = plane.ndim(); axis-- > 1; stride *= static_cast<int64_t>(plane.shape(axis)))
                require(plane.stride(axis) == stride || plane.shape(axis) == 1, "A block of the cache must be contiguous.");
            require(bytes_between_blocks(plane) == block_bytes && plane.stride(0) >= stride,
                    "Blocks of all planes must be as far apart, and not overlap.");
            if (plain) require((type_of(plane) == Type::float32) == (type == "float32"), "Planes must be of the type.");
            else if (!scales) require(plane.dtype() == nb::dtype<uint8_t>(), "Bytes must be uint8.");
            else if (nibbles) require(type_of(plane) == Type::bfloat16, "Scales of int4 must be bfloat16.");
            else require(plane.dtype() == nb::dtype<float>(), "Scales must be float32.");
            kept_.push_back(keeper(plane));
        }
        require(extent(1) > 0 && extent(1) % kStep == 0, "Blocks must be of a multiple of 16 tokens.");
        const int64_t size = extent(3) * (nibbles ? 2 : 1);
        require(size % (nibbles ? 2 * kKvGroup : 2) == 0, "Heads must be of an even size, for int4 of a multiple of 64.");
        require(block_size_ == 0 || block_size_ == extent(1), "All blocks must be of one size.");
        block_size_ = extent(1);
        limit(blocks_, extent(0));
        // Of none, null.
        auto bytes = [&](bool there, size_t i) { return there ? static_cast<uint8_t *>(planes[i].data()) : nullptr; };
        return {bytes(true, 0), bytes(!latent, 1), block_bytes, type == "float32" ? Type::float32 : Type::bfloat16, extent(2),
                size, plain ? Kept::plain : nibbles ? Kept::int4 : kept == "int8" ? Kept::int8 : Kept::fp8,
                bytes(!plain, latent ? 1 : 2), bytes(!plain && !latent, 3)};
    }

    static int64_t bytes_between_blocks(const Array &plane) {
        return plane.stride(0) * static_cast<int64_t>(plane.itemsize());
    }

    void check_ids(const Batch &batch) const {
        for (int64_t i = 0; i < batch.tokens; ++i)
            require(batch.ids[i] >= 0 && batch.ids[i] < ids_, "There is no embedding of such a token id.");
        for (int64_t i = 0; i < batch.selections; ++i)
            require(batch.selected[i] >= 0 && batch.selected[i] < batch.tokens, "There is no such token to select.");
    }

    const int64_t *of_types(const Indices &types, const Batch &batch) const {
        require(static_cast<int64_t>(types.size()) == batch.tokens, "Each token must have a type.");
        for (int64_t i = 0; i < batch.tokens; ++i)
            require(types.data()[i] >= 0 && types.data()[i] < types_, "There is no such type.");
        return types.data();
    }

    static const int64_t *of_seen(const Indices &seen, const Batch &batch) {
        require(static_cast<int64_t>(seen.size()) == batch.sequences, "Each sequence must say what is seen.");
        for (int64_t i = 0; i < batch.sequences; ++i)
            require(seen.data()[i] > 0 && seen.data()[i] <= batch.added[i], "What is seen must be tokens of the step.");
        return seen.data();
    }

    static Batch batch_of(const Indices &ids, const Indices &positions, const std::vector<int64_t> &added,
                          const std::vector<int64_t> &context, const Indices &selected, int64_t block_size,
                          const Indices &shared) {
        require(positions.size() == ids.size() && context.size() == added.size() && shared.size() % 2 == 0,
                "The step's arrays do not fit together.");
        return {ids.data(), positions.data(), static_cast<int64_t>(ids.size()), added.data(), context.data(),
                static_cast<int64_t>(added.size()), selected.data(), static_cast<int64_t>(selected.size()), block_size,
                shared.data(), static_cast<int64_t>(shared.size() / 2)};
    }

    static const int64_t *of_sources(const std::vector<int64_t> &sources, const Batch &batch) {
        require(static_cast<int64_t>(sources.size()) == batch.sequences, "Each sequence must have a source.");
        for (const int64_t tokens : sources) require(tokens > 0, "A source must have tokens.");
        return sources.data();
    }

    // The block tables, once all is in order up to the ends that contexts will have; `dropped` is empty or has as many.
    std::vector<Tables> checked(const Batch &batch, const std::vector<int64_t> &ends, const std::vector<Table> &tables,
                                const std::vector<Indices> &dropped) const {
        check_ids(batch);
        check_positions(batch, ends);
        check_shares(batch);
        require(dropped.empty() || dropped.size() == tables.size(), "Each block table must say what was dropped, or none.");
        std::vector<Tables> groups;
        for (size_t group = 0; group < tables.size(); ++group) {
            const Use use = group < uses_.size() ? uses_[group] : Use::none;
            // What is not read may be too small for this step.
            if (use == Use::none) groups.push_back({tables[group].data(), 0});
            else if (use == Use::own)
                groups.push_back(checked(batch, ends, tables[group], dropped.empty() ? nullptr : &dropped[group]));
            else {
                require(batch.sources, "Each sequence must have a source.");
                groups.push_back(checked(batch, {batch.sources, batch.sources + batch.sequences}, tables[group], nullptr));
                groups.back().of_sources = true;
            }
        }
        require(groups.size() >= uses_.size(), "There must be block tables for each group of the cache.");
        return groups;
    }

    void check_positions(const Batch &batch, const std::vector<int64_t> &ends) const {
        int64_t reach = positions_;
        for (const Rope &rope : ropes_) limit(reach, rope.positions);
        int64_t token = 0;
        for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
            const int64_t added = batch.added[sequence], context = batch.context[sequence];
            require(added > 0 && added <= context && token + added <= batch.tokens,
                    "A sequence's tokens must be in its context and in the step.");
            require(ends[static_cast<size_t>(sequence)] <= reach, "The tables must reach as far as the positions.");
            require(!whole_ || added == context, "All tokens of a sequence must be in the step.");
            for (int64_t i = 0; i < added; ++i, ++token)
                require(batch.positions[token] == context - added + i, "Positions must be the last of their contexts.");
        }
        require(token == batch.tokens, "Every token must be a sequence's.");
    }

    static void check_shares(const Batch &batch) {
        for (int64_t i = 0; i < batch.shares; ++i) {
            const int64_t token = batch.shared[2 * i], sequence = batch.shared[2 * i + 1];
            require(token >= 0 && token < batch.tokens && sequence >= 0 && sequence < batch.sequences &&
                        batch.positions[token] < batch.context[sequence] - batch.added[sequence],
                    "A token must be shared with a sequence whose own tokens come behind it.");
        }
    }

    Tables checked(const Batch &batch, const std::vector<int64_t> &ends, const Table &table, const Indices *dropped) const {
        require(block_size_ == 0 || batch.block_size == block_size_ * std::max<int64_t>(1, stripes_),
                "The step has blocks of another size.");
        require(static_cast<int64_t>(table.shape(0)) == batch.sequences && table.stride(1) == 1,
                "There must be a row of the block tables for each sequence.");
        require(!dropped || static_cast<int64_t>(dropped->size()) == batch.sequences, "Each sequence must say what was dropped.");
        for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
            const int64_t gone = dropped ? dropped->data()[sequence] : 0;
            require(gone >= 0 && gone % batch.block_size == 0 && gone <= batch.context[sequence] - batch.added[sequence],
                    "What was dropped must be whole blocks of what was before the step.");
            const int64_t blocks = (ends[static_cast<size_t>(sequence)] - gone + batch.block_size - 1) / batch.block_size;
            require(blocks <= static_cast<int64_t>(table.shape(1)), "A context must be in its block table.");
            const int32_t *row = table.data() + sequence * table.stride(0);
            for (int64_t i = 0; i < blocks; ++i) require(row[i] >= 0 && row[i] < blocks_, "There is no such block.");
        }
        return {table.data(), table.stride(0), dropped ? dropped->data() : nullptr};
    }

    // Has the attention of each sequence's last queries weighed, in `masses` of each table, which are empty where nothing is.
    static void weigh(std::vector<Tables> &groups, const std::vector<int64_t> &weighed, const std::vector<Masses> &masses,
                      const Batch &batch) {
        if (weighed.empty()) return;
        require(static_cast<int64_t>(weighed.size()) == batch.sequences && masses.size() == groups.size(),
                "Each sequence must say what is weighed, and each table must have masses.");
        for (size_t group = 0; group < groups.size(); ++group) {
            const Masses &each = masses[group];
            require(static_cast<int64_t>(each.shape(0)) == batch.sequences &&
                        static_cast<int64_t>(each.shape(1)) <= groups[group].stride,
                    "There must be masses for each sequence, of no more blocks than its table has.");
            for (int64_t sequence = 0; sequence < batch.sequences; ++sequence) {
                const int64_t places = batch.context[sequence] - groups[group].dropped_of(sequence);
                require(weighed[static_cast<size_t>(sequence)] == 0 ||
                            (places + batch.block_size - 1) / batch.block_size <= static_cast<int64_t>(each.shape(1)),
                        "There must be a mass for each block of a sequence that is weighed.");
            }
            groups[group].weighing = {weighed.data(), each.data(), static_cast<int64_t>(each.shape(1))};
        }
    }

    std::vector<Boundary> boundaries(const std::vector<std::pair<int, Array>> &values) const {
        std::vector<Boundary> result;
        for (const auto &[index, array] : values) result.push_back(boundary(index, array));
        return result;
    }

    Boundary boundary(int index, const Array &array) const {
        // Of none, numpy gives strides of its own.
        require(array.ndim() == 2 && (array.size() == 0 || array.stride(1) == 1), "Values must be [rows, width] with adjacent columns.");
        return {known(index), stored(array), static_cast<int64_t>(array.shape(0)), static_cast<int64_t>(array.shape(1))};
    }

    int registers_;
    Program program_;
    std::optional<RowWise> run_; // while its operations are added
    std::vector<Keeper> kept_;
    // Operations hold pointers to them.
    std::deque<Rope> ropes_;
    std::vector<Keeper> rope_owners_;
    int64_t ids_ = std::numeric_limits<int64_t>::max(), blocks_ = std::numeric_limits<int64_t>::max();
    int64_t positions_ = std::numeric_limits<int64_t>::max();
    int64_t types_ = std::numeric_limits<int64_t>::max();
    bool whole_ = false; // sequences are, in a step
    int64_t block_size_ = 0, stripes_ = 0;
    std::vector<Use> uses_; // of the cache's groups
};

} // namespace penstock
