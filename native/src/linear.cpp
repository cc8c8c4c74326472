#include "products.hpp"

#include "half.hpp"
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

enum class Processor { intel, zen_5, other };

Processor find_processor() {
#if defined(__x86_64__)
    unsigned version = 0, other[3];
    __get_cpuid(1, &version, other, other + 1, other + 2);
    const unsigned family = (version >> 8 & 15) + (version >> 20 & 255);
    if (__builtin_cpu_is("intel")) return Processor::intel;
    if (__builtin_cpu_is("amd") && family >= 26) return Processor::zen_5;
#endif
    return Processor::other;
}

// What a tile asks for early, `step` bytes further with each line that it reads.
struct Asking {
    const uint8_t *from;
    int64_t step;
    Ahead how;
};

// Of its own panel, which the next one follows in memory, at least a page ahead, since hardware prefetchers stop at the end
// of one. Intel's processors read a third more where each line is asked for, and Zen 5 up to a third where that is two pages
// ahead. Zen 4 follows a stream within a page with more requests at a time than a thread's instructions can have; from so many
// rows on it has more products to make of a line than it can look beyond, and the next panel is asked for, if a thread has so
// many that it seldom is another's.
Asking ask_of_single(const Shape &shape, int64_t rows, const uint8_t *panel, const uint8_t *next) {
    constexpr int64_t kPage = 4096, kManyRows = 7, kPanelsOfThread = 4;
    static const Processor processor = find_processor();
    if (processor == Processor::intel) return {panel + kPage, kLine, Ahead::lines_to_second};
    if (processor == Processor::zen_5) return {panel + 2 * kPage, kLine, Ahead::lines_once};
    if (rows >= kManyRows && shape.panels() >= kPanelsOfThread * pool()->threads()) return {next, kLine, Ahead::lines_to_first};
    return {panel + kPage, kLine, Ahead::pages_to_second};
}

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

// From how many rows on a tile of them is row after row; 0 where it never is.
int64_t apart_from(const Shape &shape) { return kernels().apart_rows[static_cast<int>(shape.format)]; }

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

// Rows behind the last one that kernels may read, and make nothing of, where rows are apart.
constexpr int64_t kReadBehind = 15;

// Where the activations of all rows are in memory, and how many bytes of it they take.
struct Layout {
    int64_t units, groups, scales_at, totals_at, sums_at, bytes;

    Layout(const Shape &shape, const Cut &cut)
        : units(apart_from(shape) ? apart_units(units_of(shape)) : units_of(shape)), groups(unpacks(shape, cut.rows) ? 1 : shape.groups()),
          scales_at(aligned((cut.rows + (apart_from(shape) ? kReadBehind : 0)) * units * 4)), totals_at(scales_at + aligned(cut.rows * shape.scale_groups() * 4)),
          sums_at(totals_at + aligned(cut.rows * 4)), bytes(aligned(sums_at + cut.rows * groups * 4)) {}

    Activations in(uint8_t *memory) const {
        return {reinterpret_cast<uint32_t *>(memory), units, reinterpret_cast<float *>(memory + scales_at),
                reinterpret_cast<int32_t *>(memory + totals_at), reinterpret_cast<int32_t *>(memory + sums_at), groups};
    }
};

void prepare_tile(const Shape &shape, const Order &order, const Source &x, const Cut &cut, const Activations &into,
                  int64_t tile) {
    const int64_t first = cut.first(tile), rows = cut.first(tile + 1) - first, each = into.units;
    const int64_t parts = shape.scale_groups(), units = units_of(shape);
    const bool apart = apart_from(shape) && rows >= apart_from(shape);
    uint32_t *panel = into.values + first * each;
    auto *row = rows == 1 ? panel : reinterpret_cast<uint32_t *>(t_row.take(each * 4));
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = first + r;
        const float *numbers = shape.ordered ? in_order(x.row(at), order, shape.inputs) : x.row(at);
        if (apart) row = panel + r * each;
        prepare_row(shape, numbers, into.groups, row, into.scales + at * parts, into.totals + at, into.sums + at * into.groups);
        if (apart) std::fill(row + units, row + each, 0u);
        else if (rows > 1) interleave(row, units, rows, panel + r);
    }
}

std::atomic<uint64_t> products{0};

// What a thread has prepared for itself, and for which product.
thread_local uint64_t t_prepared = 0;
thread_local Activations t_own;

} // namespace

Product::Product(const Shape &its_shape, const uint8_t *its_packed, const float *its_bias, const Source &x, int64_t rows)
    : shape(its_shape), packed(its_packed), bias(its_bias),
      cut{rows, kernels().tile_rows[static_cast<int>(its_shape.format)]}, x_(x) {
    if (!shares()) number_ = ++products;
}

