"""What a row of logits comes to, part by part: many programs read a row of a vocabulary's width, each leaves little.

A part has runs of neighbouring tokens from all over the row, so that the likely ones, which are often neighbours, are
in many parts. `choose_kernel` (`sampling.py`) makes one choice of what the parts have left.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.randomness import LEAST, NO_WEIGHT, noise, ordered, random_words, rough_noise

# Neighbouring tokens of one part: what is read of float32 at a time.
RUN = tl.constexpr(32)


@triton.jit
def part_tokens(part, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The tokens of a part [BLOCK]; those behind the vocabulary's width are none."""
    place = tl.arange(0, BLOCK)
    return (place // RUN * PARTS + part) * RUN + place % RUN


@triton.jit
def scan_kernel(logits, rows, states, WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Programs: (choice, part). Of the part's logits the peak, its first token, and the sum of exp(logit - peak).

    states: float64 [choices, PARTS, 3]; the peak is not a number where a logit is none.
    """
    place, part = tl.program_id(0), tl.program_id(1)
    row = logits + tl.load(rows + place).to(tl.int64) * WIDTH
    token = part_tokens(part, PARTS, BLOCK)
    there = token < WIDTH
    logit = tl.load(row + token, mask=there, other=float("-inf"))
    broken = tl.sum((logit != logit).to(tl.int32), 0)
    logit = tl.where(logit != logit, float("-inf"), logit)
    peak = tl.max(logit, 0)
    best = tl.min(tl.where((logit == peak) & there, token, WIDTH), 0)
    # Each is rounded to float32, which their sum is not.
    total = tl.sum(tl.exp(logit - tl.where(peak == float("-inf"), 0.0, peak)).to(tl.float64), 0)
    state = states + (place * PARTS + part) * 3
    tl.store(state, tl.where(broken > 0, float("nan"), peak).to(tl.float64))
    tl.store(state + 1, best.to(tl.float64))
    tl.store(state + 2, total)


@triton.jit
def whole_row(states, place, WIDTH: tl.constexpr, PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr):
    """Of all parts of a choice's row: the peak, its first token, the sum by the peak, and whether any is no number."""
    part = tl.arange(0, PADDED_PARTS)
    there = part < PARTS
    state = states + (place * PARTS + part) * 3
    peaks = tl.load(state, mask=there, other=float("-inf"))
    broken = tl.sum((peaks != peaks).to(tl.int32), 0)
    peaks = tl.where(peaks != peaks, float("-inf"), peaks)
    peak = tl.max(peaks, 0)
    tokens = tl.load(state + 1, mask=there, other=0.0).to(tl.int32)
    best = tl.min(tl.where((peaks == peak) & there & (tokens < WIDTH), tokens, WIDTH - 1), 0)
    # Where nothing can be chosen the caller sees it by the peak.
    wide_peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.load(state + 2, mask=there, other=0.0) * tl.exp(peaks - wide_peak), 0)
    return peak, best, total, broken


@triton.jit
def narrow_kernel(
    logits, rows, numbers, top_ks, words, states, values, tokens, left,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Programs: (choice, part). What of a part may be drawn, as far as the part alone can say.

    With top-k or top-p these are its most likely tokens, up to SLOTS, with their logits, in `values` float32 and
    `tokens` int32 [choices, PARTS, SLOTS]. left: float64 [choices, PARTS, 3], all tokens of the part whose order is at
    the first number or above being among them; how many they are, and the weight of the others. Else the first number
    is about the largest scaled logit with noise.
    """
    place, part = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(numbers + place * 3)
    if temperature > 0:
        top_p, log_min_p = tl.load(numbers + place * 3 + 1), tl.load(numbers + place * 3 + 2)
        top_k = tl.load(top_ks + place)
        peak, _best, _total, _broken = whole_row(states, place, WIDTH, PARTS, PADDED_PARTS)
        wide_peak = tl.where(peak == float("-inf"), 0.0, peak)
        row = logits + tl.load(rows + place).to(tl.int64) * WIDTH
        token = part_tokens(part, PARTS, BLOCK)
        there = token < WIDTH
        logit = tl.load(row + token, mask=there, other=float("-inf"))
        scaled = (logit.to(tl.float64) - wide_peak) / temperature
        own = left + (place * PARTS + part) * 3
        if ((top_k > 0) & (top_k < WIDTH)) | (top_p < 1.0):
            order = ordered(logit)
            # The least order at which, and above which, there are no more than SLOTS tokens.
            low, high = tl.full([], LEAST, tl.int64), tl.full([], 2147483648, tl.int64)
            for _ in range(33):
                middle = tl.minimum((low + high) >> 1, 2147483647)
                fits = tl.sum((there & (order >= middle.to(tl.int32))).to(tl.int32), 0) <= SLOTS
                low = tl.where(fits, low, tl.minimum(middle + 1, high))
                high = tl.where(fits, middle, high)
            chosen = there & (order.to(tl.int64) >= high)
            slot = (place * PARTS + part).to(tl.int64) * SLOTS + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(values + slot, logit, mask=chosen)
            tl.store(tokens + slot, token, mask=chosen)
            rest = there & (order.to(tl.int64) < high)
            weight = tl.where(rest & (scaled > NO_WEIGHT), tl.exp(tl.maximum(scaled, NO_WEIGHT)), 0.0)
            floor = tl.where(tl.sum(rest.to(tl.int32), 0) > 0, high, tl.full([], LEAST, tl.int64))
            tl.store(own, floor.to(tl.float64))
            tl.store(own + 1, tl.sum(chosen.to(tl.int32), 0).to(tl.float64))
            tl.store(own + 2, tl.sum(weight, 0))
        else:
            rough = scaled.to(tl.float32) + rough_noise(random_words(token, words + place * 3))
            rough = tl.where(there & (scaled >= log_min_p), rough, float("-inf"))
            tl.store(own, tl.max(rough, 0).to(tl.float64))


@triton.jit
def _least(values, weights, wanted, low):
    """The largest order, `low` at least, at and above which `values` have weights of `wanted` together."""
    high = tl.full([], 2147483647, tl.int64)
    for _ in range(33):
        middle = (low + high + 1) >> 1
        enough = tl.sum(tl.where(values >= middle.to(tl.int32), weights, 0), 0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def _first(tokens, there, count, WIDTH: tl.constexpr):
    """The least token such that `count` of those that are there are it or lower."""
    low, high = tl.full([], 0, tl.int32), tl.full([], WIDTH - 1, tl.int32)
    for _ in range(32):
        middle = (low + high) >> 1
        enough = tl.sum((there & (tokens <= middle)).to(tl.int32), 0) >= count
        low = tl.where(enough, low, tl.minimum(middle + 1, high))
        high = tl.where(enough, middle, high)
    return high


@triton.jit
def drawn_of_candidates(
    values, tokens, left, words, place, peak, temperature, top_k, top_p, log_min_p, best,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """The token that is drawn behind top-k and top-p, and whether the parts have left all that it takes to say that."""
    slot = tl.arange(0, PADDED_PARTS * SLOTS)
    own = left + (place * PARTS + slot // SLOTS) * 3
    part_there = slot // SLOTS < PARTS
    there = (slot % SLOTS).to(tl.float64) < tl.load(own + 1, mask=part_there, other=0.0)
    at = place.to(tl.int64) * PARTS * SLOTS + slot
    logit = tl.load(values + at, mask=there, other=float("-inf"))
    token = tl.load(tokens + at, mask=there, other=WIDTH)
    part = tl.arange(0, PADDED_PARTS)
    of_part = left + (place * PARTS + part) * 3
    floor = tl.max(tl.load(of_part, mask=part < PARTS, other=-2147483648.0), 0).to(tl.int64)
    rest = tl.sum(tl.load(of_part + 2, mask=part < PARTS, other=0.0), 0)
    order = ordered(logit)
    scaled = (logit.to(tl.float64) - peak) / temperature
    weight = tl.where(there & (scaled > NO_WEIGHT), tl.exp(tl.maximum(scaled, NO_WEIGHT)), 0.0)
    ready = tl.full([], 1, tl.int32)
    staying = there
    if (top_k > 0) & (top_k < WIDTH):
        low = _least(order, there.to(tl.int32), top_k, tl.minimum(floor, 2147483647))
        above = there & (order > low.to(tl.int32))
        tied = there & (order == low.to(tl.int32))
        more = tl.sum(above.to(tl.int32), 0)
        ready = (more + tl.sum(tied.to(tl.int32), 0) >= top_k).to(tl.int32)
        staying = above | (tied & (token <= _first(token, tied, top_k - more, WIDTH)))
        rest = rest * 0.0
        floor = tl.maximum(floor, low)
    if top_p < 1.0:
        mass = tl.where(staying, weight, 0.0)
        wanted = top_p * (tl.sum(mass, 0) + rest)
        low = _least(order, mass, wanted, tl.minimum(floor, 2147483647))
        above = staying & (order > low.to(tl.int32))
        tied = staying & (order == low.to(tl.int32))
        mass_above, mass_tied = tl.sum(tl.where(above, mass, 0.0), 0), tl.sum(tl.where(tied, mass, 0.0), 0)
        count = tl.sum(tied.to(tl.int32), 0)
        ready = tl.where(mass_above + mass_tied >= wanted, ready, 0)
        each = mass_tied / tl.maximum(count, 1).to(tl.float64)
        needed = tl.ceil((wanted - mass_above) / tl.where(each > 0, each, 1.0)).to(tl.int32)
        needed = tl.minimum(tl.maximum(needed, 1), tl.maximum(count, 1))
        staying = above | (tied & (token <= _first(token, tied, needed, WIDTH)))
    value = scaled + noise(random_words(token, words))
    value = tl.where(staying & (scaled >= log_min_p), value, float("-inf"))
    most = tl.max(value, 0)
    lowest = tl.min(tl.where(value == most, token, WIDTH), 0)
    return tl.where(most > float("-inf"), lowest, best), ready


@triton.jit
def drawn_of_parts(
    row, left, words, place, peak, temperature, log_min_p, best,
    PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The token that is drawn of all: exactly, of the parts that may have it."""
    part = tl.arange(0, PADDED_PARTS)
    rough = tl.load(left + (place * PARTS + part) * 3, mask=part < PARTS, other=float("-inf"))
    # What is rough is off by less than 1e-4 where it is near the largest.
    least = tl.max(rough, 0) - 1e-3
    largest = tl.full([], float("-inf"), tl.float64)
    for at in range(PARTS):
        if tl.load(left + (place * PARTS + at) * 3) >= least:
            token = part_tokens(at, PARTS, BLOCK)
            logit = tl.load(row + token, mask=token < WIDTH, other=float("-inf"))
            scaled = (logit.to(tl.float64) - peak) / temperature
            there = (token < WIDTH) & (scaled >= log_min_p)
            value = tl.where(there, scaled + noise(random_words(token, words)), float("-inf"))
            most = tl.max(value, 0)
            lowest = tl.min(tl.where(value == most, token, WIDTH), 0)
            found = (most > largest) | ((most == largest) & (most > float("-inf")) & (lowest < best))
            best = tl.where(found, lowest, best)
            largest = tl.maximum(most, largest)
    return best
