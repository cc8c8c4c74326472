"""A conversation while it is being made: its messages, its poems, its random numbers."""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.bundled.corpus.compose import Poem, compose
from penstock.bundled.corpus.lexicon import Number, Topic, load_lexicon
from penstock.bundled.corpus.wordings import Split, request

# Shares of the topics asked for in training: the list's, any noun, a noun with an adjective.
LISTED_SHARE, NOUN_SHARE = 0.35, 0.2
# What can be counted is asked for alone twice as often as in the plural.
COUNTABLE: tuple[Number, ...] = ("count", "count", "plural")
NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
TITLES = (
    *("{topic}", "{topic}", "{topic}", "{topic}", "Haiku on {about}", "{topic} in {season}", "{topic}, {season}"),
    *("For {about}", "Seeing {about}", "{topic} Again", "About {about}", "{topic} at Dusk", "{topic} at Dawn"),
    *("Thinking of {about}", "Only {about}", "{topic}, Once More"),
)
SMALL_WORDS = frozenset(("at", "in", "on", "of", "the", "a", "an", "and", "by", "for", "to"))


@dataclass(frozen=True)
class Conversation:
    """Messages as the chat API has them, the functions offered with them; of each of the model's turns what it is for.

    `topics` has for each of them the topic that it has to mention, if any.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    tasks: tuple[str, ...]
    topics: tuple[str | None, ...]


@dataclass
class Dialogue:
    """Grows turn by turn; `poems` are those of the model's answers, oldest first."""

    rng: random.Random
    split: Split
    topics: tuple[Topic, ...]
    tools: tuple[dict[str, Any], ...] = ()
    messages: list[dict[str, Any]] = field(default_factory=list)
    poems: list[Poem] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)

    def ask(self, section: str, **slots: object) -> None:
        """The person's turn: a wording of `section`, filled in."""
        self.messages.append({"role": "user", "content": request(section, self.split, self.rng, **slots)})

    def reply(self, task: str, content: str, topic: Topic | None = None) -> None:
        """The model's turn; `topic` is what its text must mention."""
        self.messages.append({"role": "assistant", "content": content})
        self._mark(task, topic)

    def call(self, task: str, name: str, arguments: Mapping[str, Any], result: Any) -> None:
        """The model calls a function, and the function answers."""
        function = {"name": name, "arguments": dict(arguments)}
        self.messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        self._mark(task, None)
        self.messages.append({"role": "tool", "content": json.dumps(result)})

    def _mark(self, task: str, topic: Topic | None) -> None:
        self.tasks.append(task)
        self.asked.append(topic.phrase if topic else None)

    def pick_topic(self) -> Topic:
        """A topic to ask for: in training also any noun, alone or with an adjective."""
        kind = self.rng.random()
        if self.split == "heldout" or kind < LISTED_SHARE:
            return self.rng.choice(self.topics)
        return noun_topic(self.rng, with_adjective=kind > LISTED_SHARE + NOUN_SHARE)

    def compose(self, topic: Topic, titled: bool = False) -> Poem:
        """A new poem that is not yet in this conversation."""
        earlier = {poem.lines for poem in self.poems}
        while (poem := compose(topic, self.rng)).lines in earlier:
            pass
        self.poems.append(poem)
        return self.entitle() if titled else poem

    def entitle(self) -> Poem:
        """The last poem with its title, which it gets where it has none yet."""
        poem = self.poems[-1]
        if poem.title is None:
            self.poems[-1] = poem = replace(poem, title=title_for(poem.topic, self.rng))
        return poem

    def finish(self) -> Conversation:
        """What has been said, frozen."""
        return Conversation(tuple(self.messages), self.tools, tuple(self.tasks), tuple(self.asked))


def noun_topic(rng: random.Random, with_adjective: bool) -> Topic:
    """A noun, perhaps with an adjective that suits it; the list's topic where the list has it."""
    lexicon = load_lexicon()
    while True:
        noun = rng.choice(lexicon.nouns)
        number: Number = "mass" if noun.plural is None else rng.choice(COUNTABLE)
        word = noun.plural if number == "plural" and noun.plural else noun.word
        count = noun.plural_syllables if number == "plural" else noun.syllables
        phrase = word
        if with_adjective:
            fitting = [entry for entry in lexicon.adjectives if noun.kind in entry.kinds and entry.word != word]
            adjective = rng.choice(fitting)
            phrase, count = f"{adjective.word} {word}", count + adjective.syllables
        if count <= 4:
            return _listed().get(phrase) or Topic(phrase, noun.kind, number, "any", noun.scenes, count)


@functools.cache
def _listed() -> dict[str, Topic]:
    return {topic.phrase: topic for topic in load_lexicon().topics}


def title_for(topic: Topic, rng: random.Random) -> str:
    """A title that suits the topic's number, kind and season."""
    words = topic.phrase.split()
    patterns = [
        title for title in TITLES
        if ("{season}" not in title or (topic.season != "any" and topic.season not in words))
        and not (topic.kind == "time" and title.endswith(("Dusk", "Dawn")))
    ]  # fmt: skip
    about = f"the {topic.phrase}" if topic.number == "count" else topic.phrase
    return title_case(rng.choice(patterns).format(topic=topic.phrase, about=about, season=topic.season))


def spoken(topic: Topic, rng: random.Random) -> str:
    """The topic as people put it into a sentence: with an article or without, now and then with a capital."""
    phrase = topic.phrase
    if topic.number == "count":
        article = "an" if phrase[0] in "aeiou" else "a"
        phrase = rng.choice((f"{article} {phrase}", f"{article} {phrase}", f"the {phrase}", phrase, f"my {phrase}"))
    elif rng.random() < 0.2:
        phrase = f"the {phrase}"
    return phrase.title() if rng.random() < 0.05 else phrase


def capitalized(text: str) -> str:
    """The first letter as a capital."""
    return text[:1].upper() + text[1:]


def title_case(text: str) -> str:
    """Capitals as titles have them."""
    words = text.split()
    return " ".join(word if index and word in SMALL_WORDS else capitalized(word) for index, word in enumerate(words))


def is_held_out(*parts: object) -> bool:
    """Whether a question about these things is kept out of training: one in ten, by a hash."""
    digest = hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=2).digest()
    return int.from_bytes(digest) % 10 == 0
