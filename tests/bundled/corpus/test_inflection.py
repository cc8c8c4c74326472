"""Regular forms and their syllables."""

import pytest

from penstock.bundled.corpus.inflection import add_ed, add_ing, add_s, third_person


@pytest.mark.parametrize(
    ("word", "syllables", "form", "count"),
    [
        ("river", 2, "rivers", 2),
        ("branch", 1, "branches", 2),
        ("rose", 1, "roses", 2),
        ("bridge", 1, "bridges", 2),
        ("box", 1, "boxes", 2),
        ("berry", 2, "berries", 2),
        ("valley", 2, "valleys", 2),
        ("path", 1, "paths", 1),
    ],
)
def test_plurals(word: str, syllables: int, form: str, count: int) -> None:
    assert add_s(word, syllables) == (form, count)


def test_third_person_of_o() -> None:
    assert third_person("go", 1) == ("goes", 1)
    assert third_person("pass", 1) == ("passes", 2)


@pytest.mark.parametrize(
    ("word", "syllables", "ing", "past", "past_syllables"),
    [
        ("drip", 1, "dripping", "dripped", 1),
        ("glow", 1, "glowing", "glowed", 1),
        ("wait", 1, "waiting", "waited", 2),
        ("fade", 1, "fading", "faded", 2),
        ("carry", 2, "carrying", "carried", 2),
        ("linger", 2, "lingering", "lingered", 2),
        ("free", 1, "freeing", "freed", 1),
        ("quit", 1, "quitting", "quitted", 2),
    ],
)
def test_verbs(word: str, syllables: int, ing: str, past: str, past_syllables: int) -> None:
    assert add_ing(word, syllables) == (ing, syllables + 1)
    assert add_ed(word, syllables) == (past, past_syllables)
