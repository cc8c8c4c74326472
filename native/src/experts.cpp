#include "experts.hpp"

#include "clones.hpp"
#include "exponential.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "products.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace penstock {

namespace {

// Values that one thread takes at once where rows are added up.
constexpr int64_t kTaskValues = 16 * 1024;
// Values of a row that say which of several groups computes it.
constexpr int64_t kTurnValues = 8;

void to_probabilities(float *logits, int64_t count) {
    const float largest = *std::max_element(logits, logits + count);
    float sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
        logits[i] = exponential(logits[i] - largest);
        sum += logits[i];
    }
    for (int64_t i = 0; i < count; ++i) logits[i] /= sum;
}

// Marks the `count` largest of the values, of equal ones the first. So many are marked even if some are not numbers, or
// all where there are fewer.
void mark_largest(const float *values, int64_t all, int64_t count, std::vector<uint8_t> &marked) {
    marked.assign(static_cast<size_t>(all), 0);
    for (int64_t taken = 0; taken < count; ++taken) {
        int64_t best = -1;
        for (int64_t i = 0; i < all; ++i)
            if (!marked[static_cast<size_t>(i)] && (best < 0 || values[i] > values[best])) best = i;
        if (best < 0) return;
        marked[static_cast<size_t>(best)] = 1;
    }
}

// Scores of experts outside of the best groups become smaller than any.
void keep_best_groups(const Routing &routing, std::vector<float> &ranked) {
    const int64_t size = routing.experts / routing.groups;
    std::vector<float> best(static_cast<size_t>(routing.groups)), own;
    for (int64_t group = 0; group < routing.groups; ++group) {
        own.assign(ranked.begin() + group * size, ranked.begin() + (group + 1) * size);
        // What is not a number comes first, as in torch, so that there is one order.
        std::sort(own.begin(), own.end(), [](float left, float right) {
            return left != left ? right == right : left > right;
        });
        best[static_cast<size_t>(group)] = std::accumulate(own.begin(), own.begin() + routing.best_of_group, 0.0f);
    }
    std::vector<uint8_t> kept;
    mark_largest(best.data(), routing.groups, routing.kept_groups, kept);
    for (int64_t expert = 0; expert < routing.experts; ++expert)
        if (!kept[static_cast<size_t>(expert / size)])
            ranked[static_cast<size_t>(expert)] = -std::numeric_limits<float>::infinity();
}

void route_row(const Routing &routing, float *logits, float *routed) {
    float *scores = logits;
    if (!routing.sigmoid) to_probabilities(scores, routing.experts);
    else
        for (int64_t i = 0; i < routing.experts; ++i) scores[i] = 1.0f / (1.0f + exponential(-scores[i]));
    std::vector<float> ranked(scores, scores + routing.experts);
    if (routing.correction)
        for (int64_t i = 0; i < routing.experts; ++i) ranked[static_cast<size_t>(i)] += routing.correction[i];
    if (routing.groups > 1) keep_best_groups(routing, ranked);
    std::vector<uint8_t> marked;
    mark_largest(ranked.data(), routing.experts, routing.chosen, marked);
    float sum = routing.epsilon;
    int64_t found = 0;
    for (int64_t expert = 0; expert < routing.experts; ++expert)
        if (marked[static_cast<size_t>(expert)]) {
            routed[found] = static_cast<float>(expert);
            routed[routing.chosen + found++] = scores[expert];
            sum += scores[expert];
        }
    for (int64_t i = 0; i < routing.chosen; ++i) {
        float &weight = routed[routing.chosen + i];
        weight = (routing.renormalise ? weight / sum : weight) * routing.scale;
        if (routing.scales) weight *= routing.scales[static_cast<int64_t>(routed[i])];
    }
}

// A number that follows from a row's values alone: whatever is beside it, the same group computes it. It is
// kernels/mixing.py: turns.
uint32_t turn_of(const float *x, int64_t width) {
    uint32_t turn = 0;
    for (int64_t i = 0; i < std::min(width, kTurnValues); ++i) {
        uint32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        turn = (turn ^ bits) * 0x9e3779b1u;
        turn ^= turn >> 15;
    }
    return turn;
}

// Rows by the experts that they go to: those of one expert together, in their own order.
struct Sorted {
    std::vector<int64_t> first; // of each expert, and behind the last
    std::vector<int64_t> rows;  // in order of experts
    std::vector<int64_t> place; // in that order, of each row's choices; -1: another has the expert

