// The Python module: packed weights, rounding, what is chosen once, and measures of the machine.
#include "arrays.hpp"
#include "ceilings.hpp"
#include "linear.hpp"
#include "pool.hpp"
#include "quantize.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

using namespace penstock;

namespace {

using Integers = nb::ndarray<int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using InputOrder = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Zeros = nb::ndarray<int16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Nibbles = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const uint16_t *scales_in(const Array &array, size_t rows, size_t columns, bool bfloat16) {
    const bool right = array.dtype().code == (bfloat16 ? kBfloat : kFloat) && array.dtype().bits == 16;
    require(right && array.ndim() == 2 && array.shape(0) == rows && array.shape(1) == columns,
            "Scales must be of the format's type, one for each group of each output.");
    require(array.stride(1) == 1 && array.stride(0) == static_cast<int64_t>(columns), "They must be contiguous.");
    return static_cast<const uint16_t *>(array.data());
}

Shape shape_of(const std::string &format, int64_t outputs, int64_t inputs, int64_t group, bool zero_points, bool ordered) {
    static const char *const names[kFormats] = {"float32", "bfloat16", "int8", "int4", "int4_float16", "int4_bfloat16",
                                              "int3_float16", "int3_bfloat16", "int2_float16", "int2_bfloat16", "mxfp4", "q8_0",
                                              "q4_k", "q6_k"};
    int index = 0;
    while (index < kFormats && format != names[index]) ++index;
    require(index < kFormats, "There is no such format.");
    require(outputs > 0 && inputs > 0, "A weight needs at least one output and one input.");
    Shape shape{static_cast<Format>(index), outputs, inputs, 0, zero_points, ordered};
    require((shape.grouped() && !shape.coded()) || !(zero_points || ordered),
            "Only formats with scales for groups have zero points, or an order.");
    if (shape.large() || shape.format == Format::q8_0 || shape.coded()) {
        shape.group = shape.format == Format::q6_k ? 16 : 32;
        require(inputs % (shape.large() ? kLargeBlock : shape.group) == 0, "The inputs must be whole blocks.");
        return shape;
    }
    if (!shape.grouped()) return shape;
    require(group > 0 && group % 16 == 0, "Groups must be a multiple of 16 inputs.");
    require(!ordered || inputs % group == 0, "Inputs with an order must be whole groups.");
    shape.group = group;
    return shape;
}

void fill_dense(const Weight &weight, const Array &values) {
    require(values.ndim() == 2 && values.shape(0) == static_cast<size_t>(weight.shape.outputs) &&
                values.shape(1) == static_cast<size_t>(weight.shape.inputs),
            "The values must be [outputs, inputs].");
    require(values.stride(1) == 1 && values.stride(0) == weight.shape.inputs, "They must be contiguous.");
    const Type type = type_of(values);
    require(weight.shape.format == (type == Type::float32 ? Format::float32 : Format::bfloat16),
            "The values must be of the weight's own type.");
    nb::gil_scoped_release unlocked;
    if (type == Type::float32) pack_float32(weight.shape, static_cast<const float *>(values.data()), weight.packed());
    else pack_bfloat16(weight.shape, static_cast<const uint16_t *>(values.data()), weight.packed());
}

void fill_int8(const Weight &weight, const Integers &values, const Floats &scales) {
    require(weight.shape.format == Format::int8, "The weight is not int8.");
    require(values.shape(0) == static_cast<size_t>(weight.shape.outputs) &&
                values.shape(1) == static_cast<size_t>(weight.shape.inputs) && scales.size() == values.shape(0),
            "int8 weights need values [outputs, inputs] and a scale for each output.");
    nb::gil_scoped_release unlocked;
    pack_int8(weight.shape, values.data(), scales.data(), weight.packed());
}

// Of int4: one for each group of 32 inputs of each output.
void require_multiples(const Nibbles &multiples, size_t outputs, size_t inputs) {
    const auto group = static_cast<size_t>(kInt4Group);
    require(multiples.shape(0) == outputs && multiples.shape(1) == (inputs + group - 1) / group,
            "int4 weights need multiples [outputs, groups of 32 inputs].");
}

void fill_int4(const Weight &weight, const Nibbles &values, const Nibbles &multiples, const Floats &scales) {
    const auto outputs = static_cast<size_t>(weight.shape.outputs), inputs = static_cast<size_t>(weight.shape.inputs);
    require(weight.shape.format == Format::int4, "The weight is not int4.");
    require(values.shape(0) == outputs && values.shape(1) == inputs && scales.size() == outputs,
            "int4 weights need values [outputs, inputs] and a scale for each output.");
    require_multiples(multiples, outputs, inputs);
    nb::gil_scoped_release unlocked;
    pack_int4(weight.shape, values.data(), multiples.data(), scales.data(), weight.packed());
}

// Whether each number below its length is in it once.
bool is_order(const int32_t *order, size_t count) {
    std::vector<bool> seen(count);
    for (size_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(order[i]);
        if (order[i] < 0 || at >= count || seen[at]) return false;
        seen[at] = true;
    }
    return true;
}

void fill_grouped(const Weight &weight, const Nibbles &values, const Array &scales, const std::optional<Zeros> &zeros,
                  const std::optional<InputOrder> &order) {
    require(weight.shape.grouped() && !weight.shape.coded(), "The weight has no scales for groups.");
    require(values.shape(0) == static_cast<size_t>(weight.shape.outputs) &&
                values.shape(1) == static_cast<size_t>(weight.shape.inputs),
            "The weight needs values [outputs, inputs].");
    require(zeros.has_value() == weight.shape.zero_points, "Zeros come with zero points, and only with them.");
    const auto rows = static_cast<size_t>(weight.shape.outputs), columns = static_cast<size_t>(weight.shape.groups());
    const uint16_t *scale = scales_in(scales, rows, columns, !weight.shape.half_scales());
    require(!zeros || (zeros->shape(0) == rows && zeros->shape(1) == columns),
            "Zeros must be [outputs, groups].");
    require(order.has_value() == weight.shape.ordered, "An order comes with weights that are ordered, and only with them.");
    require(!order || (order->size() == values.shape(1) && is_order(order->data(), order->size())),
            "The order must have each input once.");
    nb::gil_scoped_release unlocked;
    pack_grouped(weight.shape, values.data(), scale, zeros ? zeros->data() : nullptr, order ? order->data() : nullptr,
                 weight.packed());
}

void fill_blocks(const Weight &weight, const Nibbles &raw) {
    require(raw.shape(0) == static_cast<size_t>(weight.shape.outputs) && block_row_bytes(weight.shape) > 0 &&
                raw.shape(1) == static_cast<size_t>(block_row_bytes(weight.shape)),
            "The blocks must be [outputs, bytes], of the weight's own kind.");
    nb::gil_scoped_release unlocked;
    pack_blocks(weight.shape, raw.data(), weight.packed());
}

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

void multiply(const Weight &weight, const Matrix &x, const Matrix &output, const std::optional<Floats> &bias) {
    require(x.shape(1) == static_cast<size_t>(weight.shape.inputs) && x.stride(1) == 1,
            "The input must be [rows, inputs] with adjacent columns.");
    require(output.shape(0) == x.shape(0) && output.stride(1) == 1 &&
                output.shape(1) == static_cast<size_t>(weight.shape.outputs),
            "The output must be [rows, outputs] with adjacent columns.");
    require(!bias || bias->size() == static_cast<size_t>(weight.shape.outputs), "The bias must have one value an output.");
    const Rows rows{x.data(), x.stride(0)};
    const MutableRows target{output.data(), output.stride(0)};
    nb::gil_scoped_release unlocked;
    linear(weight.shape, weight.packed(), bias ? bias->data() : nullptr, rows, static_cast<int64_t>(x.shape(0)), target);
}

void look_up(const Weight &weight, const nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> &ids,
             const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> &output) {
    require(output.shape(0) == ids.size() && output.shape(1) == static_cast<size_t>(weight.shape.inputs),
            "The output must be [ids, inputs].");
    for (size_t i = 0; i < ids.size(); ++i)
        require(ids.data()[i] >= 0 && ids.data()[i] < weight.shape.outputs, "There is no row of such an id.");
    nb::gil_scoped_release unlocked;
    pool()->run(static_cast<int64_t>(ids.size()), [&](int64_t i) {
        unpack_row(weight.shape, weight.packed(), ids.data()[i], output.data() + i * weight.shape.inputs);
    });
}

Stored matrix_of(const Array &values, size_t rows, size_t columns) {
    require(values.ndim() == 2 && values.shape(0) == rows && values.shape(1) == columns && values.stride(1) == 1,
            "The values must be [outputs, inputs] with adjacent inputs, as the integers are.");
    return stored(values);
}

void round_to_int8(const Array &values, const Integers &integers, const Floats &scales) {
    const size_t outputs = integers.shape(0), inputs = integers.shape(1);
    const Stored weight = matrix_of(values, outputs, inputs);
    require(scales.size() == outputs, "There must be a scale for each output.");
    nb::gil_scoped_release unlocked;
    round_int8(
        weight, static_cast<int64_t>(outputs), static_cast<int64_t>(inputs), integers.data(), scales.data());
}

void round_to_int4(const Array &values, const Nibbles &integers, const Nibbles &multiples, const Floats &scales) {
    const size_t outputs = integers.shape(0), inputs = integers.shape(1);
    const Stored weight = matrix_of(values, outputs, inputs);
    require(scales.size() == outputs, "There must be a scale for each output.");
    require_multiples(multiples, outputs, inputs);
    nb::gil_scoped_release unlocked;
    round_int4(weight, static_cast<int64_t>(outputs), static_cast<int64_t>(inputs), integers.data(), multiples.data(),
               scales.data());
}

} // namespace

