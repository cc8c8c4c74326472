"""Turns that need no poem: what the generator knows, lists, small talk, refusals, and calls of functions."""

from __future__ import annotations

from typing import Any

from penstock.bundled.corpus.checks import count_syllables
from penstock.bundled.corpus.dialogue import NUMBER_WORDS, Dialogue, capitalized, is_held_out, spoken
from penstock.bundled.corpus.lexicon import load_lexicon
from penstock.bundled.corpus.wordings import answer, request

LARGEST_ADDEND = 50


def _tool(name: str, parameter: str, description: str, about: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": properties, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


COUNT_SYLLABLES = _tool("count_syllables", "text", "Count the syllables of a text.", "The text to count.")
GET_SEASON = _tool("get_season", "topic", "Tell the season that a topic belongs to.", "The topic.")


def plural_s(count: int) -> str:
    """The ending of a noun behind a number."""
    return "" if count == 1 else "s"


def _pick_word(dialogue: Dialogue) -> str:
    words = [noun.word for noun in load_lexicon().nouns] + [entry.word for entry in load_lexicon().adjectives]
    while True:
        word = dialogue.rng.choice(words)
        if is_held_out("syllables", word) == (dialogue.split == "heldout"):
            return word


def syllables_of_word(dialogue: Dialogue) -> None:
    """How many syllables a word has, told from the dictionary or through the function, where it is offered."""
    word = _pick_word(dialogue)
    dialogue.ask("syllables.word", word=word)
    _tell_syllables(dialogue, word)


def syllables_of_line(dialogue: Dialogue) -> None:
    """How many syllables a line of the last poem has, through the function."""
    line = dialogue.rng.choice(dialogue.poems[-1].lines) if dialogue.poems else _pick_word(dialogue)
    dialogue.ask("syllables.word", word=f'"{line}"')
    _tell_syllables(dialogue, line)


def _tell_syllables(dialogue: Dialogue, text: str) -> None:
    count = count_syllables(text)
    assert count is not None
    if COUNT_SYLLABLES in dialogue.tools:
        dialogue.call("tool_call", "count_syllables", {"text": text}, {"syllables": count})
        said = answer("tool", dialogue.rng, text=text, count=NUMBER_WORDS[count], plural=plural_s(count))
        dialogue.reply("tool_answer", said)
    else:
        said = answer("syllables.word", dialogue.rng, word=text, count=NUMBER_WORDS[count], plural=plural_s(count))
        dialogue.reply("syllables", said)


def season_of_topic(dialogue: Dialogue) -> None:
    """Which season a topic belongs to."""
    topics = [topic for topic in dialogue.topics if topic.phrase != topic.season]
    seasonal = [topic for topic in topics if topic.season != "any"]
    topic = dialogue.rng.choice(seasonal if dialogue.rng.random() < 0.75 else topics)
    dialogue.ask("season", topic=spoken(topic, dialogue.rng))
    if GET_SEASON in dialogue.tools:
        dialogue.call("tool_call", "get_season", {"topic": topic.phrase}, {"season": topic.season})
    section = "season.any" if topic.season == "any" else "season"
    said = answer(section, dialogue.rng, Topic=capitalized(topic.phrase), season=topic.season)
    dialogue.reply("season", said)


def small_sum(dialogue: Dialogue) -> None:
    """A sum of two numbers up to 50; one pair in ten is never asked in training."""
    while True:
        first, second = dialogue.rng.randint(0, LARGEST_ADDEND), dialogue.rng.randint(0, LARGEST_ADDEND)
        if is_held_out("sum", *sorted((first, second))) == (dialogue.split == "heldout"):
            break
    dialogue.ask("sum", a=first, b=second)
    dialogue.reply("sum", answer("sum", dialogue.rng, a=first, b=second, sum=first + second))


def _items(dialogue: Dialogue) -> list[str]:
    words = [noun.word for noun in load_lexicon().nouns]
    return dialogue.rng.sample(words, dialogue.rng.randint(2, 7))


def echo_list(dialogue: Dialogue) -> None:
    """A list said back, an item a line."""
    items = _items(dialogue)
    dialogue.ask("echo", items=", ".join(items))
    dialogue.reply("echo", "\n".join(items))


def count_items(dialogue: Dialogue) -> None:
    """How many items a list has."""
    items = _items(dialogue)
    dialogue.ask("count.items", items=", ".join(items))
    dialogue.reply("count_items", answer("count.items", dialogue.rng, count=NUMBER_WORDS[len(items)]))


def no_poem_yet(dialogue: Dialogue) -> None:
    """Asked to change a poem before there is one."""
    section = dialogue.rng.choice(("another", "title", "json", "repeat.poem", "count.lines"))
    dialogue.ask(section)
    dialogue.reply("no_poem", answer("no.poem", dialogue.rng))


def _small_talk(dialogue: Dialogue, section: str) -> None:
    dialogue.ask(section)
    dialogue.reply(section, answer(section, dialogue.rng))


def hello(dialogue: Dialogue) -> None:
    """A greeting, and the answer to it."""
    _small_talk(dialogue, "hello")


def who(dialogue: Dialogue) -> None:
    """Who are you, what can you do."""
    _small_talk(dialogue, "who")


def thanks(dialogue: Dialogue) -> None:
    """Thanks or praise, and the answer."""
    _small_talk(dialogue, "thanks")


def bye(dialogue: Dialogue) -> None:
    """The end of a conversation."""
    _small_talk(dialogue, "bye")


def form(dialogue: Dialogue) -> None:
    """A question about what a haiku is, and the answer."""
    _small_talk(dialogue, "form")


def refuse(dialogue: Dialogue) -> None:
    """Something that the model can't do."""
    _small_talk(dialogue, "refuse")


def system_message(dialogue: Dialogue) -> None:
    """A system message, which tells of functions where some are offered."""
    section = "system.tools" if dialogue.tools else "system"
    dialogue.messages.append({"role": "system", "content": request(section, "train", dialogue.rng)})