    Sorted(const Experts &experts, const Rows &x, const Rows &routed, int64_t count, int64_t chosen)
        : first(static_cast<size_t>(experts.count) + 1), rows(static_cast<size_t>(count * chosen)), place(rows.size()) {
        const Placement &placement = experts.placement;
        std::vector<int64_t> ids(rows.size()), computed(static_cast<size_t>(placement.groups));
        for (int64_t row = 0; row < count; ++row) {
            const uint32_t turn = placement.copied ? turn_of(x.row(row), experts.gate_up.inputs) : 0;
            for (int64_t i = 0; i < chosen; ++i) {
                const float named = routed.row(row)[i];
                const bool known = named > 0.0f && named < static_cast<float>(placement.all());
                const auto expert = known ? static_cast<size_t>(named) : size_t{0};
                const int64_t begin = placement.first[expert], copies = placement.first[expert + 1] - begin;
                const int64_t group = placement.holders[static_cast<size_t>(begin + turn % copies)];
                const int64_t id = group == placement.group ? placement.place[expert] : -1;
                ids[static_cast<size_t>(row * chosen + i)] = id;
                if (id >= 0) ++first[static_cast<size_t>(id) + 1];
                ++computed[static_cast<size_t>(group)];
                if (experts.choices) ++experts.choices[expert];
            }
        }
        if (experts.choices) {
            experts.choices[placement.all()] += count * chosen;
            experts.choices[placement.all() + 1] += *std::max_element(computed.begin(), computed.end());
        }
        std::partial_sum(first.begin(), first.end(), first.begin());
        std::vector<int64_t> next(first.begin(), first.end() - 1);
        for (size_t slot = 0; slot < ids.size(); ++slot) {
            place[slot] = -1;
            if (ids[slot] < 0) continue;
            const int64_t at = next[static_cast<size_t>(ids[slot])]++;
            rows[static_cast<size_t>(at)] = static_cast<int64_t>(slot) / chosen;
            place[slot] = at;
        }
    }

    int64_t count(int64_t expert) const { return first[static_cast<size_t>(expert) + 1] - first[static_cast<size_t>(expert)]; }
};

thread_local Memory t_shared, t_hidden, t_made;

// The products of all experts that have rows, made together: their tasks are one job for all threads.
class Products {
public:
    explicit Products(int64_t most) { products_.reserve(static_cast<size_t>(most)); }

    // Rows of one expert, of which the results go to the rows from `first` on.
    void add(const Shape &shape, const uint8_t *packed, const float *bias, const Source &x, int64_t rows, int64_t first) {
        products_.push_back({Product(shape, packed, bias, x, rows), first, shared_});
        const Product &product = products_.back().product;
        if (product.shares()) shared_ += product.shared_bytes();
    }

    // Calls work(product, turn, first row of its results) for `panels` panels of each.
    template <typename Work> void run(int64_t panels, const Work &work) {
        uint8_t *memory = t_shared.take(shared_);
        std::vector<Tile> tiles;
        for (Placed &placed : products_) {
            if (!placed.product.shares()) continue;
            placed.product.share(memory + placed.shared);
            for (int64_t tile = 0; tile < placed.product.cut.tiles; ++tile) tiles.push_back({&placed.product, tile});
        }
        pool()->run(static_cast<int64_t>(tiles.size()), [&](int64_t i) {
            const Tile &tile = tiles[static_cast<size_t>(i)];
            tile.product->prepare(tile.tile);
        });
        std::vector<int64_t> ends;
        int64_t tasks = 0;
        for (const Placed &placed : products_) ends.push_back(tasks += placed.product.cut.chunks() * panels);
        pool()->run(tasks, [&](int64_t task) {
            const auto at = std::upper_bound(ends.begin(), ends.end(), task) - ends.begin();
            const Placed &placed = products_[static_cast<size_t>(at)];
            const int64_t begin = at ? ends[static_cast<size_t>(at) - 1] : 0;
            const Turn turn = placed.product.turn(task - begin, panels);
            work(placed.product, turn, placed.first + placed.product.cut.first(turn.first));
        });
    }

private:
    struct Placed {
        Product product;
        int64_t first, shared; // row of its results, and place of what it shares
    };
    struct Tile {
        const Product *product;
        int64_t tile;
    };
    std::vector<Placed> products_;
    int64_t shared_ = 0;
};

const float *bias_of(const float *biases, const Shape &shape, int64_t expert) {
    return biases ? biases + expert * shape.outputs : nullptr;
}

PENSTOCK_CLONES void add_scaled(float factor, const float *x, float *into, int64_t count) {
    for (int64_t i = 0; i < count; ++i) into[i] += factor * x[i];
}

PENSTOCK_CLONES void scale_by_sigmoid(const float *gate, float *x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] = x[i] / (1.0f + exponential(-gate[i]));
}

