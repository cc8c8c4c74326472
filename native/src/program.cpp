#include "program.hpp"

#include "formats.hpp"
#include "pool.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

namespace penstock {

namespace {

std::atomic<int64_t> done{0};

} // namespace

int64_t operations_done() { return done.load(std::memory_order_relaxed); }

void Register::shape(int64_t rows, int64_t width) {
    rows_ = rows;
    width_ = width;
    if (!lent_) own_ = reinterpret_cast<float *>(memory_.take(rows * width * 4));
}

void Register::lend(float *memory, int64_t rows, int64_t width) {
    lent_ = memory;
    rows_ = rows;
    width_ = width;
}

void Program::run(const Batch &batch, const std::vector<Tables> &groups, const std::vector<Boundary> &inputs,
                  const std::vector<Boundary> &outputs) {
    std::lock_guard<std::mutex> turn(turn_);
    for (const Boundary &input : inputs) {
        Register &x = registers_[static_cast<size_t>(input.reg)];
        x.shape(input.rows, input.width);
        for (int64_t row = 0; row < input.rows; ++row)
            read_values(input.values, row * input.values.stride, input.width, x.row(row));
    }
    // What nobody converts is computed where it is wanted.
    auto in_place = [](const Boundary &output) {
        return output.values.type == Type::float32 && output.values.stride == output.width;
    };
    for (const Boundary &output : outputs)
        if (in_place(output))
            registers_[static_cast<size_t>(output.reg)].lend(
                static_cast<float *>(output.values.data), output.rows, output.width);
    Step step{batch, groups, registers_, sequences_of_tokens(batch)};
    for (const Operation &operation : operations_) {
        operation(step);
        done.fetch_add(1, std::memory_order_relaxed);
    }
    for (const Boundary &output : outputs) {
        Register &y = registers_[static_cast<size_t>(output.reg)];
        if (!in_place(output))
            for (int64_t row = 0; row < output.rows; ++row)
                write_values(y.row(row), output.values, row * output.values.stride, output.width);
        y.release();
    }
}

namespace {

Register &at(Program::Step &step, int index) { return step.registers[static_cast<size_t>(index)]; }

// y with the rows of x, which it may be; then nothing moves.
Register &copied(Program::Step &step, int x, int y) {
    Register &source = at(step, x), &target = at(step, y);
    if (x == y) return target;
    target.shape(source.rows(), source.width());
    std::memcpy(target.data(), source.data(), static_cast<size_t>(source.size()) * sizeof(float));
    return target;
}

// The rows of a table at the numbers that a batch has in `places` for each token, at 0 where it has none.
Program::Operation rows_at(const Stored &table, int64_t width, const int64_t *Batch::*places, int y) {
    return [=](Program::Step &step) {
        Register &rows = at(step, y);
        rows.shape(step.batch.tokens, width);
        for (int64_t token = 0; token < step.batch.tokens; ++token)
            read_values(table, step.batch.*places ? (step.batch.*places)[token] * table.stride : 0, width, rows.row(token));
    };
}

} // namespace

Program::Operation embedding(const Matrix &weight, int64_t first, int y) {
    return [=](Program::Step &step) {
        Register &rows = at(step, y);
        const int64_t width = weight.shape.inputs;
        rows.shape(step.batch.tokens, width);
        pool()->run(step.batch.tokens, [&](int64_t token) {
            const int64_t id = step.batch.ids[token] - first;
            if (0 <= id && id < weight.shape.outputs)
                unpack_row(weight.shape, weight.packed, id, rows.row(token));
            else
                std::fill_n(rows.row(token), width, 0.0f);
        });
    };
}

Program::Operation embedding(const Stored &table, int64_t first, int64_t count, int64_t width, int y) {
    return [=](Program::Step &step) {
        Register &rows = at(step, y);
        rows.shape(step.batch.tokens, width);
        for (int64_t token = 0; token < step.batch.tokens; ++token) {
            const int64_t id = step.batch.ids[token] - first;
            if (0 <= id && id < count)
                read_values(table, id * table.stride, width, rows.row(token));
            else
                std::fill_n(rows.row(token), width, 0.0f);
        }
    };
}

Program::Operation positions(const Stored &table, int64_t width, int y) {
    return rows_at(table, width, &Batch::positions, y);
}

Program::Operation types(const Stored &table, int64_t width, int y) { return rows_at(table, width, &Batch::types, y); }

Program::Operation linear(const Matrix &weight, const float *bias, int x, int y, int64_t first, int64_t width) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        output.shape(input.rows(), width);
        linear(weight.shape, weight.packed, bias, input.read(), input.rows(), {output.data() + first, width});
    };
}

