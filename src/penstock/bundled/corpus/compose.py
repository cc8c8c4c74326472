"""Haiku: three patterns, each filled so that its line has exactly its syllables.

How a line is filled: the candidates of each slot are counted by syllables; a table from the last slot to the first
holds the total weight of all ways to reach the rest of the line; walking it forward draws one filling in proportion to
its weight. So no filling is tried in vain, and whether a pattern fits at all is known from the first entry.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import random
from dataclasses import dataclass

from penstock.bundled.corpus.checks import HAIKU, words_of
from penstock.bundled.corpus.inflection import VOWELS
from penstock.bundled.corpus.lexicon import KINDS, SEASONS, Form, Noun, Topic, load_lexicon
from penstock.bundled.corpus.patterns import ROLES, VARIABLES, Literal, Pattern, Slot, load_patterns

VERB_FORMS: dict[str, Form] = {"verbs": "s", "verb": "base", "verbing": "ing", "past": "past"}
PLURAL_OF = {"is": "are", "was": "were", "has": "have", "does": "do", "isn't": "aren't"}
# Spelled with a vowel, spoken with a consonant.
CONSONANT_SOUND = ("uni", "use", "usu", "one", "once", "eu")
# How much likelier the words of a topic's own scenes are, and which line names the topic how often.
SCENE_FACTOR = 8.0
RANK_OFFSET = 4
SPREAD = 16.0
# Patterns differ less: a favourite would be noticed at once.
PATTERN_EVENNESS = 0.4
TOPIC_LINE_WEIGHTS = (0.45, 0.35, 0.20)
TRIES = 400


@dataclass(frozen=True)
class Poem:
    """A haiku, what it was asked to be about, and its title once it has one."""

    topic: Topic
    lines: tuple[str, ...]
    title: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class _Choices:
    """Words of equal syllables with their running weights."""

    words: tuple[str, ...]
    running: tuple[float, ...]

    def draw(self, rng: random.Random) -> str:
        return self.words[bisect.bisect(self.running, rng.random() * self.running[-1])]


def _taste(text: str) -> float:
    """A fixed preference between 1/SPREAD and SPREAD: as in any language, some words are common and most are rare."""
    digest = hashlib.blake2b(text.encode(), digest_size=2).digest()
    return float(SPREAD ** (int.from_bytes(digest) / 32768 - 1))


def _out_of_season(noun: Noun, season: str) -> bool:
    own = noun.scenes & set(SEASONS)
    return season != "any" and bool(own) and season not in own


def _nouns(category: str, kinds: frozenset[str], scenes: frozenset[str], season: str) -> list[tuple[str, int, float]]:
    found = []
    for rank, noun in enumerate(noun for noun in load_lexicon().nouns if noun.kind in kinds):
        if _out_of_season(noun, season) or (noun.plural is None) != (category == "mass"):
            continue
        weight = _taste(noun.word) / (rank + RANK_OFFSET) * (SCENE_FACTOR if noun.scenes & scenes else 1.0)
        if category == "nouns":
            assert noun.plural is not None
            found.append((noun.plural, noun.plural_syllables, weight))
        else:
            found.append((noun.word, noun.syllables, weight))
    return found


def _verbs(category: str, kinds: frozenset[str], objects: frozenset[str] | None) -> list[tuple[str, int]]:
    form = VERB_FORMS[category]
    return [
        verb.forms[form]
        for verb in load_lexicon().verbs
        if verb.subjects & kinds and (verb.objects is None) == (objects is None)
        if objects is None or (verb.objects or frozenset()) & objects
    ]


@functools.lru_cache(maxsize=65536)
def _candidates(
    category: str, kinds: frozenset[str], objects: frozenset[str] | None, scenes: frozenset[str], season: str
) -> dict[int, _Choices]:
    """Words for a slot by their syllables."""
    if category in ("noun", "nouns", "mass"):
        weighted = _nouns(category, kinds, scenes, season)
    else:
        lexicon = load_lexicon()
        if category == "adj":
            words = [(entry.word, entry.syllables) for entry in lexicon.adjectives if entry.kinds & kinds]
        elif category == "adv":
            words = list(lexicon.adverbs)
        else:
            words = _verbs(category, kinds, objects)
        weighted = [(word, count, _taste(word) / (rank + RANK_OFFSET)) for rank, (word, count) in enumerate(words)]
    by_count: dict[int, list[tuple[str, float]]] = {}
    for word, count, weight in weighted:
        by_count.setdefault(count, []).append((word, weight))
    return {
        count: _Choices(
            tuple(word for word, _ in entries), tuple(itertools.accumulate(weight for _, weight in entries))
        )
        for count, entries in by_count.items()
    }


@functools.lru_cache(maxsize=4096)
def _variables(pattern: Pattern) -> tuple[str, ...]:
    names = {name for part in pattern.parts if isinstance(part, Slot) for name in (*part.kinds, *part.objects)}
    return tuple(sorted(names & VARIABLES))


def _kinds_of(names: tuple[str, ...], topic: Topic, bound: dict[str, str]) -> frozenset[str]:
    return frozenset(topic.kind if name == "topic" else bound.get(name, name) for name in names)


def _options(pattern: Pattern, topic: Topic, bound: dict[str, str]) -> list[dict[int, _Choices]]:
    """For each part of the line, its possible words by syllables."""
    options: list[dict[int, _Choices]] = []
    for position, part in enumerate(pattern.parts):
        if isinstance(part, Literal):
            text = part.text
            follows = pattern.parts[position - 1] if position else None
            if topic.number == "plural" and isinstance(follows, Slot) and follows.category == "topic":
                text = PLURAL_OF.get(text, text)
            options.append({part.syllables: _Choices((text,), (1.0,))})
        elif part.category == "topic":
            options.append({topic.syllables: _Choices((topic.phrase,), (1.0,))})
        else:
            category = part.category
            agrees = part.kinds == ("topic",) and topic.number == "plural" and pattern.topic_numbers is not None
            if category == "verbs" and agrees:
                category = "verb"
            kinds = _kinds_of(part.kinds, topic, bound)
            objects = _kinds_of(part.objects, topic, bound) if part.objects else None
            options.append(_candidates(category, kinds, objects, topic.scenes, topic.season))
    return options


def _draw(options: list[dict[int, _Choices]], syllables: int, rng: random.Random) -> list[str] | None:
    """One word for each part, `syllables` in all; None where that can't be reached."""
    # rest[i][s]: total weight of all fillings of the parts from i on with s syllables.
    rest: list[dict[int, float]] = [{0: 1.0}]
    for choices in reversed(options):
        sums: dict[int, float] = {}
        for count, entries in choices.items():
            for behind, weight in rest[-1].items():
                if count + behind <= syllables:
                    sums[count + behind] = sums.get(count + behind, 0.0) + entries.running[-1] * weight
        rest.append(sums)
    rest.reverse()
    if syllables not in rest[0]:
        return None
    words: list[str] = []
    left = syllables
    for position, choices in enumerate(options):
        reachable = rest[position + 1]
        counts = [count for count in choices if left - count in reachable]
        weights = [choices[count].running[-1] * reachable[left - count] for count in counts]
        chosen = rng.choices(counts, weights)[0]
        words.append(choices[chosen].draw(rng))
        left -= chosen
    return words