template <typename Work> void for_rows(int64_t rows, int64_t width, const Work &work) {
    const int64_t together = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(width, 1));
    pool()->run((rows + together - 1) / together, [&](int64_t task) {
        const int64_t last = std::min(rows, (task + 1) * together);
        for (int64_t row = task * together; row < last; ++row) work(row);
    });
}

} // namespace

Placement::Placement(int64_t count) : Placement(std::vector<std::vector<int64_t>>(static_cast<size_t>(count), {0}), 0, 1) {}

Placement::Placement(const std::vector<std::vector<int64_t>> &of_each, int64_t own, int64_t size) : group(own), groups(size) {
    first.push_back(0);
    for (const std::vector<int64_t> &groups_of_one : of_each) {
        holders.insert(holders.end(), groups_of_one.begin(), groups_of_one.end());
        first.push_back(static_cast<int64_t>(holders.size()));
        const bool here = std::find(groups_of_one.begin(), groups_of_one.end(), own) != groups_of_one.end();
        place.push_back(here ? held++ : -1);
        copied = copied || groups_of_one.size() > 1;
    }
}

void route(const Routing &routing, const MutableRows &logits, int64_t rows, const MutableRows &routed) {
    for_rows(rows, routing.experts * routing.chosen,
             [&](int64_t row) { route_row(routing, logits.row(row), routed.row(row)); });
}

void mix(const Experts &experts, const Rows &x, const Rows &routed, int64_t rows, int64_t chosen, const MutableRows &y) {
    if (rows == 0) return;
    const Sorted sorted(experts, x, routed, rows, chosen);
    const int64_t inner = experts.down.inputs, width = experts.down.outputs, slots = rows * chosen;
    const MutableRows hidden{reinterpret_cast<float *>(t_hidden.take(slots * inner * 4)), inner};
    const MutableRows made{reinterpret_cast<float *>(t_made.take(slots * width * 4)), width};
    Products gate_ups(experts.count), downs(experts.count);
    for (int64_t expert = 0; expert < experts.count; ++expert) {
        const int64_t first = sorted.first[static_cast<size_t>(expert)], count = sorted.count(expert);
        if (!count) continue;
        gate_ups.add(experts.gate_up, experts.gate_ups + expert * experts.gate_up.bytes(),
                     bias_of(experts.gate_up_biases, experts.gate_up, expert), {x, sorted.rows.data() + first}, count, first);
    }
    gate_ups.run(experts.gate_up.panels() / 2, [&](const Product &product, const Turn &turn, int64_t row) {
        product.multiply_gated(turn, experts.gate, {hidden.row(row) + turn.panel * kPanel, inner});
    });
    for (int64_t expert = 0; expert < experts.count; ++expert) {
        const int64_t first = sorted.first[static_cast<size_t>(expert)], count = sorted.count(expert);
        if (!count) continue;
        downs.add(experts.down, experts.downs + expert * experts.down.bytes(),
                  bias_of(experts.down_biases, experts.down, expert), {{hidden.row(first), inner}}, count, first);
    }
    downs.run(experts.down.panels(), [&](const Product &product, const Turn &turn, int64_t row) {
        product.multiply(turn, {made.row(row) + turn.panel * kPanel, width});
    });
    for_rows(rows, width * chosen, [&](int64_t row) {
        float *sum = y.row(row);
        std::fill(sum, sum + width, 0.0f);
        for (int64_t i = 0; i < chosen; ++i) {
            const int64_t place = sorted.place[static_cast<size_t>(row * chosen + i)];
            if (place >= 0) add_scaled(routed.row(row)[chosen + i], made.row(place), sum, width);
        }
    });
}

void head_linear(int64_t heads, const Shape &one, const uint8_t *packed, const Rows &x, int64_t rows, const MutableRows &y) {
    if (rows == 0) return;
    Products products(heads);
    for (int64_t head = 0; head < heads; ++head)
        products.add(one, packed + head * one.bytes(), nullptr, {{x.data + head * one.inputs, x.stride}}, rows, head * rows);
    products.run(one.panels(), [&](const Product &product, const Turn &turn, int64_t row) {
        product.multiply(turn, {y.row(row % rows) + row / rows * one.outputs + turn.panel * kPanel, y.stride});
    });
}

void sigmoid_gate(const Rows &gate, bool one, const MutableRows &x, int64_t rows, int64_t width) {
    for_rows(rows, width, [&](int64_t row) {
        if (!one) return scale_by_sigmoid(gate.row(row), x.row(row), width);
        const float factor = 1.0f / (1.0f + exponential(-*gate.row(row)));
        for (int64_t i = 0; i < width; ++i) x.row(row)[i] *= factor;
    });
}

} // namespace penstock