Program::Operation gated_linear(const Matrix &weight, const float *bias, Gate gate, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        output.shape(input.rows(), weight.shape.outputs / 2);
        gated_linear(weight.shape, weight.packed, bias, input.read(), input.rows(), gate, output.write());
    };
}

Program::Operation head_linear(int64_t heads, const Matrix &weight, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        output.shape(input.rows(), heads * weight.shape.outputs);
        head_linear(heads, weight.shape, weight.packed, input.read(), input.rows(), output.write());
    };
}

Program::Operation rms_norm(const Norm &norm, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        if (x != y) output.shape(input.rows(), norm.width);
        rms_norm(norm, input.read(), input.rows(), output.write());
    };
}

Program::Operation layer_norm(const Norm &norm, const float *bias, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        if (x != y) output.shape(input.rows(), norm.width);
        layer_norm(norm, bias, input.read(), input.rows(), output.write());
    };
}

Program::Operation add_rms_norm(const Norm &norm, int x, int residual, int y, int total) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x), &sum = copied(step, residual, total);
        Register &output = at(step, y);
        if (x != y) output.shape(input.rows(), norm.width);
        add_rms_norm(norm, input.read(), input.rows(), sum.write(), output.write());
    };
}

Program::Operation head_norm(const Heads &heads, const Norm &query, const Norm &key, bool values, int x, int y) {
    return [=](Program::Step &step) {
        const Register &qkv = copied(step, x, y);
        head_norm(heads, query, key, values, qkv.write(), qkv.rows());
    };
}

Program::Operation route(const Matrix &weight, const float *bias, const Routing &routing, int x, int routed) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, routed);
        output.shape(input.rows(), 2 * routing.chosen);
        thread_local Memory t_logits;
        auto *logits = reinterpret_cast<float *>(t_logits.take(input.rows() * routing.experts * 4));
        linear(weight.shape, weight.packed, bias, input.read(), input.rows(), {logits, routing.experts});
        route(routing, {logits, routing.experts}, input.rows(), output.write());
    };
}

Program::Operation mix(const Experts &experts, int x, int routed, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x), &choices = at(step, routed);
        Register &output = at(step, y);
        output.shape(input.rows(), experts.down.outputs);
        mix(experts, input.read(), choices.read(), input.rows(), choices.width() / 2, output.write());
    };
}

Program::Operation sigmoid_gate(int x, int gate, int y) {
    return [=](Program::Step &step) {
        const Register &values = copied(step, x, y), &gates = at(step, gate);
        sigmoid_gate(gates.read(), gates.width() == 1, values.write(), values.rows(), values.width());
    };
}

Program::Operation rotary(const Heads &heads, const Rows *table, bool selected, const Stripe &stripe, int x, int y) {
    return [=](Program::Step &step) {
        const Register &qkv = copied(step, x, y);
        const Batch &rows = step.rows(selected);
        rotary(heads, *table, rows.positions + stripe.first_row(rows.tokens), qkv.write(), qkv.rows());
    };
}

Program::Operation query_scale(const Heads &heads, float beta, int64_t context, bool selected, const Stripe &stripe, int x, int y) {
    return [=](Program::Step &step) {
        const Register &qkv = copied(step, x, y);
        const Batch &rows = step.rows(selected);
        const int64_t *positions = rows.positions + stripe.first_row(rows.tokens);
        query_scale(heads.query * heads.size, beta, context, positions, qkv.write(), qkv.rows());
    };
}

Program::Operation write_kv(const Heads &heads, const Cache &cache, size_t group, const Stripe &stripe, int x) {
    return [=](Program::Step &step) {
        store_kv(heads, step.batch, step.sequences, step.groups[group], at(step, x).read(), cache, stripe);
    };
}

Program::Operation attention(const Attention &attention, const Cache &cache, size_t group, bool selected, int x, int y) {
    return [=](Program::Step &step) {
        const Batch &rows = step.rows(selected);
        Register &output = at(step, y);
        output.shape(rows.tokens, attention.made_width());
        attend(attention, rows, step.tables(selected, group), at(step, x).read(), cache, output.write());
    };
}

Program::Operation merge_stripes(const Heads &heads, int64_t ranks, const float *sinks, int x, int y) {
    return [=](Program::Step &step) {
        const Register &parts = at(step, x);
        Register &output = at(step, y);
        output.shape(parts.rows(), heads.query * heads.size);
        merge_stripes(heads, ranks, sinks, parts.read(), parts.rows(), output.write());
    };
}

