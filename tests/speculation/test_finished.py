"""What finished outputs give for drafts."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.speculation.finished import FinishedText

RUN = 3


def test_what_followed_last_is_found_within_its_salt_and_output() -> None:
    text = FinishedText(100, RUN)
    text.add("a", [1, 2, 3, 4, 5])
    text.add("a", [6, 1, 2, 3, 9])
    assert text.following("a", [1, 2, 3], 4) == [], "not looked through yet"
    assert text.catch_up("a", 6) == 6 and text.following("a", [0, 1, 2, 3], 4) == [4, 5]
    assert text.catch_up("a", 99) == 6 and text.following("a", [1, 2, 3], 4) == [9]
    assert text.catch_up("a", 99) == 0
    assert text.following("a", [3, 4, 5], 4) == [] == text.following("a", [4, 5, 6], 4)
    assert text.following("a", [2, 3], 4) == [], "too few"
    assert text.following("b", [1, 2, 3], 4) == [] and text.catch_up("b", 99) == 0


def test_those_that_were_used_longest_ago_go_first() -> None:
    text = FinishedText(15, RUN)
    for salt in ("a", "b", "c"):
        text.add(salt, [1, 2, 3, 4])
        text.catch_up(salt, 99)
    assert text.following("a", [1, 2, 3], 1) == [4]
    text.add("c", [5])
    assert text.size == 12
    assert text.following("b", [1, 2, 3], 1) == [] and text.following("a", [1, 2, 3], 1) == [4]


OUTPUTS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 2), max_size=12)), max_size=12)


@given(OUTPUTS, st.integers(1, 60), st.lists(st.integers(0, 2), min_size=RUN, max_size=RUN), st.integers(1, 5))
def test_it_finds_what_a_search_finds_and_stays_small(
    outputs: list[tuple[str, list[int]]], most: int, newest: list[int], count: int
) -> None:
    text = FinishedText(most, RUN)
    kept: dict[str, list[int]] = {}
    for salt, output in outputs:
        text.add(salt, output)
        assert text.size <= most
        kept[salt] = [*kept.get(salt, []), *output, -1]
    for salt, tokens in kept.items():
        text.catch_up(salt, 10_000)
        found = text.following(salt, newest, count)
        places = [place for place in range(RUN, len(tokens)) if tokens[place - RUN : place] == newest]
        following = [tokens[place : place + count] for place in places]
        allowed = [each[: each.index(-1)] if -1 in each else each for each in following]
        # What was dropped to make room is found no more; all else is the newest.
        assert found == (allowed[-1] if allowed and found else [])
        if sum(map(len, kept.values())) <= most and allowed:
            assert found == allowed[-1]
