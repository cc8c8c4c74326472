"""Counting and reading of poems."""

import json

import pytest

from penstock.bundled.corpus.checks import count_syllables, haiku_json, is_haiku, mentions, poem_lines

POEM = ("the old lantern waits", "a heron lands on the bridge", "rain on my window")


def test_a_haiku_counts_five_seven_five() -> None:
    assert [count_syllables(line) for line in POEM] == [5, 7, 5]
    assert is_haiku(POEM)
    assert not is_haiku(POEM[:2])
    assert not is_haiku((POEM[1], POEM[0], POEM[2]))
    assert not is_haiku(None)


def test_an_unknown_word_is_not_guessed() -> None:
    assert count_syllables("the zyzzyva waits") is None
    assert not is_haiku(("the old zyzzyva", *POEM[1:]))


def test_case_and_punctuation_do_not_count() -> None:
    assert count_syllables("The old, old LANTERN -") == 5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\n".join(POEM), POEM),
        ("Old Lantern\n\n" + "\n".join(POEM) + "\n", POEM),
        ("\n".join(POEM[:2]), None),
        ("\n".join((*POEM, "one more")), None),
        ("Here it is:\n" + "\n".join(POEM), None),
        ("", None),
    ],
)
def test_where_the_poem_is(text: str, found: tuple[str, ...] | None) -> None:
    assert poem_lines(text) == found


def test_a_topic_is_mentioned_word_for_word() -> None:
    assert mentions("\n".join(POEM), "old lantern")
    assert mentions("The Old Lantern waits", "old lantern")
    assert not mentions("old rain, new lantern", "old lantern")
    assert not mentions("lanterns", "lantern")


def test_json_needs_exactly_its_keys_and_types() -> None:
    good = {"title": "Rain", "lines": list(POEM), "season": "autumn"}
    found = haiku_json(json.dumps(good))
    assert found is not None and found.lines == POEM and found.season == "autumn"
    for bad in (
        {**good, "season": "monsoon"},
        {**good, "lines": POEM[:2]},
        {**good, "lines": [1, 2, 3]},
        {**good, "title": 3},
        {**good, "mood": "calm"},
        {"lines": list(POEM), "title": "Rain", "season": "autumn"},
        {"title": "Rain", "lines": list(POEM)},
        [good],
    ):
        assert haiku_json(json.dumps(bad)) is None
    assert haiku_json(json.dumps(good)[:-1]) is None
