"""The word lists are whole and agree with each other."""

import itertools

import pytest

from penstock.bundled.corpus import lexicon as module
from penstock.bundled.corpus.lexicon import KINDS, SEASONS, LexiconError, load_lexicon


def test_size() -> None:
    lexicon = load_lexicon()
    assert len(lexicon.syllables) > 4000
    assert len(lexicon.topics) >= 400
    assert len(lexicon.heldout_topics) >= 50


def test_every_kind_has_words_of_several_lengths() -> None:
    lexicon = load_lexicon()
    for kind in KINDS:
        assert {noun.syllables for noun in lexicon.nouns if noun.kind == kind} >= {1, 2, 3}, kind
        assert {entry.syllables for entry in lexicon.adjectives if kind in entry.kinds} >= {1, 2, 3}, kind
        intransitive = [verb for verb in lexicon.verbs if verb.objects is None and kind in verb.subjects]
        assert {verb.forms["s"][1] for verb in intransitive} >= {1, 2, 3}, kind


def test_every_season_has_topics() -> None:
    for season in SEASONS:
        assert sum(topic.season == season for topic in load_lexicon().topics) >= 30


def test_no_noun_and_no_topic_stands_twice() -> None:
    lexicon = load_lexicon()
    words = [noun.word for noun in lexicon.nouns]
    phrases = [topic.phrase for topic in (*lexicon.topics, *lexicon.heldout_topics)]
    assert len(set(words)) == len(words)
    assert len(set(phrases)) == len(phrases)


def test_held_out_words_are_in_no_list_that_training_uses() -> None:
    lexicon = load_lexicon()
    single = {topic.phrase for topic in lexicon.heldout_topics if " " not in topic.phrase}
    assert len(single) >= 15
    used = {noun.word for noun in lexicon.nouns} | {noun.plural for noun in lexicon.nouns}
    used |= {entry.word for entry in lexicon.adjectives} | {word for word, _ in lexicon.adverbs}
    used |= set(itertools.chain.from_iterable(topic.phrase.split() for topic in lexicon.topics))
    assert not single & used


@pytest.mark.parametrize(
    ("parse", "line", "message"),
    [
        (module._noun, "heron 2 dragon | river", "dragon"),
        (module._noun, "heron 2 bird | ocean", "ocean"),
        (module._noun, "heron 2 bird", "fields"),
        (module._noun, "goose 1 bird | pond | plural=geese", "plural=geese"),
        (module._verb, "sing 1 | bird | was=sang:1", "was=sang:1"),
        (module._adjective, "pale 1 | ghost", "ghost"),
    ],
)
def test_mistakes_name_file_and_entry(parse, line: str, message: str) -> None:
    with pytest.raises(LexiconError, match=message) as caught:
        parse(line, "list.txt")
    assert "list.txt" in str(caught.value)


def test_contradicting_counts_are_refused() -> None:
    with pytest.raises(LexiconError, match="'poem' has 2 syllables in one list and 1 in another"):
        module._collect_syllables([("poem", 2), ("rain", 1), ("poem", 1)])
