#include "row_wise.hpp"

#include "linear.hpp"
#include "pool.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock {

namespace {

// Rows that a thread takes through a run at once: a thousand columns of them are 400 KB. A part with fewer than the least would
// read weights for too little.
constexpr int64_t kMostRows = 96, kLeastRows = 32;

thread_local std::vector<Register> t_registers;

// Rows in parts, as many for each thread.
struct Parts {
    int64_t rows, count;

    Parts(int64_t all, int64_t threads) : rows(all), count(1) {
        if (threads > 1 && all < kLeastRows * threads) return;
        count = threads * std::max<int64_t>(1, (all + kMostRows * threads - 1) / (kMostRows * threads));
    }

    int64_t first(int64_t part) const {
        // Where tiles of the kernels do that most weights have.
        const int64_t tile = kernels().tile_rows[static_cast<int>(Format::int8)];
        return part == count ? rows : rows * part / count / tile * tile;
    }
};

void run_part(const RowWise &run, const Program::Step &step, int64_t first, int64_t rows) {
    std::vector<Register> &registers = t_registers;
    registers.resize(std::max(registers.size(), static_cast<size_t>(run.registers)));
    const auto lend = [&](const RowWise::Link &link) {
        const Register &whole = step.registers[static_cast<size_t>(link.outer)];
        registers[static_cast<size_t>(link.inner)].lend(whole.row(first), rows, whole.width());
    };
    const auto release = [&](const RowWise::Link &link) { registers[static_cast<size_t>(link.inner)].release(); };
    for (const RowWise::Link &link : run.given) lend(link);
    for (const RowWise::Made &made : run.made) lend(made.link);
    Batch batch = step.batch;
    batch.tokens = rows;
    batch.ids += first;
    batch.positions += first;
    if (batch.types) batch.types += first;
    Program::Step own{batch, step.groups, registers, {}};
    for (const Program::Operation &operation : run.operations) operation(own);
    for (const RowWise::Link &link : run.given) release(link);
    for (const RowWise::Made &made : run.made) release(made.link);
}

} // namespace

Program::Operation row_wise(RowWise run) {
    const auto kept = std::make_shared<const RowWise>(std::move(run));
    return [kept](Program::Step &step) {
        // What is given may have the rows of a share alone.
        const int64_t rows = kept->given.empty() ? step.batch.tokens : step.registers[static_cast<size_t>(kept->given[0].outer)].rows();
        for (const RowWise::Made &made : kept->made)
            step.registers[static_cast<size_t>(made.link.outer)].shape(rows, made.width);
        const Parts parts(rows, pool()->threads());
        if (parts.count == 1) return run_part(*kept, step, 0, rows);
        pool()->run(parts.count, [&](int64_t part) {
            const int64_t first = parts.first(part);
            run_part(*kept, step, first, parts.first(part + 1) - first);
        });
    };
}

} // namespace penstock
