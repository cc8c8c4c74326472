// The native program in Python: built operation by operation, then run with one call for each step.
#include "bound_program.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <numeric>

namespace penstock {

void bind_program(nb::module_ &module) {
    using nb::arg;
    module.def("operations_done", operations_done);
    module.def("ranks_bytes", &Ranks::bytes_for, arg("size"));
    nb::class_<BoundRanks>(module, "Ranks")
        .def(nb::init<Bytes, int, int, double>(), arg("memory"), arg("rank"), arg("size"), arg("patience"))
        .def_prop_ro("rank", [](const BoundRanks &self) { return self.ranks.rank(); })
        .def_prop_ro("size", [](const BoundRanks &self) { return self.ranks.size(); })
        .def_prop_ro("written", [](const BoundRanks &self) { return self.ranks.written(); })
        .def_prop_ro("waited", [](const BoundRanks &self) { return self.ranks.waited(); })
        .def("sum", [](BoundRanks &self, Floats values) {
            nb::gil_scoped_release unlocked;
            self.ranks.sum(values.data(), static_cast<int64_t>(values.size()));
        }, arg("values").noconvert())
        .def("gather", [](BoundRanks &self, Floats values, int64_t rows, const std::vector<int64_t> &widths, bool everywhere,
                          Floats whole) {
            require(rows >= 0 && widths.size() == static_cast<size_t>(self.ranks.size()), "Each rank has a number of columns.");
            const int64_t own = widths[static_cast<size_t>(self.ranks.rank())];
            const int64_t all = std::accumulate(widths.begin(), widths.end(), int64_t{0});
            require(static_cast<int64_t>(values.size()) == rows * own && static_cast<int64_t>(whole.size()) == rows * all,
                    "The values must be the rows of this rank, and the whole of all.");
            nb::gil_scoped_release unlocked;
            self.ranks.gather(values.data(), rows, widths, everywhere, whole.data());
        }, arg("values").noconvert(), arg("rows"), arg("widths"), arg("everywhere"), arg("whole").noconvert())
        .def("meet", [](BoundRanks &self) {
            nb::gil_scoped_release unlocked;
            self.ranks.meet();
        })
        .def("at_meeting", [](BoundRanks &self, std::function<void()> action) {
            self.ranks.at_meeting(std::move(action));
        }, arg("action").none())
        .def("beat", [](BoundRanks &self) { self.ranks.beat(); })
        .def("beats", [](const BoundRanks &self, int rank) {
            require(0 <= rank && rank < self.ranks.size(), "There is no such rank.");
            return self.ranks.beats(rank);
        }, arg("rank"))
        .def("part", [](BoundRanks &self) { self.ranks.part(); });
    nb::class_<BoundProgram>(module, "Program")
        .def(nb::init<int>(), arg("registers"))
        .def("embedding", [](BoundProgram &self, nb::object weight, int y, int64_t first, std::optional<int64_t> all) {
            self.embedding(nb::cast<const Weight &>(weight), keeper(weight), y, first, all);
        }, arg("weight"), arg("y"), arg("first") = 0, arg("all").none() = nb::none())
        .def("plain_embedding", &BoundProgram::plain_embedding, arg("table").noconvert(), arg("y"), arg("first") = 0,
             arg("all").none() = nb::none())
        .def("all_reduce", [](BoundProgram &self, nb::object ranks, int x, int y) {
            self.all_reduce(nb::cast<BoundRanks &>(ranks), keeper(ranks), x, y);
        }, arg("ranks"), arg("x"), arg("y"))
        .def("gather", [](BoundProgram &self, nb::object ranks, const std::vector<int64_t> &widths, bool everywhere, int x, int y,
                          const std::pair<int64_t, int64_t> &stripe) {
            self.gather(nb::cast<BoundRanks &>(ranks), keeper(ranks), widths, everywhere, x, y, stripe);
        }, arg("ranks"), arg("widths"), arg("everywhere"), arg("x"), arg("y"), arg("stripe") = std::pair<int64_t, int64_t>(0, 1))
        .def("share_rows", &BoundProgram::share_rows, arg("x"), arg("y"), arg("stripe"))
        .def("gather_rows", [](BoundProgram &self, nb::object ranks, int x, int y) {
            self.gather_rows(nb::cast<BoundRanks &>(ranks), keeper(ranks), x, y);
        }, arg("ranks"), arg("x"), arg("y"))
        .def("positions", &BoundProgram::positions, arg("table").noconvert(), arg("y"))
        .def("types", &BoundProgram::types, arg("table").noconvert(), arg("y"))
        .def("linear", [](BoundProgram &self, nb::object weight, const std::optional<Floats> &bias, int x, int y,
                          int64_t first, std::optional<int64_t> width) {
            self.linear(nb::cast<const Weight &>(weight), keeper(weight), bias, x, y, first, width);
        }, arg("weight"), arg("bias").noconvert().none(), arg("x"), arg("y"), arg("first") = 0, arg("width").none() = nb::none())
        .def("head_linear", [](BoundProgram &self, nb::object weight, int64_t heads, int x, int y) {
            self.head_linear(nb::cast<const Weight &>(weight), keeper(weight), heads, x, y);
        }, arg("weight"), arg("heads"), arg("x"), arg("y"))
        .def("rms_norm", &BoundProgram::rms_norm, arg("weight").noconvert(), arg("eps"), arg("x"), arg("y"))
        .def("layer_norm", &BoundProgram::layer_norm, arg("weight").noconvert(), arg("bias").noconvert().none(), arg("eps"),
             arg("x"), arg("y"))
        .def("add_rms_norm", &BoundProgram::add_rms_norm, arg("weight").noconvert(), arg("eps"), arg("x"),
             arg("residual"), arg("y"), arg("total"))
        .def("head_norm", &BoundProgram::head_norm, arg("query_heads"), arg("kv_heads"), arg("size"),
             arg("query").noconvert(), arg("key").noconvert(), arg("values"), arg("eps"), arg("x"), arg("y"))
        .def("add_rope", &BoundProgram::add_rope, arg("table").noconvert())
        .def("set_rope", &BoundProgram::set_rope, arg("index"), arg("table").noconvert())
        .def("rotary", &BoundProgram::rotary, arg("query_heads"), arg("kv_heads"), arg("size"), arg("rope"),
             arg("selected"), arg("x"), arg("y"), arg("stripe") = std::pair<int64_t, int64_t>(0, 1))
        .def("query_scale", &BoundProgram::query_scale, arg("query_heads"), arg("kv_heads"), arg("size"), arg("beta"),
             arg("context"), arg("selected"), arg("x"), arg("y"), arg("stripe") = std::pair<int64_t, int64_t>(0, 1))
        .def("write_kv", &BoundProgram::write_kv, arg("query_heads"), arg("kv_heads"), arg("planes").noconvert(),
             arg("kept"), arg("type"), arg("group"), arg("x"), arg("stripe") = std::pair<int64_t, int64_t>(0, 1))
        .def("attention", &BoundProgram::attention, arg("query_heads"), arg("planes").noconvert(), arg("kept"), arg("type"),
             arg("group"), arg("factor"), arg("window"), arg("softcap"), arg("sinks").noconvert().none(),
             arg("bias").noconvert().none(), arg("selected"), arg("x"), arg("y"),
             arg("stripe") = std::pair<int64_t, int64_t>(0, 1))
        .def("merge_stripes", &BoundProgram::merge_stripes, arg("query_heads"), arg("size"), arg("ranks"),
             arg("sinks").noconvert().none(), arg("x"), arg("y"))
        .def("source_attention", &BoundProgram::source_attention, arg("query_heads"), arg("planes").noconvert(), arg("kept"),
             arg("type"), arg("group"), arg("factor"), arg("selected"), arg("x"), arg("y"))
        .def("row_attention", &BoundProgram::row_attention, arg("query_heads"), arg("kv_heads"), arg("size"), arg("type"),
             arg("factor"), arg("window"), arg("bias").noconvert().none(), arg("x"), arg("y"))
        .def("gated_linear", [](BoundProgram &self, nb::object weight, const std::optional<Floats> &bias,
                                const std::string &gate, int x, int y) {
            self.gated_linear(nb::cast<const Weight &>(weight), keeper(weight), bias, gate, x, y);
        }, arg("weight"), arg("bias").noconvert().none(), arg("gate"), arg("x"), arg("y"))
        .def("route", [](BoundProgram &self, nb::object weight, const std::optional<Floats> &bias,
                         const std::optional<Floats> &correction, const std::optional<Floats> &scales, int64_t chosen,
                         bool sigmoid, bool renormalise, float epsilon, float scale, int64_t groups, int64_t kept_groups,
                         int64_t best_of_group, int x, int routed) {
            self.route(nb::cast<const Weight &>(weight), keeper(weight), bias, correction, scales, chosen, sigmoid, renormalise,
                       epsilon, scale, groups, kept_groups, best_of_group, x, routed);
        }, arg("weight"), arg("bias").noconvert().none(), arg("correction").noconvert().none(), arg("scales").noconvert().none(),
             arg("chosen"), arg("sigmoid"), arg("renormalise"), arg("epsilon"), arg("scale"), arg("groups"), arg("kept_groups"),
             arg("best_of_group"), arg("x"), arg("routed"))
        .def("experts", [](BoundProgram &self, nb::object gate_up, nb::object down, const std::optional<Floats> &gate_up_bias,
                           const std::optional<Floats> &down_bias, int64_t count, const std::string &gate, int x, int routed,
                           int y, const std::optional<std::vector<std::vector<int64_t>>> &holders, int64_t group,
                           int64_t groups, const std::optional<Integers> &choices) {
            self.experts(nb::cast<const Weight &>(gate_up), keeper(gate_up), nb::cast<const Weight &>(down), keeper(down),
                         gate_up_bias, down_bias, count, gate, x, routed, y, holders, group, groups, choices);
        }, arg("gate_up"), arg("down"), arg("gate_up_bias").noconvert().none(), arg("down_bias").noconvert().none(),
             arg("experts"), arg("gate"), arg("x"), arg("routed"), arg("y"), arg("holders").none() = nb::none(),
             arg("group") = 0, arg("groups") = 1, arg("choices").noconvert().none() = nb::none())
        .def("sigmoid_gate", &BoundProgram::sigmoid_gate, arg("x"), arg("gate"), arg("y"))
        .def("gated_activation", &BoundProgram::gated_activation, arg("gate"), arg("x"), arg("y"))
        .def("activation", &BoundProgram::activation, arg("name"), arg("x"), arg("y"))
        .def("add", &BoundProgram::add, arg("x"), arg("other"), arg("y"))
        .def("concatenate", &BoundProgram::concatenate, arg("heads"), arg("x"), arg("other"), arg("y"))
        .def("columns", &BoundProgram::columns, arg("heads"), arg("first"), arg("count"), arg("x"), arg("y"))
        .def("scale", &BoundProgram::scale, arg("factor"), arg("x"), arg("y"))
        .def("soft_cap", &BoundProgram::soft_cap, arg("cap"), arg("x"), arg("y"))
        .def("select_rows", &BoundProgram::select_rows, arg("x"), arg("y"), arg("stripe") = std::pair<int64_t, int64_t>(0, 1))
        .def("begin_rows", &BoundProgram::begin_rows, arg("given"), arg("made"))
        .def("end_rows", &BoundProgram::end_rows)
        .def("run", &BoundProgram::run, arg("ids").noconvert(), arg("positions").noconvert(), arg("added"),
             arg("context"), arg("selected").noconvert(), arg("tables").noconvert(), arg("block_size"),
             arg("shared").noconvert(), arg("inputs").noconvert(), arg("outputs").noconvert(),
             arg("dropped").noconvert() = nb::list(), arg("weighed") = nb::list(), arg("masses").noconvert() = nb::list(),
             arg("types").noconvert().none() = nb::none(), arg("sources") = nb::list(),
             arg("seen").noconvert().none() = nb::none())
        .def("decode", &BoundProgram::decode, arg("ids").noconvert(), arg("positions").noconvert(), arg("added"),
             arg("context"), arg("selected").noconvert(), arg("tables").noconvert(), arg("block_size"),
             arg("shared").noconvert(), arg("logits"), arg("vocabulary"), arg("tokens"), arg("choices"), arg("ranks"),
             arg("feedback").noconvert().none() = nb::none());
}

} // namespace penstock
