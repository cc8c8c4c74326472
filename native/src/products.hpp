// Rows of activations as kernels take them, times panels of a weight: what linear.cpp does with one weight, and experts.cpp
// with several at once.
#pragma once

#include "linear.hpp"
#include "memory.hpp"

#include <algorithm>
#include <cstdint>

namespace penstock {

// Rows whose activations stay near the processor while panel after panel passes over them.
constexpr int64_t kChunkRows = 192;

// Rows in tiles of nearly equal height: 13 of at most 12 are 6 and 7, not 12 and 1.
struct Cut {
    int64_t rows, tiles;

    Cut(int64_t all, int64_t most) : rows(all), tiles((all + most - 1) / most) {}
    int64_t first(int64_t tile) const { return rows * tile / tiles; }
    int64_t chunks() const { return (rows + kChunkRows - 1) / kChunkRows; }
};

// Rows of x, in its order or in that of `chosen`.
struct Source {
    Rows x;
    const int64_t *chosen = nullptr;

    const float *row(int64_t index) const { return x.row(chosen ? chosen[index] : index); }
};

struct Activations {
    uint32_t *values; // tile after tile
    int64_t units;    // values of a row
    float *scales;
    int32_t *totals;
    int32_t *sums;
    int64_t groups; // sums of a row
};

// What a thread does at once: the tiles [first, last) with one panel, while panel `next` comes.
struct Turn {
    int64_t panel, next;
    int64_t first, last;
};

// What is multiplied. Activations of a single tile are prepared by each thread for itself: others would have to wait for the
// one that does it for all, and then read them from its cache. Those of several are prepared for all, tile by tile.
class Product {
public:
    const Shape &shape;
    const uint8_t *packed;
    const float *bias;
    Cut cut;

    Product(const Shape &shape, const uint8_t *packed, const float *bias, const Source &x, int64_t rows);

    // Whether all tiles must be prepared before the product can be made.
    bool shares() const { return cut.tiles > 1; }
    // How many bytes they take then, and where, which the product reads until it is made: memory that begins with a line.
    int64_t shared_bytes() const;
    void share(uint8_t *memory);
    void prepare(int64_t tile) const;

    // As the thread that asks is to read them.
    const Activations &activations() const;
    // `output` is that of the turn's first row, at the panel's first column.
    void multiply(const Turn &turn, const MutableRows &output) const;
    // The turn of a task, of which there are `panels` for each chunk of tiles.
    Turn turn(int64_t task, int64_t panels) const;
    // Outputs [gates | ups] of a turn, whose panel is one of gates, as what `gate` makes of both; `output` is that of the first
    // row, at the panel's first column.
    void multiply_gated(const Turn &turn, Gate gate, const MutableRows &output) const;

private:
    Source x_;
    uint64_t number_ = 0;
    Activations shared_{};
};

} // namespace penstock
