#include "linear.hpp"

#include "half.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "values.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace penstock {

namespace {

// Rows whose activations stay near the processor while panel after panel passes over them.
constexpr int64_t kChunkRows = 192;
// How far ahead of its use a line of weights is asked for: a page, since hardware prefetchers stop at the end of one.
constexpr int64_t kAhead = 4096;

#if defined(__x86_64__)
unsigned family() {
    unsigned version = 0, other[3];
    __get_cpuid(1, &version, other, other + 1, other + 2);
    return (version >> 8 & 15) + (version >> 20 & 255);
}
#endif

// From how many rows on a processor has more products to make of a line than it can look beyond.
constexpr int64_t kManyRows = 7;
// How many panels a thread must have for the next one to be worth asking for: behind its last one comes another's first.
constexpr int64_t kPanelsOfThread = 4;

// What a single tile asks for. Zen 4 follows a stream within a page with more requests at a time than a thread's instructions
// can have; Intel's processors read a third more where each line is asked for, and Zen 5 up to a quarter more where that is a
// panel ahead, as do others at many rows.
Ahead single_ahead(const Shape &shape, int64_t rows) {
    bool panel_ahead = rows >= kManyRows;
#if defined(__x86_64__)
    static const bool intel = __builtin_cpu_is("intel") != 0, zen_5 = __builtin_cpu_is("amd") && family() >= 26;
    if (intel) return Ahead::own_lines;
    panel_ahead = panel_ahead || zen_5;
#endif
    return panel_ahead && shape.panels() >= kPanelsOfThread * pool()->threads() ? Ahead::next_panel : Ahead::own_pages;
}

// Rows in tiles of nearly equal height: 13 of at most 12 are 6 and 7, not 12 and 1.
struct Cut {
    int64_t rows, tiles;

