"""Chooses tokens where their logits are, so that a vocabulary's width never crosses the bus.

The meaning is that of `sampling/pipeline.py` and `sampling/draw.py`, random numbers included. A cut by rank (top-k,
top-p) is a threshold: it is found by bisection over the 2^32 float32 numbers in their order, and of tokens as likely as
the last one that is kept the lower ids stay. It is found among the likeliest tokens of each part of the row
(`candidates.py`), which threads hold; where these may not be all that it takes, with one pass over the row for each
step.
"""

import triton
import triton.language as tl

from penstock.kernels.cuda.candidates import drawn_of_candidates, drawn_of_parts, whole_row
from penstock.kernels.cuda.randomness import LEAST, NO_WEIGHT, noise, ordered, random_words


@triton.jit
def _staying(order, there, kept, ties, seen):
    """Which tokens of a block stay: those above `kept`, and of those at it the first `ties`; how many tied so far."""
    tied = (order == kept) & there
    rank = seen + tl.cumsum(tied.to(tl.int32), 0)
    return there & ((order > kept) | (tied & (rank <= ties))), seen + tl.sum(tied.to(tl.int32), 0)


@triton.jit
def _above(
    row,
    threshold,
    peak,
    temperature,
    kept,
    ties,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHS: tl.constexpr,
):
    """How many tokens that `kept` and `ties` leave are at `threshold` or above; with WEIGHS their weight too."""
    count = tl.zeros([], tl.int32)
    mass = tl.zeros([], tl.float64)
    seen = tl.zeros([], tl.int32)
    for at in range(0, WIDTH, BLOCK):
        token = at + tl.arange(0, BLOCK)
        logit = tl.load(row + token, mask=token < WIDTH, other=float("-inf"))
        order = ordered(logit).to(tl.int64)
        there, seen = _staying(order, token < WIDTH, kept, ties, seen)
        there = there & (order >= threshold)
        count += tl.sum(there.to(tl.int32), 0)
        if WEIGHS:
            scaled = (logit.to(tl.float64) - peak) / temperature
            weight = tl.where(there & (scaled > NO_WEIGHT), tl.exp(tl.maximum(scaled, NO_WEIGHT)), 0.0)
            mass += tl.sum(weight, 0)
    return count, mass


# The count varies from step to step, and one kernel is for all.
@triton.jit(do_not_specialize=["count"])
def carry_kernel(token_ids, carried, count, BLOCK: tl.constexpr):
    """Programs: (block of tokens). Of token_ids int32 [count], each -1 - i becomes the one at i of carried float64."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(token_ids + place, mask=place < count, other=0)
    unknown = token < 0
    known = tl.load(carried + (-1 - token), mask=unknown, other=0.0)
    tl.store(token_ids + place, known.to(tl.int32), mask=unknown)


@triton.jit
def _top_k(row, top_k, peak, temperature, kept, ties, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """`kept` and `ties` of the `top_k` likeliest tokens."""
    low, high = tl.full([], LEAST, tl.int64), tl.full([], 2147483647, tl.int64)
    for _ in range(32):
        middle = (low + high + 1) >> 1
        count, _mass = _above(row, middle, peak, temperature, kept, ties, WIDTH, BLOCK, False)
        low = tl.where(count >= top_k, middle, low)
        high = tl.where(count >= top_k, high, middle - 1)
    more, _mass = _above(row, low + 1, peak, temperature, kept, ties, WIDTH, BLOCK, False)
    return low, top_k - more


@triton.jit
def _top_p(row, top_p, peak, temperature, kept, ties, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """`kept` and `ties` of the fewest of the likeliest tokens whose weight is `top_p` of that of all that are left."""
    _count, whole = _above(row, kept, peak, temperature, kept, ties, WIDTH, BLOCK, True)
    wanted = top_p * whole
    low, high = kept, tl.full([], 2147483647, tl.int64)
    for _ in range(33):
        middle = (low + high + 1) >> 1
        _count, mass = _above(row, middle, peak, temperature, kept, ties, WIDTH, BLOCK, True)
        low = tl.where(mass >= wanted, middle, low)
        high = tl.where(mass >= wanted, high, middle - 1)
    more, mass_above = _above(row, low + 1, peak, temperature, kept, ties, WIDTH, BLOCK, True)
    count, mass = _above(row, low, peak, temperature, kept, ties, WIDTH, BLOCK, True)
    each = (mass - mass_above) / tl.maximum(count - more, 1).to(tl.float64)
    needed = tl.ceil((wanted - mass_above) / tl.where(each > 0, each, 1.0)).to(tl.int32)
    needed = tl.minimum(tl.maximum(needed, 1), tl.maximum(count - more, 1))
    return low, tl.where(low == kept, tl.minimum(ties, needed), needed)


@triton.jit
def _drawn(row, words, peak, temperature, log_min_p, kept, ties, best, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Of the tokens that stay, the one whose scaled logit with noise is the largest; `best` where none does."""
    largest = tl.full([], float("-inf"), tl.float64)
    seen = tl.zeros([], tl.int32)
    for at in range(0, WIDTH, BLOCK):
        token = at + tl.arange(0, BLOCK)
        logit = tl.load(row + token, mask=token < WIDTH, other=float("-inf"))
        order = ordered(logit).to(tl.int64)
        there, seen = _staying(order, token < WIDTH, kept, ties, seen)
        scaled = (logit.to(tl.float64) - peak) / temperature
        there = there & (scaled >= log_min_p)
        value = tl.where(there, scaled + noise(random_words(token, words)), float("-inf"))
        most = tl.max(value, 0)
        lowest = tl.min(tl.where(value == most, token, WIDTH), 0)
        best = tl.where(most > largest, lowest, best)
        largest = tl.maximum(most, largest)
    return best


