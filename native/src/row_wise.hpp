// Operations of a program whose results have in each row what depends on that row of their inputs alone.
//
// A run of them need not go through the memory of all rows once for each: each thread takes some rows through the whole run, and
// what is between its operations stays in its own caches. Where rows are few, all threads share each operation instead.
#pragma once

#include "program.hpp"

#include <vector>

namespace penstock {

struct RowWise {
    // A register of the program, and the one that stands for rows of it within the run.
    struct Link {
        int outer, inner;
    };
    // The same of a register that the run fills, and its columns.
    struct Made {
        Link link;
        int64_t width;
    };
    std::vector<Program::Operation> operations;
    int registers;
    std::vector<Link> given;
    std::vector<Made> made;
};

Program::Operation row_wise(RowWise run);

} // namespace penstock