Program::Operation source_attention(const Attention &attention, const Cache &cache, size_t group, bool selected, int x, int y) {
    return [=](Program::Step &step) {
        // To attention, a source is the context of queries that see all of it.
        Batch rows = step.rows(selected);
        rows.context = rows.sources;
        Tables tables = step.tables(selected, group);
        tables.weighing = {};
        Register &output = at(step, y);
        output.shape(rows.tokens, attention.heads.query * attention.heads.size);
        attend(attention, rows, tables, at(step, x).read(), cache, output.write());
    };
}

Program::Operation row_attention(const Attention &attention, Type type, int x, int y) {
    return [=](Program::Step &step) {
        Register &output = at(step, y);
        output.shape(step.batch.tokens, attention.heads.query * attention.heads.size);
        attend_rows(attention, type, step.batch, step.sequences, at(step, x).read(), output.write());
    };
}

Program::Operation gated_activation(Gate gate, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        output.shape(input.rows(), input.width() / 2);
        gated_activation(gate, input.read(), input.rows(), output.width(), output.write());
    };
}

Program::Operation activation(Activate activate, int x, int y) {
    return [=](Program::Step &step) {
        const Register &values = copied(step, x, y);
        activation(activate, values.data(), values.size());
    };
}

Program::Operation add(int x, int other, int y) {
    return [=](Program::Step &step) {
        const Register &sum = copied(step, x, y);
        add(at(step, other).data(), sum.data(), sum.size());
    };
}

Program::Operation concatenate(int64_t heads, int x, int other, int y) {
    return [=](Program::Step &step) {
        const Register &left = at(step, x), &right = at(step, other);
        Register &output = at(step, y);
        output.shape(left.rows(), left.width() + right.width());
        side_by_side(heads, left.read(), left.width(), right.read(), right.width(), left.rows(), output.write());
    };
}

Program::Operation columns(int64_t heads, int64_t first, int64_t count, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        output.shape(input.rows(), heads * count);
        some_columns(heads, input.width(), first, count, input.read(), input.rows(), output.write());
    };
}

Program::Operation scale(float factor, int x, int y) {
    return [=](Program::Step &step) {
        const Register &values = copied(step, x, y);
        scale(factor, values.data(), values.size());
    };
}

Program::Operation soft_cap(float cap, int x, int y) {
    return [=](Program::Step &step) {
        const Register &values = copied(step, x, y);
        soft_cap(cap, values.data(), values.size());
    };
}

Program::Operation select_rows(const Stripe &stripe, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        output.shape(step.batch.selections, input.width());
        const int64_t first = stripe.first_row(step.batch.tokens);
        for (int64_t i = 0; i < step.batch.selections; ++i) {
            const int64_t row = step.batch.selected[i] - first;
            if (0 <= row && row < input.rows())
                std::memcpy(output.row(i), input.row(row), static_cast<size_t>(input.width()) * sizeof(float));
            else
                std::fill_n(output.row(i), input.width(), 0.0f);
        }
    };
}

Program::Operation share_rows(const Stripe &stripe, int x, int y) {
    return [=](Program::Step &step) {
        const Register &input = at(step, x);
        Register &output = at(step, y);
        output.shape(stripe.own_rows(input.rows()), input.width());
        std::memcpy(output.data(), input.row(stripe.first_row(input.rows())), static_cast<size_t>(output.size()) * sizeof(float));
    };
}

Program::Operation gather_rows(Ranks &ranks, int x, int y) {
    return [=, &ranks](Program::Step &step) {
        const Register &own = at(step, x);
        Register &whole = at(step, y);
        const int64_t rows = step.batch.tokens, width = own.width();
        whole.shape(rows, width);
        // The rows of a rank are its columns of a single one.
        std::vector<int64_t> widths;
        for (int64_t rank = 0; rank < ranks.size(); ++rank)
            widths.push_back(Stripe{rank, ranks.size()}.own_rows(rows) * width);
        ranks.gather(own.data(), 1, widths, true, whole.data());
    };
}

Program::Operation all_reduce(Ranks &ranks, int x, int y) {
    return [=, &ranks](Program::Step &step) {
        Register &total = copied(step, x, y);
        ranks.sum(total.data(), total.size());
    };
}

Program::Operation gather(Ranks &ranks, const std::vector<int64_t> &widths, bool everywhere, const Stripe &stripe, int x, int y) {
    return [=, &ranks](Program::Step &step) {
        const Register &own = at(step, x);
        Register &whole = at(step, y);
        const Ranks::Span read{stripe.first_row(own.rows()), stripe.own_rows(own.rows())};
        whole.shape(read.count, std::accumulate(widths.begin(), widths.end(), int64_t{0}));
        ranks.gather(own.data(), own.rows(), widths, everywhere, whole.data(), read);
    };
}

} // namespace penstock
