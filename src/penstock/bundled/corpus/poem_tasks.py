"""Turns about poems: asking for one, for another, for changes; quoting and editing them; JSON."""

from __future__ import annotations

import functools
import json

from penstock.bundled.corpus.checks import words_of
from penstock.bundled.corpus.compose import Poem
from penstock.bundled.corpus.dialogue import NUMBER_WORDS, Dialogue, spoken, title_case
from penstock.bundled.corpus.lexicon import Topic, load_lexicon
from penstock.bundled.corpus.wordings import answer

TITLES = (
    *("{topic}", "{topic}", "{topic}", "{topic}", "Haiku on {topic}", "{topic} in {season}", "{topic}, {season}"),
    *("For {topic}", "Seeing {topic}", "{topic} Again", "About {topic}", "{topic} at Dusk", "{topic} at Dawn"),
    *("Thinking of {topic}", "Only {topic}", "{topic}, Once More"),
)
ORDINALS = ("first", "second", "third")


def title_of(poem: Poem, dialogue: Dialogue) -> str:
    """A title for a poem; the season stands in it only where the topic has one."""
    patterns = [title for title in TITLES if poem.topic.season != "any" or "{season}" not in title]
    if poem.topic.phrase == poem.topic.season:
        patterns = [title for title in patterns if "{season}" not in title]
    return title_case(dialogue.rng.choice(patterns).format(topic=poem.topic.phrase, season=poem.topic.season))


def as_json(poem: Poem, title: str) -> str:
    """The poem as the JSON object that people ask for."""
    return json.dumps({"title": title, "lines": list(poem.lines), "season": poem.topic.season})


def _write(dialogue: Dialogue, task: str, topic: Topic) -> None:
    dialogue.reply(task, dialogue.compose(topic).text, topic)


def ask_haiku(dialogue: Dialogue) -> None:
    """A haiku about a topic."""
    topic = dialogue.pick_topic()
    dialogue.ask("haiku", topic=spoken(topic, dialogue.rng))
    _write(dialogue, "haiku", topic)


def ask_open(dialogue: Dialogue) -> None:
    """A haiku about anything."""
    dialogue.ask("haiku.open")
    poem = dialogue.compose(dialogue.rng.choice(dialogue.topics))
    dialogue.reply("open", poem.text)


def ask_titled(dialogue: Dialogue) -> None:
    """A haiku under a title."""
    topic = dialogue.pick_topic()
    dialogue.ask("haiku.title", topic=spoken(topic, dialogue.rng))
    poem = dialogue.compose(topic)
    dialogue.reply("titled", f"{title_of(poem, dialogue)}\n\n{poem.text}", topic)


def ask_json(dialogue: Dialogue) -> None:
    """A haiku as a JSON object."""
    topic = dialogue.pick_topic()
    dialogue.ask("haiku.json", topic=spoken(topic, dialogue.rng))
    poem = dialogue.compose(topic)
    dialogue.reply("json", as_json(poem, title_of(poem, dialogue)), topic)


def ask_another(dialogue: Dialogue) -> None:
    """A second haiku on the topic of the last one."""
    dialogue.ask("another")
    _write(dialogue, "another", dialogue.poems[-1].topic)


def ask_change(dialogue: Dialogue) -> None:
    """A haiku on something else instead."""
    topic = dialogue.pick_topic()
    dialogue.ask("change", topic=spoken(topic, dialogue.rng))
    _write(dialogue, "change", topic)


def ask_title(dialogue: Dialogue) -> None:
    """A title for the last poem."""
    dialogue.ask("title")
    poem = dialogue.poems[-1]
    dialogue.reply("title", title_of(poem, dialogue), poem.topic)


def turn_to_json(dialogue: Dialogue) -> None:
    """The last poem as JSON."""
    dialogue.ask("json")
    poem = dialogue.poems[-1]
    dialogue.reply("to_json", as_json(poem, title_of(poem, dialogue)), poem.topic)


def repeat_line(dialogue: Dialogue) -> None:
    """One line of the last poem, word for word."""
    line = dialogue.rng.randrange(3)
    dialogue.ask("repeat.line", **line_names(dialogue, line))
    dialogue.reply("repeat_line", dialogue.poems[-1].lines[line])