int64_t Product::shared_bytes() const { return Layout(shape, cut).bytes; }

void Product::share(uint8_t *memory) { shared_ = Layout(shape, cut).in(memory); }

void Product::prepare(int64_t tile) const { prepare_tile(shape, shape.order(packed), x_, cut, shared_, tile); }

const Activations &Product::activations() const {
    if (shares()) return shared_;
    if (t_prepared != number_) {
        const Layout layout(shape, cut);
        t_own = layout.in(t_activations.take(layout.bytes));
        prepare_tile(shape, shape.order(packed), x_, cut, t_own, 0);
        t_prepared = number_;
    }
    return t_own;
}

Turn Product::turn(int64_t task, int64_t panels) const {
    const int64_t chunk = task / panels, chunks = cut.chunks();
    return {task % panels, (task + 1) % panels, cut.tiles * chunk / chunks, cut.tiles * (chunk + 1) / chunks};
}

void Product::multiply(const Turn &turn, const MutableRows &output) const {
    const Activations &x = activations();
    const int64_t columns = std::min(kPanel, shape.outputs - turn.panel * kPanel), bytes = shape.panel_bytes();
    const int64_t tiles = turn.last - turn.first;
    const float *own_bias = this->bias ? this->bias + turn.panel * kPanel : nullptr;
    const Shape int8{Format::int8, shape.outputs, shape.padded_inputs()};
    const bool unpack = unpacks(shape, cut.rows) && tiles > 1;
    const Shape *read = &shape;
    const uint8_t *weights = packed + turn.panel * bytes, *next = packed + turn.next * bytes;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t row = cut.first(turn.first + tile), rows = cut.first(turn.first + tile + 1) - row;
        const Asking ask = tiles > 1 ? Asking{next + bytes * tile / tiles, kLine * bytes / (tiles * read->panel_bytes()),
                                              Ahead::lines_to_first}
                                     : ask_of_single(shape, rows, weights, next);
        uint8_t *unpacked = unpack && tile == 0 ? t_unpacked.take(int8.panel_bytes()) : nullptr;
        kernels().tile[static_cast<int>(read->format)](
            {read, weights, x.values + row * x.units, rows, x.scales + row * shape.scale_groups(), x.totals + row, x.sums + row * x.groups,
             {output.row(row - cut.first(turn.first)), output.stride}, columns, own_bias, ask.from, ask.step, ask.how, unpacked});
        if (unpacked) {
            read = &int8;
            weights = unpacked;
        }
    }
}

void Product::multiply_gated(const Turn &turn, Gate gate, const MutableRows &output) const {
    const int64_t count = cut.first(turn.last) - cut.first(turn.first);
    // A pair's sums stay in the first cache until they are one value.
    auto *sums = reinterpret_cast<float *>(t_gate.take(count * 2 * kPanel * 4));
    const int64_t up = turn.panel + shape.panels() / 2;
    multiply({turn.panel, up, turn.first, turn.last}, {sums, 2 * kPanel});
    multiply({up, turn.next, turn.first, turn.last}, {sums + kPanel, 2 * kPanel});
    for (int64_t row = 0; row < count; ++row) {
        const float *both = sums + row * 2 * kPanel;
        gate(both, both + kPanel, output.row(row), kPanel);
    }
}

namespace {

// Calls work(turn) for all panels and chunks of tiles, on all threads, once activations are prepared.
template <typename Work> void for_turns(Product &product, int64_t panels, const Work &work) {
    if (product.shares()) {
        product.share(t_activations.take(product.shared_bytes()));
        pool()->run(product.cut.tiles, [&](int64_t tile) { product.prepare(tile); });
    }
    pool()->run(product.cut.chunks() * panels, [&](int64_t task) { work(product.turn(task, panels)); });
}

} // namespace

void linear(const Shape &shape, const uint8_t *packed, const float *bias, const Rows &x, int64_t rows,
            const MutableRows &output) {
    if (rows == 0) return;
    Product product(shape, packed, bias, {x}, rows);
    for_turns(product, shape.panels(), [&](const Turn &turn) {
        product.multiply(turn, {output.row(product.cut.first(turn.first)) + turn.panel * kPanel, output.stride});
    });
}

void gated_linear(const Shape &shape, const uint8_t *packed, const float *bias, const Rows &x, int64_t rows, Gate gate,
                  const MutableRows &output) {
    if (rows == 0) return;
    Product product(shape, packed, bias, {x}, rows);
    for_turns(product, shape.panels() / 2, [&](const Turn &turn) {
        product.multiply_gated(turn, gate,
                               {output.row(product.cut.first(turn.first)) + turn.panel * kPanel, output.stride});
    });
}

} // namespace penstock
