// The Python module. Arrays come over DLPack without copying; bfloat16 and float16 arrive as torch's own types.
#include "attention.hpp"
#include "ceilings.hpp"
#include "linear.hpp"
#include "pool.hpp"
#include "quantize.hpp"
#include "rows.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace nb = nanobind;
using namespace penstock;

namespace {

using Array = nb::ndarray<nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Nibbles = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr uint8_t kFloat = static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
constexpr uint8_t kBfloat = static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat);

void require(bool holds, const char *message) {
    if (!holds) throw std::invalid_argument(message);
}

Type type_of(const Array &array) {
    if (array.dtype().code == kFloat && array.dtype().bits == 32) return Type::float32;
    if (array.dtype().code == kBfloat && array.dtype().bits == 16) return Type::bfloat16;
    throw std::invalid_argument("Values must be float32 or bfloat16.");
}

const uint16_t *halves(const Array &array, size_t rows, size_t columns) {
    const bool half = array.dtype().code == kFloat && array.dtype().bits == 16;
    require(half && array.ndim() == 2 && array.shape(0) == rows && array.shape(1) == columns,
            "Scales and offsets of int4 weights must be float16, one for each group of each output.");
    require(array.stride(1) == 1 && array.stride(0) == static_cast<int64_t>(columns), "They must be contiguous.");
    return static_cast<const uint16_t *>(array.data());
}

Shape shape_of(const std::string &format, int64_t outputs, int64_t inputs, int64_t group, bool zero_points) {
    static const char *const names[] = {"float32", "bfloat16", "int8", "int4"};
    int index = 0;
    while (index < 4 && format != names[index]) ++index;
    require(index < 4, "The format must be float32, bfloat16, int8 or int4.");
    require(outputs > 0 && inputs > 0, "A weight needs at least one output and one input.");
    const bool grouped = index == static_cast<int>(Format::int4);
    require(!grouped || (group > 0 && group % 16 == 0), "Groups of int4 weights must be a multiple of 16 inputs.");
    require(grouped || !zero_points, "Only int4 weights have zero points.");
    return {static_cast<Format>(index), outputs, inputs, grouped ? group : 0, zero_points};
}

// A packed weight over memory that Python owns.
class Weight {
public:
    Weight(const std::string &format, int64_t outputs, int64_t inputs, int64_t group, bool zero_points, Bytes memory)
        : shape(shape_of(format, outputs, inputs, group, zero_points)), memory_(std::move(memory)) {
        require(static_cast<int64_t>(memory_.size()) == shape.bytes(), "The memory is not of the weight's packed size.");
        require(reinterpret_cast<uintptr_t>(memory_.data()) % kLine == 0, "The memory must begin at a multiple of 64 bytes.");
    }

    uint8_t *packed() const { return memory_.data(); }

    void fill_dense(const Array &values) {
        require(values.ndim() == 2 && values.shape(0) == static_cast<size_t>(shape.outputs) &&
                    values.shape(1) == static_cast<size_t>(shape.inputs),
                "The values must be [outputs, inputs].");
        require(values.stride(1) == 1 && values.stride(0) == shape.inputs, "They must be contiguous.");
        const Type type = type_of(values);
        require(shape.format == (type == Type::float32 ? Format::float32 : Format::bfloat16),
                "The values must be of the weight's own type.");
        nb::gil_scoped_release unlocked;
        if (type == Type::float32) pack_float32(shape, static_cast<const float *>(values.data()), packed());
        else pack_bfloat16(shape, static_cast<const uint16_t *>(values.data()), packed());
    }

    void fill_int8(const Integers &values, const Floats &scales) {
        require(shape.format == Format::int8, "The weight is not int8.");
        require(values.shape(0) == static_cast<size_t>(shape.outputs) &&
                    values.shape(1) == static_cast<size_t>(shape.inputs) && scales.size() == values.shape(0),
                "int8 weights need values [outputs, inputs] and a scale for each output.");
        nb::gil_scoped_release unlocked;
        pack_int8(shape, values.data(), scales.data(), packed());
    }

    void fill_int4(const Nibbles &values, const Array &scales, const std::optional<Array> &offsets) {
        require(shape.format == Format::int4, "The weight is not int4.");
        require(values.shape(0) == static_cast<size_t>(shape.outputs) &&
                    values.shape(1) == static_cast<size_t>(shape.inputs),
                "int4 weights need values [outputs, inputs].");
        require(offsets.has_value() == shape.zero_points, "Offsets come with zero points, and only with them.");
        const auto rows = static_cast<size_t>(shape.outputs), columns = static_cast<size_t>(shape.groups());
        const uint16_t *scale = halves(scales, rows, columns);
        const uint16_t *offset = offsets ? halves(*offsets, rows, columns) : nullptr;
        nb::gil_scoped_release unlocked;
        pack_int4(shape, values.data(), scale, offset, packed());
    }