@triton.jit
def _drawn_slowly(
    row, words, peak, temperature, top_k, top_p, log_min_p, best, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """The token that is drawn behind top-k and top-p, by passes over the row."""
    # Tokens whose order is above `kept` stay, and of those at it the first `ties`.
    kept = tl.full([], LEAST, tl.int64)
    ties = tl.full([], WIDTH, tl.int32)
    if (top_k > 0) & (top_k < WIDTH):
        kept, ties = _top_k(row, top_k, peak, temperature, kept, ties, WIDTH, BLOCK)
    if top_p < 1.0:
        kept, ties = _top_p(row, top_p, peak, temperature, kept, ties, WIDTH, BLOCK)
    return _drawn(row, words, peak, temperature, log_min_p, kept, ties, best, WIDTH, BLOCK)


@triton.jit
def choose_kernel(
    logits, rows, numbers, top_ks, words, states, values, ids, left, tokens, peaks, logprobs,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Programs: (choice). Its row of logits float32 [S, WIDTH] → a token, the row's peak, the token's log probability.

    numbers float64 [choices, 3]: temperature, top_p, log_min_p; top_ks int32, 0 for all; words int64 [choices, 3], the
    key of the output position. `states` is what `scan_kernel` has left; `values`, `ids` and `left` are
    `narrow_kernel`'s, and not read where no temperature is above 0. The peak is not a number where a logit is none.
    """
    place = tl.program_id(0)
    row = logits + tl.load(rows + place).to(tl.int64) * WIDTH
    peak, best, total, broken = whole_row(states, place, WIDTH, PARTS, PADDED_PARTS)
    wide_peak = tl.where(peak == float("-inf"), 0.0, peak)
    temperature = tl.load(numbers + place * 3)
    if temperature > 0:
        top_p, log_min_p = tl.load(numbers + place * 3 + 1), tl.load(numbers + place * 3 + 2)
        top_k = tl.load(top_ks + place)
        key = words + place * 3
        if ((top_k > 0) & (top_k < WIDTH)) | (top_p < 1.0):
            found, ready = drawn_of_candidates(
                values, ids, left, key, place, wide_peak, temperature, top_k, top_p, log_min_p, best,
                WIDTH, PARTS, PADDED_PARTS, SLOTS,
            )  # fmt: skip
            if ready == 0:
                found = _drawn_slowly(row, key, wide_peak, temperature, top_k, top_p, log_min_p, best, WIDTH, BLOCK)
            best = found
        else:
            best = drawn_of_parts(
                row, left, key, place, wide_peak, temperature, log_min_p, best, PARTS, PADDED_PARTS, BLOCK, WIDTH
            )
    chosen = tl.load(row + best).to(tl.float64)
    tl.store(tokens + place, best)
    tl.store(peaks + place, tl.where(broken > 0, float("nan"), peak))
    tl.store(logprobs + place, chosen - wide_peak - tl.log(tl.where(total > 0, total, 1.0)))