def takes_an(word: str) -> bool:
    """Whether the article before this word is "an"."""
    return word[:1] in VOWELS and not word.startswith(CONSONANT_SOUND)


def _join(pattern: Pattern, words: list[str]) -> str:
    words = list(words)
    for position, (word, follower) in enumerate(itertools.pairwise(words)):
        if word in ("a", "an"):
            words[position] = "an" if takes_an(follower) else "a"
    return " ".join(part.before + word + part.after for part, word in zip(pattern.parts, words, strict=True))


def compose_line(pattern: Pattern, syllables: int, topic: Topic, rng: random.Random) -> str | None:
    """A filled line; None where this pattern can't have that many syllables with this topic."""
    bound = {name: rng.choice(KINDS) for name in _variables(pattern)}
    words = _draw(_options(pattern, topic, bound), syllables, rng)
    return None if words is None else _join(pattern, words)


@functools.lru_cache(maxsize=8192)
def _patterns_for(role: str, topic: Topic, with_topic: bool) -> tuple[tuple[Pattern, ...], tuple[float, ...]]:
    fitting = tuple(
        pattern
        for pattern in load_patterns()
        if pattern.role == role and (pattern.fits(topic) if with_topic else pattern.topic_numbers is None)
    )
    return fitting, tuple(itertools.accumulate(_taste(pattern.text) ** PATTERN_EVENNESS for pattern in fitting))


def compose(topic: Topic, rng: random.Random) -> Poem:
    """A haiku that names its topic in one of its lines and uses no word of more than three letters twice.

    Raises ValueError where no pattern has room for the topic.
    """
    topic_line = rng.choices(range(3), TOPIC_LINE_WEIGHTS)[0]
    lines: list[str] = []
    own = frozenset(topic.phrase.split())
    used = set(own)
    for _ in range(TRIES):
        role = len(lines)
        fitting, running = _patterns_for(ROLES[role], topic, role == topic_line)
        pattern = rng.choices(fitting, cum_weights=running)[0]
        line = compose_line(pattern, HAIKU[role], topic, rng)
        if line is None:
            continue
        fresh = [word for word in words_of(line) if len(word) > 3]
        if role == topic_line:
            fresh = [word for word in fresh if word not in own]
        if len(set(fresh)) < len(fresh) or used & set(fresh):
            continue
        used.update(fresh)
        lines.append(line)
        if len(lines) == 3:
            return Poem(topic, tuple(lines))
    raise ValueError(f"No pattern has room for {topic.phrase!r} in line {len(lines) + 1}.")