    void multiply(const Array &x, const Array &output, const std::optional<Floats> &bias) const {
        require(x.ndim() == 2 && x.shape(1) == static_cast<size_t>(shape.inputs) && x.stride(1) == 1,
                "The input must be [rows, inputs] with adjacent columns.");
        require(output.ndim() == 2 && output.shape(0) == x.shape(0) && output.stride(1) == 1 &&
                    output.shape(1) == static_cast<size_t>(shape.outputs),
                "The output must be [rows, outputs] with adjacent columns.");
        require(!bias || bias->size() == static_cast<size_t>(shape.outputs), "The bias must have one value an output.");
        const Rows rows{x.data(), type_of(x), x.stride(0)};
        const Output target{output.data(), type_of(output), output.stride(0), bias ? bias->data() : nullptr};
        nb::gil_scoped_release unlocked;
        linear(shape, packed(), rows, static_cast<int64_t>(x.shape(0)), target);
    }

    void look_up(const nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> &ids,
                 const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> &output) const {
        require(output.shape(0) == ids.size() && output.shape(1) == static_cast<size_t>(shape.inputs),
                "The output must be [ids, inputs].");
        for (size_t i = 0; i < ids.size(); ++i)
            require(ids.data()[i] >= 0 && ids.data()[i] < shape.outputs, "There is no row of such an id.");
        nb::gil_scoped_release unlocked;
        pool()->run(static_cast<int64_t>(ids.size()), [&](int64_t i) {
            unpack_row(shape, packed(), ids.data()[i], output.data() + i * shape.inputs);
        });
    }

    const Shape shape;

private:
    Bytes memory_;
};

Rows matrix_of(const Array &values, size_t rows, size_t columns) {
    require(values.ndim() == 2 && values.shape(0) == rows && values.shape(1) == columns && values.stride(1) == 1,
            "The values must be [outputs, inputs] with adjacent inputs, as the integers are.");
    return {values.data(), type_of(values), values.stride(0)};
}

void round_to_int8(const Array &values, const Integers &integers, const Floats &scales) {
    const size_t outputs = integers.shape(0), inputs = integers.shape(1);
    const Rows weight = matrix_of(values, outputs, inputs);
    require(scales.size() == outputs, "There must be a scale for each output.");
    nb::gil_scoped_release unlocked;
    round_int8(
        weight, static_cast<int64_t>(outputs), static_cast<int64_t>(inputs), integers.data(), scales.data());
}

void round_to_int4(const Array &values, int64_t group, const Nibbles &integers, const Array &scales) {
    require(group > 0 && group % 16 == 0, "Groups of int4 weights must be a multiple of 16 inputs.");
    const size_t outputs = integers.shape(0), inputs = integers.shape(1), size = static_cast<size_t>(group);
    const Rows weight = matrix_of(values, outputs, inputs);
    auto *stored = const_cast<uint16_t *>(halves(scales, outputs, (inputs + size - 1) / size));
    nb::gil_scoped_release unlocked;
    round_int4(weight, static_cast<int64_t>(outputs), static_cast<int64_t>(inputs), group, integers.data(), stored);
}

// Values [rows, at least `width`] with adjacent columns.
int64_t check_rows(const Array &array, int64_t width) {
    require(array.ndim() == 2 && array.stride(1) == 1 && static_cast<int64_t>(array.shape(1)) >= width,
            "Values must be [rows, width] with adjacent columns.");
    return static_cast<int64_t>(array.shape(0));
}

Rows rows_of(const Array &array) { return {array.data(), type_of(array), array.stride(0)}; }

MutableRows mutable_rows_of(const Array &array) { return {array.data(), type_of(array), array.stride(0)}; }

Norm norm_of(const Floats &weight, float eps) { return {weight.data(), static_cast<int64_t>(weight.size()), eps}; }

void native_rms_norm(const Array &x, const Floats &weight, float eps, const Array &output) {
    const Norm norm = norm_of(weight, eps);
    const int64_t rows = check_rows(x, norm.width);
    require(check_rows(output, norm.width) == rows, "Input and output must have the same rows.");
    nb::gil_scoped_release unlocked;
    rms_norm(norm, rows_of(x), rows, mutable_rows_of(output));
}

