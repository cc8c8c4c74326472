// The part of the Python module that chooses tokens.
#include "choices.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

using namespace penstock;

namespace {

using Masks = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Choice choice_of(const Asked &asked, size_t rows, const Masks &masks) {
    const int64_t row = std::get<0>(asked), mask = std::get<1>(asked);
    require(row >= 0 && static_cast<size_t>(row) < rows, "There is no such row of logits.");
    require(mask < static_cast<int64_t>(masks.shape(0)), "There is no such mask.");
    return penstock::choice_of(asked, mask < 0 ? nullptr : masks.data() + mask * static_cast<int64_t>(masks.shape(1)));
}

std::vector<Found> native_choose(const Logits &logits, const std::vector<Asked> &asked, const Masks &masks) {
    require(logits.shape(1) > 0 && logits.shape(1) < size_t{1} << 31, "The vocabulary must have 1 to 2^31 − 1 tokens.");
    require(masks.shape(1) == (logits.shape(1) + 31) / 32, "A mask must have a bit for each token.");
    std::vector<Choice> choices;
    choices.reserve(asked.size());
    for (const Asked &one : asked) choices.push_back(choice_of(one, logits.shape(0), masks));
    std::vector<Chosen> chosen;
    {
        nb::gil_scoped_release unlocked;
        chosen = choose(logits.data(), static_cast<int64_t>(logits.shape(1)), choices);
    }
    std::vector<Found> found;
    found.reserve(chosen.size());
    for (Chosen &one : chosen)
        found.emplace_back(one.token, static_cast<double>(one.peak), one.logprob, std::move(one.top_tokens),
                           std::move(one.top_logprobs));
    return found;
}

} // namespace

void penstock::bind_sampling(nb::module_ &module) {
    module.def("choose", &native_choose, nb::arg("logits").noconvert(), nb::arg("choices"),
               nb::arg("masks").noconvert());
}
