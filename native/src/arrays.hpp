// Arrays from Python: they come over DLPack without copying; bfloat16 and float16 arrive as torch's own types.
#pragma once

#include "formats.hpp"
#include "values.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <utility>

namespace penstock {

namespace nb = nanobind;

using Array = nb::ndarray<nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr uint8_t kFloat = static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
constexpr uint8_t kBfloat = static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat);

// Raises ValueError in Python.
inline void require(bool holds, const char *message) {
    if (!holds) throw std::invalid_argument(message);
}

inline Type type_of(const Array &array) {
    if (array.dtype().code == kFloat && array.dtype().bits == 32) return Type::float32;
    if (array.dtype().code == kBfloat && array.dtype().bits == 16) return Type::bfloat16;
    throw std::invalid_argument("Values must be float32 or bfloat16.");
}

// Rows of a matrix with adjacent columns.
inline Stored stored(const Array &matrix) { return {matrix.data(), type_of(matrix), matrix.stride(0)}; }

// A packed weight over memory that Python owns.
class Weight {
public:
    Weight(const Shape &its_shape, Bytes memory) : shape(its_shape), memory_(std::move(memory)) {
        require(static_cast<int64_t>(memory_.size()) == shape.bytes(), "The memory is not of the weight's packed size.");
        require(reinterpret_cast<uintptr_t>(memory_.data()) % kLine == 0, "The memory must begin at a multiple of 64 bytes.");
    }

    uint8_t *packed() const { return memory_.data(); }

    const Shape shape;

private:
    Bytes memory_;
};

// Parts of the module, each in a file of its own.
void bind_program(nb::module_ &module);
void bind_sampling(nb::module_ &module);

} // namespace penstock