void native_add_rms_norm(
    const Array &x, const Array &residual, const Floats &weight, float eps, const Array &output) {
    const Norm norm = norm_of(weight, eps);
    const int64_t rows = check_rows(x, norm.width);
    require(check_rows(output, norm.width) == rows && check_rows(residual, norm.width) == rows,
            "Inputs and output must have the same rows.");
    nb::gil_scoped_release unlocked;
    add_rms_norm(norm, rows_of(x), rows, mutable_rows_of(residual), mutable_rows_of(output));
}

Heads heads_of(int64_t query_heads, int64_t kv_heads, int64_t size) {
    require(query_heads > 0 && kv_heads > 0 && size > 0 && size % 2 == 0, "Heads must be there, of an even size.");
    return {query_heads, kv_heads, size};
}

void native_head_norm(const Array &qkv, int64_t query_heads, int64_t kv_heads, const Floats &query,
                      const Floats &key, float eps) {
    const Heads heads = heads_of(query_heads, kv_heads, static_cast<int64_t>(query.size()));
    require(key.size() == query.size(), "Query and key heads must be of one size.");
    const int64_t rows = check_rows(qkv, (heads.query + heads.key) * heads.size);
    nb::gil_scoped_release unlocked;
    head_norm(heads, norm_of(query, eps), norm_of(key, eps), mutable_rows_of(qkv), rows);
}

using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void native_rotary(const Array &qkv, int64_t query_heads, int64_t kv_heads, const Array &table,
                   const Indices &positions) {
    require(table.ndim() == 3 && table.shape(1) == 2 && table.stride(2) == 1 &&
                table.stride(1) == static_cast<int64_t>(table.shape(2)),
            "The table must be [positions, 2, head size] and contiguous.");
    const Heads heads = heads_of(query_heads, kv_heads, static_cast<int64_t>(table.shape(2)));
    const int64_t rows = check_rows(qkv, (heads.query + heads.key) * heads.size);
    require(static_cast<int64_t>(positions.size()) == rows, "There must be a position for each row.");
    for (size_t i = 0; i < positions.size(); ++i)
        require(positions.data()[i] >= 0 && positions.data()[i] < static_cast<int64_t>(table.shape(0)),
                "The table must reach as far as the positions.");
    nb::gil_scoped_release unlocked;
    rotary(heads, rows_of(table), positions.data(), mutable_rows_of(qkv), rows);
}

// A plane of keys or values [slots, KV heads, head size].
Rows plane_of(const Array &plane, const Heads &heads) {
    require(plane.ndim() == 3 && static_cast<int64_t>(plane.shape(1)) == heads.key &&
                static_cast<int64_t>(plane.shape(2)) == heads.size && plane.stride(2) == 1 &&
                plane.stride(1) == heads.size,
            "A plane must be [slots, KV heads, head size], dense in the last two.");
    return {plane.data(), type_of(plane), plane.stride(0)};
}

void native_attention(const Array &qkv, int64_t query_heads, int64_t kv_heads, const Array &keys, const Array &values,
                      const nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu> &tables, const Indices &added,
                      const Indices &context, int64_t block_size, float scale, int64_t window, float softcap,
                      const Array &output) {
    require(keys.ndim() == 3, "Keys must be [slots, KV heads, head size].");
    const Heads heads = heads_of(query_heads, kv_heads, static_cast<int64_t>(keys.shape(2)));
    require(query_heads % kv_heads == 0, "Query heads must be a multiple of KV heads.");
    require(block_size > 0 && block_size % 16 == 0, "Blocks must be of a multiple of 16 tokens.");
    require(added.size() == context.size() && tables.shape(0) == added.size() && tables.stride(1) == 1,
            "There must be a context and a row of the block tables for each sequence.");
    const auto slots = static_cast<int64_t>(keys.shape(0));
    int64_t queries = 0;
    for (size_t i = 0; i < added.size(); ++i) {
        const int64_t blocks = (context.data()[i] + block_size - 1) / block_size;
        require(added.data()[i] > 0 && added.data()[i] <= context.data()[i] &&
                    blocks <= static_cast<int64_t>(tables.shape(1)),
                "A sequence's queries must be in its context, and that in its block table.");
        const int32_t *table = tables.data() + static_cast<int64_t>(i) * tables.stride(0);
        for (int64_t block = 0; block < blocks; ++block)
            require(table[block] >= 0 && (table[block] + 1) * block_size <= slots, "There is no such block.");
        queries += added.data()[i];
    }
    require(check_rows(qkv, query_heads * heads.size) == queries && check_rows(output, query_heads * heads.size) == queries,
            "There must be a row of input and output for each query.");
    const AttentionBatch batch{added.data(), context.data(), static_cast<int64_t>(added.size()), tables.data(),
                               tables.stride(0), block_size};
    const Rows key_plane = plane_of(keys, heads), value_plane = plane_of(values, heads);
    require(values.shape(0) == keys.shape(0), "Keys and values must have the same slots.");
    const Rows input = rows_of(qkv);
    const MutableRows target = mutable_rows_of(output);
    nb::gil_scoped_release unlocked;
    attend({heads, scale, window, softcap}, batch, input, key_plane, value_plane, target);
}

