"""Turns about poems: asking for one, for another, for changes; quoting and editing them; JSON."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import replace

from penstock.bundled.corpus.checks import words_of
from penstock.bundled.corpus.compose import Poem, takes_an
from penstock.bundled.corpus.dialogue import NUMBER_WORDS, Dialogue, spoken
from penstock.bundled.corpus.lexicon import Topic, load_lexicon
from penstock.bundled.corpus.wordings import answer

ORDINALS = ("first", "second", "third")
# Tasks whose answers show a poem, or tell something of the last one.
ABOUT_A_POEM = frozenset(
    (
        *("haiku", "open", "titled", "another", "change", "replace", "json", "to_json", "title"),
        *("repeat_line", "repeat_poem", "repeat_about", "line_syllables", "edge_word", "count_lines"),
    )
)


def as_json(poem: Poem) -> str:
    """A poem that has a title as the JSON object that people ask for."""
    return json.dumps({"title": poem.title, "lines": list(poem.lines), "season": poem.topic.season})


def _write(dialogue: Dialogue, task: str, topic: Topic) -> None:
    dialogue.reply(task, dialogue.compose(topic).text, topic)


def ask_haiku(dialogue: Dialogue) -> None:
    """A haiku about a topic."""
    topic = dialogue.pick_topic()
    dialogue.ask("haiku", topic=spoken(topic, dialogue.rng))
    _write(dialogue, "haiku", topic)


def ask_open(dialogue: Dialogue) -> None:
    """A wish for a haiku about anything, and the poem."""
    dialogue.ask("haiku.open")
    poem = dialogue.compose(dialogue.rng.choice(dialogue.topics))
    dialogue.reply("open", poem.text)


def ask_titled(dialogue: Dialogue) -> None:
    """A haiku under a title."""
    topic = dialogue.pick_topic()
    dialogue.ask("haiku.title", topic=spoken(topic, dialogue.rng))
    poem = dialogue.compose(topic, titled=True)
    dialogue.reply("titled", f"{poem.title}\n\n{poem.text}", topic)


def ask_json(dialogue: Dialogue) -> None:
    """A haiku as a JSON object."""
    topic = dialogue.pick_topic()
    dialogue.ask("haiku.json", topic=spoken(topic, dialogue.rng))
    dialogue.reply("json", as_json(dialogue.compose(topic, titled=True)), topic)


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
    """The title of the last poem, which it gets now where it had none."""
    dialogue.ask("title")
    poem = dialogue.entitle()
    dialogue.reply("title", poem.title or "", poem.topic)


def turn_to_json(dialogue: Dialogue) -> None:
    """The last poem as JSON."""
    dialogue.ask("json")
    poem = dialogue.entitle()
    dialogue.reply("to_json", as_json(poem), poem.topic)


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
    last = [other for other in dialogue.poems if other.topic.phrase == poem.topic.phrase][-1]
    dialogue.ask("repeat.about", topic=spoken(poem.topic, dialogue.rng))
    dialogue.poems.append(last)
    dialogue.reply("repeat_about", last.text)


@functools.cache
def _exchangeable() -> dict[str, tuple[str, ...]]:
    """For each content word that is of one sort only, those of its sort, its syllables and its article (a or an)."""
    lexicon = load_lexicon()
    sorts = (
        [entry.word for entry in lexicon.adjectives],
        [noun.word for noun in lexicon.nouns if noun.plural],
        [noun.word for noun in lexicon.nouns if not noun.plural],
        [noun.plural for noun in lexicon.nouns if noun.plural],
        [verb.forms["s"][0] for verb in lexicon.verbs if verb.objects is None],
    )
    in_sorts = Counter(word for words in sorts for word in dict.fromkeys(words))
    found: dict[str, tuple[str, ...]] = {}
    for words in sorts:
        groups: dict[tuple[int, bool], list[str]] = {}
        for word in dict.fromkeys(words):
            if in_sorts[word] == 1:
                groups.setdefault((lexicon.syllables[word], takes_an(word)), []).append(word)
        for group in groups.values():
            found |= dict.fromkeys(group, tuple(group))
    return found


def replace_word(dialogue: Dialogue) -> None:
    """The last poem with a word changed for another of as many syllables and of its sort; as it is, if none can be."""
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
    dialogue.poems.append(replace(poem, lines=lines))
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
    return {"ordinal": ordinal, "number": line + 1}
