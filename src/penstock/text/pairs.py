"""Two texts as one sequence, as a tokenizer's template puts them together: what cross-encoders read."""

from collections.abc import Sequence
from typing import NamedTuple

import tokenizers

from penstock.core.errors import InvalidParameter


class Pair(NamedTuple):
    """Two texts as one sequence.

    Attributes:
        ids: its tokens.
        second: the first of those whose type is that of the second text; 0 where the template tells none apart.
        cut: how many tokens of both were left out.
    """

    ids: list[int]
    second: int
    cut: int = 0


class Cut(NamedTuple):
    """What is left out of pairs that are too long.

    Attributes:
        most: tokens that stay, with what the template adds.
        end: where others are left out of both texts: "right" or "left".
        most_second: tokens of the second text that stay, whatever becomes of both; None: all.
    """

    most: int | None
    end: str = "right"
    most_second: int | None = None


def encode_pairs(
    raw: tokenizers.Tokenizer, first: str, seconds: Sequence[str], cut: Cut | None = None, *, typed: bool = True
) -> list[Pair]:
    """The sequence of `first` with each of `seconds`; where it is not `typed`, no model is told which is which.

    What does not fit is taken from the longer of both until they have the same length, then from both ("longest
    first" of transformers). Raises InvalidParameter where the template has types that no model of two texts has, and
    IndexError where there is no room for any token of both.
    """
    (opening,) = raw.encode_batch([first], add_special_tokens=False)
    pairs = []
    for following in raw.encode_batch_fast(list(seconds), add_special_tokens=False):
        left_out, one, other = 0, opening, following
        if cut is not None:
            # Truncation changes an encoding in place, and the first is used again.
            one, other, left_out = _shortened(tokenizers.Encoding.merge([opening], False), following, raw, cut)
        whole = raw.post_process(one, other, add_special_tokens=True)
        pairs.append(Pair(whole.ids, _second(whole.type_ids) if typed else 0, left_out))
    return pairs


def _second(types: list[int]) -> int:
    """Where tokens of the second type begin, 0 where there are none."""
    if types != sorted(types) or types[:1] == [1] or (types and types[-1] > 1):
        raise InvalidParameter("model", "its tokenizer's template gives two texts types that are not 0, then 1.")
    return types.index(1) if 1 in types else 0


def _shortened(
    first: tokenizers.Encoding, second: tokenizers.Encoding, raw: tokenizers.Tokenizer, cut: Cut
) -> tuple[tokenizers.Encoding, tokenizers.Encoding, int]:
    before = len(first) + len(second)
    if cut.most_second is not None and len(second) > cut.most_second:
        second.truncate(cut.most_second, direction=cut.end)
    if cut.most is not None:
        room = cut.most - raw.num_special_tokens_to_add(True)
        if room < 2:
            raise IndexError(f"{cut.most} tokens leave no room for two texts")
        if len(first) + len(second) > room:
            lengths = longest_first(len(first), len(second), room)
            first.truncate(lengths[0], direction=cut.end)
            second.truncate(lengths[1], direction=cut.end)
    return first, second, before - len(first) - len(second)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text stay where both together have more than there is room for."""
    shorter = min(first, second)
    # Of two halves, the odd one is of the longer.
    kept = (room // 2, room - room // 2) if 2 * shorter >= room else (shorter, room - shorter)
    return kept if first <= second else (kept[1], kept[0])