void native_gated_activation(const Array &x, const std::string &activation, const Array &output) {
    require(output.ndim() == 2, "The output must be [rows, width].");
    require(activation == "silu" || activation == "gelu_tanh", "The activation must be silu or gelu_tanh.");
    const auto width = static_cast<int64_t>(output.shape(1));
    const int64_t rows = check_rows(x, 2 * width);
    require(check_rows(output, width) == rows && static_cast<int64_t>(x.shape(1)) == 2 * width,
            "The input must be twice as wide as the output, with the same rows.");
    nb::gil_scoped_release unlocked;
    gated_activation(activation == "silu" ? Activation::silu : Activation::gelu_tanh, rows_of(x), rows, width,
                     mutable_rows_of(output));
}

} // namespace

void bind_sampling(nb::module_ &module); // module_sampling.cpp

NB_MODULE(_native, module) {
    bind_sampling(module);
    module.def("packed_bytes", [](const std::string &format, int64_t outputs, int64_t inputs, int64_t group,
                                  bool zero_points) { return shape_of(format, outputs, inputs, group, zero_points).bytes(); },
               nb::arg("format"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("group") = 0,
               nb::arg("zero_points") = false);
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
    module.def("round_int4", &round_to_int4, nb::arg("values").noconvert(), nb::arg("group"), nb::arg("integers").noconvert(), nb::arg("scales").noconvert());
    module.def("rms_norm", &native_rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"), nb::arg("output").noconvert());
    module.def("add_rms_norm", &native_add_rms_norm, nb::arg("x").noconvert(), nb::arg("residual").noconvert(), nb::arg("weight").noconvert(),
               nb::arg("eps"), nb::arg("output").noconvert());
    module.def("head_norm", &native_head_norm, nb::arg("qkv").noconvert(), nb::arg("query_heads"), nb::arg("kv_heads"),
               nb::arg("query").noconvert(), nb::arg("key").noconvert(), nb::arg("eps"));
    module.def("rotary", &native_rotary, nb::arg("qkv").noconvert(), nb::arg("query_heads"), nb::arg("kv_heads"),
               nb::arg("table").noconvert(), nb::arg("positions").noconvert());
    module.def("gated_activation", &native_gated_activation, nb::arg("x").noconvert(), nb::arg("activation"), nb::arg("output").noconvert());
    module.def("attention", &native_attention, nb::arg("qkv").noconvert(), nb::arg("query_heads"), nb::arg("kv_heads"),
               nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("tables").noconvert(), nb::arg("added").noconvert(), nb::arg("context").noconvert(),
               nb::arg("block_size"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"), nb::arg("output").noconvert());
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
        .def(nb::init<const std::string &, int64_t, int64_t, int64_t, bool, Bytes>(), nb::arg("format"),
             nb::arg("outputs"), nb::arg("inputs"), nb::arg("group"), nb::arg("zero_points"), nb::arg("memory").noconvert())
        .def("fill_dense", &Weight::fill_dense, nb::arg("values").noconvert())
        .def("fill_int8", &Weight::fill_int8, nb::arg("values").noconvert(), nb::arg("scales").noconvert())
        .def("fill_int4", &Weight::fill_int4, nb::arg("values").noconvert(), nb::arg("scales").noconvert(), nb::arg("offsets").noconvert() = nb::none())
        .def("multiply", &Weight::multiply, nb::arg("x").noconvert(), nb::arg("output").noconvert(), nb::arg("bias").noconvert() = nb::none())
        .def("look_up", &Weight::look_up, nb::arg("ids").noconvert(), nb::arg("output").noconvert());
}
