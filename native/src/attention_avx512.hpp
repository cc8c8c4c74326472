// What a row of queries makes of its scores, for the files of attention with AVX-512: 16 positions are a vector.
#pragma once

#include "attention_block.hpp"
#include "avx512.hpp"

#include <initializer_list>
#include <limits>

namespace penstock {
namespace {

// The exponential of exponential.hpp with fused multiplications, 16 at a time, of numbers that are not above 88: 0 where the mask
// is, and below −87.3. What is not a number stays none: maxima are of their second operand then.
inline __m512 exponential(__m512 x, __mmask16 mask = 0xffff) {
    const __m512 least = _mm512_set1_ps(-87.3f), bounded = _mm512_max_ps(least, x);
    const __m512 power = _mm512_roundscale_ps(
        _mm512_mul_ps(bounded, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(0.693359375f), bounded);
    rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
    for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    sum = _mm512_add_ps(_mm512_fmadd_ps(sum, _mm512_mul_ps(rest, rest), rest), _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_mask_cmp_ps_mask(mask, x, least, _CMP_NLT_UQ), sum, power);
}

inline __m512 soft_capped(__m512 scores, float cap) {
    const __m512 twice = exponential(_mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_mul_ps(_mm512_set1_ps(2.0f / cap), scores)));
    const __m512 part = _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(twice, _mm512_set1_ps(1.0f)));
    return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_sub_ps(_mm512_set1_ps(1.0f), part));
}

// Positions from `low` on, before `high`, as bits of a span.
inline uint64_t seen_by(int64_t low, int64_t high) {
    const uint64_t below = high >= kSpan ? ~uint64_t{0} : (uint64_t{1} << high) - 1;
    return low >= high ? 0 : below & ~((uint64_t{1} << low) - 1);
}

// What a row makes of its scores: weights, 0 where it sees nothing, and the factor of what it had before.
template <bool Integers>
inline float weigh(const Block &block, int64_t row, uint64_t seen, const float *scores, float *weights) {
    State &state = block.states[row];
    const __m512 scale = _mm512_set1_ps(Integers ? block.query_scales[row] * block.scale : block.scale);
    const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 score[kSpanTiles], largest = none;
    for (int t = 0; t < kSpanTiles; ++t) {
        const __m512 factor = Integers ? _mm512_mul_ps(_mm512_loadu_ps(block.tiles.key_scales[t]), scale) : scale;
        score[t] = _mm512_mul_ps(_mm512_load_ps(scores + t * kStep), factor);
        if (block.bias) score[t] = _mm512_add_ps(score[t], _mm512_loadu_ps(block.bias + row * kSpan + t * kStep));
        if (block.softcap != 0.0f) score[t] = soft_capped(score[t], block.softcap);
        const auto mask = static_cast<__mmask16>(seen >> (t * kStep));
        largest = _mm512_max_ps(_mm512_mask_mov_ps(none, mask, score[t]), largest);
    }
    const float peak = _mm512_reduce_max_ps(largest);
    const float most = peak > state.most ? peak : state.most;
    __m512 sum = _mm512_setzero_ps();
    for (int t = 0; t < kSpanTiles; ++t) {
        const auto mask = static_cast<__mmask16>(seen >> (t * kStep));
        const __m512 weight = exponential(_mm512_sub_ps(score[t], _mm512_set1_ps(most)), mask);
        sum = _mm512_add_ps(sum, weight);
        _mm512_store_ps(weights + t * kStep, weight);
        if (block.sums) block.sums[row * kSpanTiles + t] = _mm512_reduce_add_ps(weight);
    }
    // Nothing of what it has not seen.
    const bool begun = state.total != 0.0f;
    const float kept = begun ? _mm512_cvtss_f32(exponential(_mm512_set1_ps(state.most - most))) : 0.0f;
    state.total = state.total * kept + _mm512_reduce_add_ps(sum);
    state.most = most;
    return kept;
}

// To the nearest bfloat16, ties to even; not a number stays none.
inline __m256i narrowed(__m512 values) {
    const __m512i bits = _mm512_castps_si512(values), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 unordered = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, unordered, quiet), 16));
}

} // namespace
} // namespace penstock
