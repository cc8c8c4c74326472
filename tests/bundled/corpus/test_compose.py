"""Poems have their form, whatever the topic and the seed; patterns have the sense that they claim."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bundled.corpus.checks import HAIKU, count_syllables, is_haiku, mentions
from penstock.bundled.corpus.compose import compose, compose_line
from penstock.bundled.corpus.lexicon import LexiconError, Topic, load_lexicon
from penstock.bundled.corpus.patterns import ROLES, load_patterns, parse_pattern

ALL_TOPICS = (*load_lexicon().topics, *load_lexicon().heldout_topics)


@settings(max_examples=300, deadline=None)
@given(topic=st.sampled_from(ALL_TOPICS), seed=st.integers(0, 2**32))
def test_a_poem_has_its_form_and_names_its_topic(topic: Topic, seed: int) -> None:
    poem = compose(topic, random.Random(seed))
    assert is_haiku(poem.lines), poem.lines
    assert mentions(poem.text, topic.phrase)
    assert poem == compose(topic, random.Random(seed))


def test_every_topic_has_room() -> None:
    for topic in ALL_TOPICS:
        poems = {compose(topic, random.Random(seed)).lines for seed in range(3)}
        assert len(poems) == 3 and all(map(is_haiku, poems)), topic.phrase


def test_there_are_hundreds_of_patterns_and_each_can_be_filled() -> None:
    patterns = load_patterns()
    assert len({pattern.text for pattern in patterns}) == len(patterns) >= 400
    rng = random.Random(0)
    for pattern in patterns:
        syllables = HAIKU[ROLES.index(pattern.role)]
        topics = [topic for topic in ALL_TOPICS if pattern.topic_numbers is None or pattern.fits(topic)]
        lines = (compose_line(pattern, syllables, rng.choice(topics), rng) for _ in range(400))
        line = next((line for line in lines if line is not None), None)
        assert line is not None, pattern.text
        assert count_syllables(line) == syllables, line


def test_articles_and_agreement() -> None:
    owl = Topic("owls", "bird", "plural", "any", frozenset(("night",)), 1)
    line = compose_line(parse_pattern("open", "the {topic} is {adj/topic}"), 5, owl, random.Random(1))
    assert line is not None and line.startswith("the owls are ")
    for seed in range(20):
        line = compose_line(parse_pattern("open", "a {adj/tree} {noun/tree} {verbs/tree}"), 5, owl, random.Random(seed))
        assert line is not None
        article, word = line.split()[:2]
        assert article == ("an" if word[0] in "aeiou" and not word.startswith("uni") else "a"), line


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("a {adj/topic} {topic}", {"count"}),
        ("the {topic}", {"count", "mass", "plural"}),
        ("my {adj/topic} {topic}", {"count", "mass", "plural"}),
        ("{topic} at dawn", {"mass", "plural"}),
        ("{adj/topic} {topic}", {"mass", "plural"}),
    ],
)
def test_the_determiner_says_which_topics_fit(text: str, numbers: set[str]) -> None:
    assert parse_pattern("open", text).topic_numbers == numbers


@pytest.mark.parametrize(
    "text",
    ["the {nonsense/bird}", "the {noun/dragon}", "the {noun}", "{adv/bird}", "the {topic} {topic}", "xyzzy {adv}"],
)
def test_a_pattern_that_cannot_be_filled_is_refused(text: str) -> None:
    with pytest.raises(LexiconError):
        parse_pattern("open", text)