    Cut(int64_t all, int64_t most) : rows(all), tiles((all + most - 1) / most) {}
    int64_t first(int64_t tile) const { return rows * tile / tiles; }
};

struct Activations {
    const uint32_t *values; // tile after tile
    int64_t units;          // values of a row
    const float *scales;
    const int32_t *totals;
    const int32_t *sums;
    int64_t groups; // sums of a row
};

thread_local Memory t_activations;
thread_local Memory t_unpacked;
thread_local Memory t_row;
thread_local Memory t_ordered;
thread_local Memory t_gate;

// Where it holds rows have one sum only, which is enough since a panel meets several tiles then, or one of many rows.
bool unpacks(const Shape &shape, int64_t rows) { return shape.format == Format::int4 && rows > kernels().grouped_rows; }

int64_t units_of(const Shape &shape) {
    return shape.steps() * (shape.format == Format::bfloat16 && kernels().wide_bfloat16 ? 2 : 1);
}

// One row as the kernels want it: its units, filled up with zeros.
void prepare_row(const Shape &shape, const float *row, int64_t groups, uint32_t *units, float *scale, int32_t *total,
                 int32_t *sums) {
    const int64_t padded = shape.padded_inputs();
    switch (shape.format) {
    case Format::float32: std::memcpy(units, row, static_cast<size_t>(padded) * 4); break;
    case Format::bfloat16:
        units[units_of(shape) - 1] = 0;
        if (kernels().wide_bfloat16) round_to_bfloat16(row, reinterpret_cast<float *>(units), shape.inputs);
        else narrow(row, reinterpret_cast<uint16_t *>(units), shape.inputs);
        break;
    default: {
        // Where groups have scales of their own, each is quantized as a row would be.
        const int64_t parts = shape.scale_groups(), part = padded / parts;
        for (int64_t p = 0; p < parts; ++p) {
            const int64_t begin = p * part, inputs = std::min(part, shape.inputs - begin);
            kernels().quantize(row + begin, inputs, part, groups / parts, reinterpret_cast<int8_t *>(units) + begin,
                               scale + p, sums + p * (groups / parts));
        }
        const int32_t factor = shape.grouped() && !shape.zero_points ? -shape.middle() : -1;
        *total = 0;
        for (int64_t group = 0; group < groups; ++group) {
            *total -= 128 * sums[group];
            sums[group] *= factor;
        }
    }
    }
}

// The row's numbers as the weight has its inputs.
const float *in_order(const float *row, const Order &order, int64_t inputs) {
    auto *found = reinterpret_cast<float *>(t_ordered.take(inputs * 4));
    // Unrolled it takes three fifths of the time.
#pragma GCC unroll 8
    for (int64_t i = 0; i < inputs; ++i) found[i] = row[order.at(i)];
    return found;
}

void interleave(const uint32_t *row, int64_t units, int64_t rows, uint32_t *panel) {
    for (int64_t unit = 0; unit < units; ++unit) panel[unit * rows] = row[unit];
}

// `run` calls for each tile what it is given, with the tile's number.
template <typename Run>
Activations prepare(const Shape &shape, const Order &order, const Rows &x, const Cut &cut, const Run &run) {
    const int64_t each = units_of(shape), groups = unpacks(shape, cut.rows) ? 1 : shape.groups();
    const int64_t parts = shape.scale_groups();
    const int64_t scales_at = aligned(cut.rows * each * 4), totals_at = scales_at + aligned(cut.rows * parts * 4);
    const int64_t sums_at = totals_at + aligned(cut.rows * 4);
    uint8_t *memory = t_activations.take(sums_at + cut.rows * groups * 4);
    auto *units = reinterpret_cast<uint32_t *>(memory);
    auto *scales = reinterpret_cast<float *>(memory + scales_at);
    auto *totals = reinterpret_cast<int32_t *>(memory + totals_at);
    auto *sums = reinterpret_cast<int32_t *>(memory + sums_at);
    run([&](int64_t tile) {
        const int64_t first = cut.first(tile), rows = cut.first(tile + 1) - first;
        uint32_t *panel = units + first * each;
        auto *row = rows == 1 ? panel : reinterpret_cast<uint32_t *>(t_row.take(each * 4));
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = first + r;
            const float *numbers = shape.ordered ? in_order(x.row(at), order, shape.inputs) : x.row(at);
            prepare_row(shape, numbers, groups, row, scales + at * parts, totals + at, sums + at * groups);
            if (rows > 1) interleave(row, each, rows, panel + r);
        }
    });
    return {units, each, scales, totals, sums, groups};
}

std::atomic<uint64_t> products{0};

// What a thread has prepared for itself, and for which product.
thread_local uint64_t t_prepared = 0;
thread_local Activations t_own;

// What a call multiplies. Activations of a single tile are prepared by each thread for itself: others would have to wait for
// the one that does it for all, and then read them from its cache.
class Product {
public:
    const Shape &shape;
    const uint8_t *packed;
    const float *bias;
    Cut cut;

    Product(const Shape &shape, const uint8_t *packed, const float *bias, const Rows &x, int64_t rows)
        : shape(shape), packed(packed), bias(bias), cut{rows, kernels().tile_rows[static_cast<int>(shape.format)]}, x_(x) {
        const auto on_all_threads = [&](const auto &work) { pool()->run(cut.tiles, work); };
        if (cut.tiles > 1) shared_ = prepare(shape, shape.order(packed), x, cut, on_all_threads);
        else number_ = ++products;
    }

    // As the thread that asks is to read them.
    const Activations &activations() const {
        if (cut.tiles > 1) return shared_;
        if (t_prepared != number_) {
            t_own = prepare(shape, shape.order(packed), x_, cut, [](const auto &work) { work(0); });
            t_prepared = number_;
        }
        return t_own;
    }

private:
    const Rows &x_;
    uint64_t number_ = 0;
    Activations shared_{};
};

// What a thread does at once: the tiles [first, last) with one panel, while panel `next` comes.
struct Turn {
    int64_t panel, next;
    int64_t first, last;
};

