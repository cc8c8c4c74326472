// Mixtures of experts: which experts a row gets, and what they make of it. A row's result depends on that row alone: an
// expert's product is the same for any rows beside, each goes into a place of its own, and they are added up in ascending
// order of experts.
#pragma once

#include "linear.hpp"

#include <cstdint>
#include <vector>

namespace penstock {

// How experts are chosen (kernels/signature.py: Routing).
struct Routing {
    int64_t experts, chosen;
    bool sigmoid; // scores are that of each logit, else softmax over all
    bool renormalise;
    float epsilon, scale;
    int64_t groups, kept_groups, best_of_group;
    const float *correction, *scales; // of each expert; may be null
};

// For each row of `logits`, changed to scores on the way: indices of its experts, ascending, then their weights.
void route(const Routing &routing, const MutableRows &logits, int64_t rows, const MutableRows &routed);

// Which groups of ranks have which experts (core/shares.py: Placement).
struct Placement {
    // A group that is not there has all of them.
    explicit Placement(int64_t count);
    // Of each expert, the groups that have it, ascending; `group` is this rank's, of `groups`.
    Placement(const std::vector<std::vector<int64_t>> &holders, int64_t group, int64_t groups);

    int64_t all() const { return static_cast<int64_t>(place.size()); }

    std::vector<int64_t> first, holders; // those of an expert from `first` on, up to that of the next
    std::vector<int64_t> place;          // of an expert among those of this rank; -1: others have it
    int64_t held = 0, group = 0, groups = 1;
    bool copied = false; // whether several groups have one
};

// Experts whose matrices are all of one shape and follow one another: those that the placement gives to this rank.
struct Experts {
    Placement placement;
    int64_t count; // of these
    Shape gate_up, down; // of one expert
    const uint8_t *gate_ups, *downs;
    const float *gate_up_biases, *down_biases; // one after another as the matrices; may be null
    Gate gate;
    // Where choices are counted, if they are: of each expert, then all of them, then those that the group with most of a
    // step's computes.
    int64_t *choices = nullptr;
};

// y [rows, down.outputs] is the sum of what each row's `chosen` experts make of x, times their weights, as `route` has them;
// others than these experts make nothing. Where several groups have an expert, a row's own values say which one computes it.
void mix(const Experts &experts, const Rows &x, const Rows &routed, int64_t rows, int64_t chosen, const MutableRows &y);

// y [rows, heads · one.outputs]: of each head's columns of x what its own matrix makes, whose matrices follow one another.
void head_linear(int64_t heads, const Shape &one, const uint8_t *packed, const Rows &x, int64_t rows, const MutableRows &y);

// x · sigmoid(gate), in place; the gate has one column, or as many as x.
void sigmoid_gate(const Rows &gate, bool one, const MutableRows &x, int64_t rows, int64_t width);

} // namespace penstock