def repeat_poem(dialogue: Dialogue) -> None:
    """The last poem, word for word."""
    dialogue.ask("repeat.poem")
    dialogue.reply("repeat_poem", dialogue.poems[-1].text)


def repeat_about(dialogue: Dialogue) -> None:
    """An earlier poem of the conversation, word for word: the last one on its topic."""
    poem = dialogue.rng.choice(dialogue.poems)
    last = [other for other in dialogue.poems if other.topic == poem.topic][-1]
    dialogue.ask("repeat.about", topic=spoken(poem.topic, dialogue.rng))
    dialogue.poems.append(last)
    dialogue.reply("repeat_about", last.text)


@functools.cache
def _exchangeable() -> dict[str, tuple[str, ...]]:
    """For each content word, those of the same sort and as many syllables."""
    lexicon = load_lexicon()
    sorts = (
        [entry.word for entry in lexicon.adjectives],
        [noun.word for noun in lexicon.nouns],
        [noun.plural for noun in lexicon.nouns if noun.plural],
        [verb.forms["s"][0] for verb in lexicon.verbs if verb.objects is None],
    )
    found: dict[str, tuple[str, ...]] = {}
    for words in sorts:
        by_syllables: dict[int, list[str]] = {}
        for word in dict.fromkeys(words):
            by_syllables.setdefault(lexicon.syllables[word], []).append(word)
        for group in by_syllables.values():
            found |= dict.fromkeys(group, tuple(group))
    return found


def replace_word(dialogue: Dialogue) -> None:
    """The last poem with one word changed for another of as many syllables and of its sort."""
    poem = dialogue.poems[-1]
    words = words_of(poem.text)
    candidates = [
        word for word in words if words.count(word) == 1 and word not in poem.topic.phrase.split()
        and not set(_exchangeable().get(word, ())) <= set(words)
    ]  # fmt: skip
    if not candidates:
        repeat_poem(dialogue)
        return
    old = dialogue.rng.choice(candidates)
    new = dialogue.rng.choice([word for word in _exchangeable()[old] if word not in words])
    dialogue.ask("replace", old=old, new=new)
    lines = tuple(
        " ".join(token.replace(old, new) if words_of(token) == [old] else token for token in line.split())
        for line in poem.lines
    )
    dialogue.poems.append(Poem(poem.topic, lines))
    dialogue.reply("replace", dialogue.poems[-1].text)


def line_syllables(dialogue: Dialogue) -> None:
    """How many syllables a line of the last poem has."""
    line = dialogue.rng.randrange(3)
    dialogue.ask("syllables.line", **line_names(dialogue, line))
    count = (5, 7, 5)[line]
    slots = {"Ordinal": ORDINALS[line].title(), "count": NUMBER_WORDS[count], "line": dialogue.poems[-1].lines[line]}
    dialogue.reply("line_syllables", answer("syllables.line", dialogue.rng, **slots))


def edge_word(dialogue: Dialogue) -> None:
    """The first or last word of a line of the last poem."""
    line, section = dialogue.rng.randrange(3), dialogue.rng.choice(("first.word", "last.word"))
    words = words_of(dialogue.poems[-1].lines[line])
    dialogue.ask(section, **line_names(dialogue, line))
    word = words[0] if section == "first.word" else words[-1]
    dialogue.reply("edge_word", answer(section, dialogue.rng, ordinal=ORDINALS[line], word=word))


def count_lines(dialogue: Dialogue) -> None:
    """How many lines the last poem has."""
    dialogue.ask("count.lines")
    dialogue.reply("count_lines", answer("count.lines", dialogue.rng))


def line_names(dialogue: Dialogue, line: int) -> dict[str, object]:
    """What a line is called: its ordinal (the third also "last") and its number."""
    ordinal = "last" if line == 2 and dialogue.rng.random() < 0.4 else ORDINALS[line]
    return {"ordinal": ordinal, "Ordinal": ordinal.title(), "number": line + 1}