// `output` is that of the first tile's first row, at the panel's first column.
void multiply(const Product &product, const Turn &turn, const MutableRows &output) {
    const Shape &shape = product.shape;
    const Cut &cut = product.cut;
    const Activations &x = product.activations();
    const int64_t columns = std::min(kPanel, shape.outputs - turn.panel * kPanel), bytes = shape.panel_bytes();
    const int64_t tiles = turn.last - turn.first;
    const float *bias = product.bias ? product.bias + turn.panel * kPanel : nullptr;
    const Shape int8{Format::int8, shape.outputs, shape.padded_inputs()};
    const bool unpack = unpacks(shape, cut.rows) && tiles > 1;
    const Shape *read = &shape;
    const uint8_t *weights = product.packed + turn.panel * bytes;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t row = cut.first(turn.first + tile), rows = cut.first(turn.first + tile + 1) - row;
        const Ahead what = tiles > 1 ? Ahead::next_panel : single_ahead(shape, rows);
        const uint8_t *ahead = weights + kAhead;
        int64_t step = kLine;
        if (what == Ahead::next_panel) {
            ahead = product.packed + turn.next * bytes + bytes * tile / tiles;
            step = kLine * bytes / (tiles * read->panel_bytes());
        }
        uint8_t *unpacked = unpack && tile == 0 ? t_unpacked.take(int8.panel_bytes()) : nullptr;
        kernels().tile[static_cast<int>(read->format)](
            {read, weights, x.values + row * x.units, rows, x.scales + row * shape.scale_groups(), x.totals + row, x.sums + row * x.groups,
             {output.row(row - cut.first(turn.first)), output.stride}, columns, bias, ahead, step, what, unpacked});
        if (unpacked) {
            read = &int8;
            weights = unpacked;
        }
    }
}

// Calls work(turn) for all panels and chunks of tiles, on all threads.
template <typename Work> void for_turns(const Cut &cut, int64_t panels, const Work &work) {
    const int64_t chunks = (cut.rows + kChunkRows - 1) / kChunkRows;
    pool()->run(chunks * panels, [&](int64_t task) {
        const int64_t chunk = task / panels;
        work(Turn{task % panels, (task + 1) % panels, cut.tiles * chunk / chunks, cut.tiles * (chunk + 1) / chunks});
    });
}

} // namespace

void linear(const Shape &shape, const uint8_t *packed, const float *bias, const Rows &x, int64_t rows,
            const MutableRows &output) {
    if (rows == 0) return;
    const Product product(shape, packed, bias, x, rows);
    for_turns(product.cut, shape.panels(), [&](const Turn &turn) {
        multiply(product, turn, {output.row(product.cut.first(turn.first)) + turn.panel * kPanel, output.stride});
    });
}

void gated_linear(const Shape &shape, const uint8_t *packed, const float *bias, const Rows &x, int64_t rows, Gate gate,
                  const MutableRows &output) {
    if (rows == 0) return;
    const Product product(shape, packed, bias, x, rows);
    const int64_t pairs = shape.panels() / 2;
    for_turns(product.cut, pairs, [&](const Turn &turn) {
        const int64_t begin = product.cut.first(turn.first), count = product.cut.first(turn.last) - begin;
        // A pair's sums stay in the first cache until they are one value.
        auto *sums = reinterpret_cast<float *>(t_gate.take(count * 2 * kPanel * 4));
        const int64_t up = turn.panel + pairs;
        multiply(product, {turn.panel, up, turn.first, turn.last}, {sums, 2 * kPanel});
        multiply(product, {up, turn.next, turn.first, turn.last}, {sums + kPanel, 2 * kPanel});
        for (int64_t row = 0; row < count; ++row) {
            const float *both = sums + row * 2 * kPanel;
            gate(both, both + kPanel, output.row(begin + row) + turn.panel * kPanel, kPanel);
        }
    });
}

} // namespace penstock
