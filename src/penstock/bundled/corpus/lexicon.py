"""The word lists: nouns, verbs, adjectives, adverbs and topics with their syllables, kinds and scenes.

A noun has one *kind* (what sort of thing it is; it decides which verbs and adjectives suit it) and a few *scenes*
(where it belongs). The files are in `data/`; their formats are described in `data/README.md`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal, cast, get_args

from penstock.bundled.corpus import inflection

KINDS = (
    *("bird", "bug", "beast", "fish", "tree", "flower", "plant", "water", "weather", "light"),
    *("land", "place", "thing", "machine", "food", "person", "sound", "time", "feeling"),
)
SEASONS = ("spring", "summer", "autumn", "winter")
SCENES = frozenset(
    (
        *SEASONS,
        *("sea", "river", "pond", "forest", "mountain", "field", "garden", "sky", "night", "city", "home", "kitchen"),
        *("temple", "road", "festival", "school", "work", "music", "market", "harbor", "desert"),
    )
)

Number = Literal["count", "mass", "plural"]
Form = Literal["s", "base", "ing", "past"]


class LexiconError(ValueError):
    """A data file says something that can't be; the message names the file and the entry."""


@dataclass(frozen=True)
class Noun:
    """A noun; `plural` is None for mass nouns."""

    word: str
    syllables: int
    kind: str
    scenes: frozenset[str]
    plural: str | None
    plural_syllables: int


@dataclass(frozen=True)
class Verb:
    """A verb with its four forms, the kinds that can be its subject, and, where transitive, its object."""

    forms: Mapping[Form, tuple[str, int]]
    subjects: frozenset[str]
    objects: frozenset[str] | None


@dataclass(frozen=True)
class Adjective:
    """An adjective and the kinds that it suits."""

    word: str
    syllables: int
    kinds: frozenset[str]


@dataclass(frozen=True)
class Topic:
    """What a poem can be asked to be about."""

    phrase: str
    kind: str
    number: Number
    season: str
    scenes: frozenset[str]
    syllables: int


@dataclass(frozen=True)
class Lexicon:
    """All lists, each in the order of its file: the more useful word first."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    adverbs: tuple[tuple[str, int], ...]
    topics: tuple[Topic, ...]
    heldout_topics: tuple[Topic, ...]
    syllables: Mapping[str, int]


def data_lines(name: str) -> Iterator[str]:
    """Lines of a data file without comments and blanks."""
    text = (resources.files(__package__) / "data" / name).read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def _fields(line: str, name: str, least: int, most: int) -> list[str]:
    fields = [field.strip() for field in line.split("|")]
    if not least <= len(fields) <= most:
        raise LexiconError(f"{name}: {line!r} has {len(fields)} fields, not {least} to {most}.")
    return fields


def _known(words: Iterable[str], allowed: Iterable[str], name: str, line: str) -> frozenset[str]:
    found, known = frozenset(words), frozenset(allowed)
    if not found or not found <= known:
        raise LexiconError(
            f"{name}: {line!r} names {sorted(found - known) or 'nothing'}, which is not in its fixed list."
        )
    return found


def _options(text: str, name: str, line: str, allowed: Iterable[str]) -> dict[str, tuple[str, int]]:
    """FORM:SYLLABLES of each option such as `plural=geese:1`."""
    found = {}
    for option in text.split():
        key, _, value = option.partition("=")
        form, _, count = value.partition(":")
        if key not in allowed or not form or not count.isdigit():
            raise LexiconError(f"{name}: {line!r} has the option {option!r}; write NAME=FORM:SYLLABLES.")
        found[key] = (form, int(count))
    return found


def _noun(line: str, name: str) -> Noun:
    head, scenes, *rest = _fields(line, name, 2, 3)
    word, count, kind = head.split()
    _known([kind], KINDS, name, line)
    options = rest[0].split() if rest else []
    mass = "mass" in options
    forms = _options(" ".join(option for option in options if option != "mass"), name, line, ["plural"])
    plural, plural_count = forms.get("plural") or inflection.add_s(word, int(count))
    return Noun(
        word, int(count), kind, _known(scenes.split(), SCENES, name, line), None if mass else plural, plural_count
    )


def _verb(line: str, name: str) -> Verb:
    head, kinds, *rest = _fields(line, name, 2, 3)
    base, text = head.split()
    count = int(text)
    subjects, _, objects = kinds.partition(">")
    given = _options(rest[0] if rest else "", name, line, ("s", "ing", "past"))
    forms: dict[Form, tuple[str, int]] = {
        "base": (base, count),
        "s": given.get("s") or inflection.third_person(base, count),
        "ing": given.get("ing") or inflection.add_ing(base, count),
        "past": given.get("past") or inflection.add_ed(base, count),
    }
    return Verb(
        forms,
        _known(subjects.split(), KINDS, name, line),
        _known(objects.split(), KINDS, name, line) if objects.strip() else None,
    )


def _adjective(line: str, name: str) -> Adjective:
    head, kinds = _fields(line, name, 2, 2)
    word, count = head.split()
    return Adjective(word, int(count), frozenset(KINDS) if kinds == "*" else _known(kinds.split(), KINDS, name, line))


def _topic(line: str, name: str, syllables: Mapping[str, int]) -> Topic:
    phrase, rest = _fields(line, name, 2, 2)
    kind, number, season, *scenes = rest.split()
    _known([kind], KINDS, name, line)
    _known([season], (*SEASONS, "any"), name, line)
    if number not in get_args(Number):
        raise LexiconError(f"{name}: {line!r} has the number {number!r}; use count, mass or plural.")
    unknown = [word for word in phrase.split() if word not in syllables]
    if unknown:
        raise LexiconError(f"{name}: nothing tells the syllables of {unknown[0]!r} in {line!r}.")
    count = sum(syllables[word] for word in phrase.split())
    return Topic(phrase, kind, cast(Number, number), season, _known(scenes, SCENES, name, line), count)


def _counted(line: str) -> tuple[str, int]:
    word, count = line.split()
    return word, int(count)


def _collect_syllables(entries: Iterable[tuple[str, int]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word, count in entries:
        if counts.setdefault(word, count) != count:
            raise LexiconError(f"{word!r} has {counts[word]} syllables in one list and {count} in another.")
    return counts


@functools.cache
def load_lexicon() -> Lexicon:
    """Read all lists once. Raises LexiconError where they contradict themselves."""
    nouns = tuple(_noun(line, name) for name in ("nouns_living.txt", "nouns_world.txt") for line in data_lines(name))
    verbs = tuple(_verb(line, "verbs.txt") for line in data_lines("verbs.txt"))
    adjectives = tuple(_adjective(line, "adjectives.txt") for line in data_lines("adjectives.txt"))
    adverbs = tuple(_counted(line) for line in data_lines("adverbs.txt"))
    entries: list[tuple[str, int]] = [(noun.word, noun.syllables) for noun in nouns]
    entries += [(noun.plural, noun.plural_syllables) for noun in nouns if noun.plural]
    entries += [form for verb in verbs for form in verb.forms.values()]
    entries += [(adjective.word, adjective.syllables) for adjective in adjectives]
    entries += adverbs
    for name in ("words.txt", "words_patterns.txt", "words_heldout.txt"):
        entries += [_counted(line) for line in data_lines(name)]
    syllables = _collect_syllables(entries)
    topics, heldout = (
        tuple(_topic(line, name, syllables) for line in data_lines(name))
        for name in ("topics.txt", "topics_heldout.txt")
    )
    return Lexicon(nouns, verbs, adjectives, adverbs, topics, heldout, syllables)
