"""Which experts groups of ranks are to have, some of them several, so that all groups compute about as many rows.

It is how DeepSeek places experts (EPLB, 2025): what is chosen most is copied, and then all is packed.
"""

from collections.abc import Sequence


def place_experts(counts: Sequence[int], sizes: Sequence[int], room: int) -> tuple[tuple[int, ...], ...]:
    """The experts that each group is to have, ascending.

    `counts` says how often each expert is chosen, and each one is somewhere; a group has `sizes` of them, and up to
    `room` more. The rows of one that several groups have are shared out evenly over these.
    """
    copies = _copies(counts, len(sizes), room * len(sizes))
    each = [count / number for count, number in zip(counts, copies, strict=True)]
    free = [size + room for size in sizes]
    rows = [0.0] * len(sizes)
    has: list[set[int]] = [set() for _ in sizes]
    for expert in sorted(range(len(counts)), key=lambda expert: (-each[expert], expert)):
        for _ in range(copies[expert]):
            groups = [group for group, left in enumerate(free) if left and expert not in has[group]]
            if not groups:
                # Where there is room, it is already.
                break
            group = min(groups, key=lambda group: (rows[group], group))
            has[group].add(expert)
            free[group] -= 1
            rows[group] += each[expert]
    return tuple(tuple(sorted(experts)) for experts in has)


def _copies(counts: Sequence[int], groups: int, more: int) -> list[int]:
    """How many groups have each expert: up to `more` beside one each, always of the one with most rows for each."""
    copies = [1] * len(counts)
    for _ in range(more):
        wanted = [expert for expert, number in enumerate(copies) if number < groups and counts[expert]]
        if not wanted:
            break
        copies[max(wanted, key=lambda expert: (counts[expert] / copies[expert], -expert))] += 1
    return copies
