"""What a router chooses, and rows in order of their experts: one program for a row, and one for an expert."""

import triton
import triton.language as tl


@triton.jit
def _scored(logits, most, total, SOFTMAX: tl.constexpr):
    """Scores of logits; of a softmax by the largest of all, and what the powers of all add up to."""
    if SOFTMAX:
        return tl.exp(logits - most) / total
    else:
        return 1.0 / (1.0 + tl.exp(-logits))


@triton.jit
def _ranked(scores, correction, at, there, CORRECTED: tl.constexpr):
    """What is chosen by; what is not a number is above all, so that there is always something to choose."""
    if CORRECTED:
        scores += tl.load(correction + at, mask=there, other=0.0)
    return tl.where(scores != scores, float("inf"), scores)


@triton.jit
def _best_groups(
    logits, correction, most, total,
    SOFTMAX: tl.constexpr, CORRECTED: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    GROUPS: tl.constexpr, PADDED_GROUPS: tl.constexpr, KEPT: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    """A bit for each of the KEPT groups, of GROUPS of SIZE experts, whose BEST largest scores add up to the most."""
    group, member = tl.arange(0, PADDED_GROUPS), tl.arange(0, PADDED)
    at = group[:, None] * SIZE + member[None, :]
    left = (group < GROUPS)[:, None] & (member < SIZE)[None, :]
    scores = _scored(tl.load(logits + at, mask=left, other=0.0), most, total, SOFTMAX)
    ranked = _ranked(scores, correction, at, left, CORRECTED)
    sums = tl.zeros([PADDED_GROUPS], tl.float32)
    for _ in range(BEST):
        top = tl.max(tl.where(left, ranked, float("-inf")), 1)
        first = tl.min(tl.where(left & (ranked == top[:, None]), member[None, :], PADDED), 1)
        left = left & (member[None, :] != first[:, None])
        sums += top
    kept, open_groups = tl.zeros([1], tl.int64), group < GROUPS
    for _ in range(KEPT):
        top = tl.max(tl.where(open_groups, sums, float("-inf")), 0)
        first = tl.min(tl.where(open_groups & (sums == top), group, PADDED_GROUPS), 0)
        open_groups = open_groups & (group != first)
        kept = kept | (tl.full([1], 1, tl.int64) << first)
    return kept


@triton.jit
def route_kernel(
    logits, correction, scales, routed,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, CHOSEN: tl.constexpr, SOFTMAX: tl.constexpr,
    CORRECTED: tl.constexpr, SCALED: tl.constexpr, RENORMALISED: tl.constexpr, EPSILON: tl.constexpr,
    SCALE: tl.constexpr, GROUPS: tl.constexpr, PADDED_GROUPS: tl.constexpr, PADDED_GROUP: tl.constexpr,
    KEPT: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    """Programs: (row). float32 logits [rows, EXPERTS] → routed [rows, 2 · CHOSEN], as `signature.Route` says.

    The largest is taken, then the largest of what is left; of equal ones the first. CORRECTED adds `correction` to
    what is chosen by, SCALED multiplies weights by the `scales` of their experts.
    """
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED)
    there = expert < EXPERTS
    given = tl.load(logits + row * EXPERTS + expert, mask=there, other=float("-inf"))
    most = tl.max(given, 0)
    total = tl.sum(tl.exp(given - most), 0)
    scores = _scored(given, most, total, SOFTMAX)
    ranked = _ranked(scores, correction, expert, there, CORRECTED)
    if GROUPS > 1:
        SIZE: tl.constexpr = EXPERTS // GROUPS
        kept = _best_groups(
            logits + row * EXPERTS, correction, most, total,
            SOFTMAX, CORRECTED, SIZE, PADDED_GROUP, GROUPS, PADDED_GROUPS, KEPT, BEST,
        )  # fmt: skip
        ranked = tl.where((kept >> (expert // SIZE)) & 1 == 1, ranked, float("-inf"))
    left = there
    for _ in range(CHOSEN):
        top = tl.max(tl.where(left, ranked, float("-inf")), 0)
        first = tl.min(tl.where(left & (ranked == top), expert, PADDED), 0)
        left = left & (expert != first)
    chosen = there & (left == 0)
    weights = tl.where(chosen, scores, 0.0)
    if RENORMALISED:
        weights = weights / (tl.sum(weights, 0) + EPSILON)
    weights *= SCALE
    if SCALED:
        weights *= tl.load(scales + expert, mask=there, other=0.0)
    place = row * 2 * CHOSEN + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(routed + place, expert.to(tl.float32), mask=chosen)
    tl.store(routed + place + CHOSEN, weights, mask=chosen)


@triton.jit
def _choices(routed, at, choices, lane, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr):
    """The experts of the choices from `at` on, row by row; EXPERTS behind the last."""
    choice = at + lane
    place = choice.to(tl.int64) // CHOSEN * (2 * CHOSEN) + choice % CHOSEN
    return choice, tl.load(routed + place, mask=choice < choices, other=EXPERTS).to(tl.int32)


@triton.jit(do_not_specialize=["choices"])
def sort_experts_kernel(
    routed, source, place, block_expert, block_first, block_end, choices,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, ROWS: tl.constexpr, FEW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs: (expert). Sorts the choices that rows have made by their experts, each expert's in order of rows.

    An expert's choices begin behind those of lower ones: source[i] is the row of choice i in this order, place[c] where
    the c-th choice of all rows stands. They are cut into blocks of up to ROWS that have one expert each, from
    block_first up to block_end. An expert's blocks begin at its number plus the full blocks before it; where there are
    FEW choices, not more than experts, at the number of choices before it. Either leaves room enough for its blocks; a
    block that has none is of expert EXPERTS.
    """
    expert = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    before, count = expert * 0, expert * 0
    for at in range(0, choices, BLOCK):
        _, own = _choices(routed, at, choices, lane, EXPERTS, CHOSEN)
        before += tl.sum((own < expert).to(tl.int32), 0)
        count += tl.sum((own == expert).to(tl.int32), 0)
    end, taken = before + count, before
    if count > 0:
        for at in range(0, choices, BLOCK):
            choice, own = _choices(routed, at, choices, lane, EXPERTS, CHOSEN)
            mine = own == expert
            turn = taken + tl.cumsum(mine.to(tl.int32), 0) - 1
            tl.store(source + turn, choice // CHOSEN, mask=mine)
            tl.store(place + choice, turn, mask=mine)
            taken += tl.sum(mine.to(tl.int32), 0)
    if FEW:
        start, stop = before, end
    else:
        start, stop = before // ROWS + expert, end // ROWS + expert + 1
    for at in range(start, stop, BLOCK):
        block = at + lane
        first = before + (block - start) * ROWS
        tl.store(block_expert + block, tl.where(first < end, expert, EXPERTS), mask=block < stop)
        tl.store(block_first + block, first, mask=block < stop)
        tl.store(block_end + block, first * 0 + end, mask=block < stop)