NB_MODULE(_native, module) {
    // A thread that watches other ranks has them until the process ends, and there is nothing to be said of that.
    nb::set_leak_warnings(false);
    module.def("packed_bytes", [](const std::string &format, int64_t outputs, int64_t inputs, int64_t group,
                                  bool zero_points, bool ordered) {
        return shape_of(format, outputs, inputs, group, zero_points, ordered).bytes();
    }, nb::arg("format"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("group") = 0, nb::arg("zero_points") = false,
               nb::arg("ordered") = false);
    module.def("set_threads", [](int threads) {
        require(threads >= 1, "At least one thread is needed.");
        set_threads(threads);
    });
    module.def("threads", [] { return pool()->threads(); });
    module.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Kernels *const *set = available_kernels(); *set; ++set) names.emplace_back((*set)->name);
        return names;
    });
    module.def("instruction_set", [] { return std::string(kernels().name); });
    module.def("use_instruction_set", [](const std::string &name) {
        require(use_kernels(name.c_str()), "This processor or this build does not have that instruction set.");
    });
    module.def("round_int8", &round_to_int8, nb::arg("values").noconvert(), nb::arg("integers").noconvert(), nb::arg("scales").noconvert());
    module.def("round_int4", &round_to_int4, nb::arg("values").noconvert(), nb::arg("integers").noconvert(),
               nb::arg("multiples").noconvert(), nb::arg("scales").noconvert());
    module.def("read_memory", [](const Bytes &memory) {
        nb::gil_scoped_release unlocked;
        return read_memory(memory.data(), static_cast<int64_t>(memory.size()));
    });
    module.def("compute", [](const std::string &type, int64_t rounds) {
        nb::gil_scoped_release unlocked;
        return type == "int8" ? compute_int8(rounds) : type == "bfloat16" ? compute_bfloat16(rounds)
                                                                         : compute_float32(rounds);
    }, nb::arg("type"), nb::arg("rounds"));
    nb::class_<Weight>(module, "Weight")
        .def("__init__", [](Weight *weight, const std::string &format, int64_t outputs, int64_t inputs, int64_t group,
                            bool zero_points, bool ordered, const Bytes &memory) {
            new (weight) Weight(shape_of(format, outputs, inputs, group, zero_points, ordered), memory);
        }, nb::arg("format"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("group"), nb::arg("zero_points"),
             nb::arg("ordered"), nb::arg("memory").noconvert())
        .def("fill_dense", &fill_dense, nb::arg("values").noconvert())
        .def("fill_int8", &fill_int8, nb::arg("values").noconvert(), nb::arg("scales").noconvert())
        .def("fill_int4", &fill_int4, nb::arg("values").noconvert(), nb::arg("multiples").noconvert(), nb::arg("scales").noconvert())
        .def("fill_blocks", &fill_blocks, nb::arg("raw").noconvert())
        .def("fill_grouped", &fill_grouped, nb::arg("values").noconvert(), nb::arg("scales").noconvert(), nb::arg("zeros").noconvert() = nb::none(),
             nb::arg("order").noconvert() = nb::none())
        .def("multiply", &multiply, nb::arg("x").noconvert(), nb::arg("output").noconvert(), nb::arg("bias").noconvert() = nb::none())
        .def("look_up", &look_up, nb::arg("ids").noconvert(), nb::arg("output").noconvert());
    bind_program(module);
    bind_sampling(module);
}
