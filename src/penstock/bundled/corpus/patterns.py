"""Line patterns: literal words and slots such as `{adj/x}`, read from `data/patterns.txt`."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from penstock.bundled.corpus.lexicon import KINDS, LexiconError, Topic, data_lines, load_lexicon

ROLES = ("open", "middle", "close")
CATEGORIES = frozenset(("topic", "noun", "nouns", "mass", "adj", "adv", "verbs", "verb", "verbing", "past"))
VARIABLES = frozenset("xyz")
# Determiners that need something that can be counted, and those that go with everything.
COUNTING = frozenset(("a", "one", "each", "that"))
NEUTRAL = frozenset(("the", "this", "my", "our", "your", "his", "their", "its", "no", "whose", "own", "same"))
_TOKEN = re.compile(r"([^\w{]*)(\{[^}]*\}|[a-z']+|)([^\w}]*)")
_SLOT = re.compile(r"\{(\w+)(?:/([a-z|]+)(?:>([a-z|]+))?)?\}")


@dataclass(frozen=True)
class Literal:
    """A word that stands as it is, with its punctuation."""

    text: str
    syllables: int
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Slot:
    """A place for a word of a category; its kinds are names of kinds, one variable, or `topic`."""

    category: str
    kinds: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Pattern:
    """A line to fill; `topic_numbers` are the numbers that a topic may have in it, None where it has no topic."""

    role: str
    text: str
    parts: tuple[Literal | Slot, ...]
    topic_numbers: frozenset[str] | None

    def fits(self, topic: Topic) -> bool:
        """Whether the line has a place for this topic."""
        return self.topic_numbers is not None and topic.number in self.topic_numbers


def parse_pattern(role: str, text: str) -> Pattern:
    """Raises LexiconError where a slot is unknown or the syllables of a word are."""
    parts = tuple(_part(token, text) for token in text.split())
    topics = [index for index, part in enumerate(parts) if isinstance(part, Slot) and part.category == "topic"]
    if len(topics) > 1:
        raise LexiconError(f"patterns.txt: {text!r} has more than one {{topic}}.")
    return Pattern(role, text, parts, _numbers(parts, topics[0]) if topics else None)


def _part(token: str, text: str) -> Literal | Slot:
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise LexiconError(f"patterns.txt: {token!r} in {text!r} is neither a word nor a slot.")
    before, core, after = match.groups()
    if not core.startswith("{"):
        if core and core not in load_lexicon().syllables:
            raise LexiconError(f"patterns.txt: nothing tells the syllables of {core!r} in {text!r}.")
        return Literal(core, load_lexicon().syllables[core] if core else 0, before, after)
    slot = _SLOT.fullmatch(core)
    if slot is None or slot[1] not in CATEGORIES:
        raise LexiconError(f"patterns.txt: {core!r} in {text!r} is no slot.")
    kinds, objects = (tuple(group.split("|")) if group else () for group in slot.groups()[1:])
    for names in (kinds, objects):
        single = len(names) == 1 and (names[0] in VARIABLES or names[0] == "topic")
        if names and not single and not set(names) <= set(KINDS):
            raise LexiconError(f"patterns.txt: {core!r} in {text!r} names kinds that do not exist.")
    if bool(kinds) != (slot[1] not in ("topic", "adv")):
        raise LexiconError(f"patterns.txt: {core!r} in {text!r} needs a kind, or must not have one.")
    return Slot(slot[1], kinds, objects, before, after)


def _numbers(parts: tuple[Literal | Slot, ...], index: int) -> frozenset[str]:
    """What the determiner before the topic, or before its adjectives, lets the topic be."""
    before = index - 1
    while before >= 0 and isinstance(part := parts[before], Slot) and part.category == "adj":
        before -= 1
    determiner = parts[before] if before >= 0 else None
    word = determiner.text if isinstance(determiner, Literal) else ""
    if word in COUNTING:
        return frozenset(("count",))
    if word in NEUTRAL:
        return frozenset(("count", "mass", "plural"))
    return frozenset(("mass", "plural"))


@functools.cache
def load_patterns() -> tuple[Pattern, ...]:
    """All patterns of the data file, in its order. Raises LexiconError."""
    role, found = "", []
    for line in data_lines("patterns.txt"):
        if line.startswith("["):
            role = line.strip("[]")
            if role not in ROLES:
                raise LexiconError(f"patterns.txt: there is no role {role!r}.")
        else:
            found.append(parse_pattern(role, line))
    return tuple(found)
