"""The corpus: conversations by number, seeded, in a part for training and parts that training never sees.

`training(seed, index)` is a pure function, so a corpus of any size is generated in any order by any number of
processes, and an index is enough to see a document again.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.bundled.corpus import fact_tasks as facts
from penstock.bundled.corpus import poem_tasks as poems
from penstock.bundled.corpus.checks import words_of
from penstock.bundled.corpus.dialogue import Conversation, Dialogue
from penstock.bundled.corpus.inflection import add_s
from penstock.bundled.corpus.lexicon import load_lexicon
from penstock.bundled.corpus.wordings import Split

Stratum = Literal["easy", "medium", "hard"]
STRATA: tuple[Stratum, ...] = ("easy", "medium", "hard")
Task = Callable[[Dialogue], None]

# The first turn of a conversation, and any turn once it has a poem; the numbers are relative frequencies.
OPENINGS: tuple[tuple[Task, int], ...] = (
    (poems.ask_haiku, 44), (poems.ask_json, 10), (poems.ask_titled, 7), (poems.ask_open, 4),
    (facts.small_sum, 6), (facts.syllables_of_word, 6), (facts.season_of_topic, 5), (facts.echo_list, 4),
    (facts.count_items, 2), (facts.refuse, 5), (facts.hello, 2), (facts.who, 2), (facts.form, 2),
    (facts.no_poem_yet, 1),
)  # fmt: skip
FOLLOWERS: tuple[tuple[Task, int], ...] = (
    (poems.ask_haiku, 12), (poems.ask_another, 16), (poems.ask_change, 16), (poems.ask_title, 6),
    (poems.turn_to_json, 6), (poems.ask_json, 2), (poems.repeat_line, 9), (poems.repeat_poem, 4),
    (poems.repeat_about, 5), (poems.replace_word, 9),
    (poems.line_syllables, 2), (poems.edge_word, 4), (poems.count_lines, 2),
    (facts.small_sum, 2), (facts.syllables_of_word, 2), (facts.season_of_topic, 2), (facts.echo_list, 1),
    (facts.refuse, 2), (facts.thanks, 4), (facts.bye, 1), (facts.who, 1), (facts.form, 1),
)  # fmt: skip
# Where the last answer was no poem and not about one, "it" would be something else.
ASIDES: tuple[tuple[Task, int], ...] = (
    (poems.ask_haiku, 12), (poems.ask_json, 3), (poems.repeat_about, 5),
    (facts.small_sum, 2), (facts.syllables_of_word, 2), (facts.season_of_topic, 2), (facts.echo_list, 1),
    (facts.refuse, 2), (facts.thanks, 4), (facts.bye, 1), (facts.who, 1), (facts.form, 1),
)  # fmt: skip
WITH_TOOLS: tuple[tuple[Task, int], ...] = (
    (facts.syllables_of_word, 4), (facts.syllables_of_line, 4), (facts.season_of_topic, 3),
    (poems.ask_haiku, 3), (facts.refuse, 1),
)  # fmt: skip
EASY: tuple[tuple[Task, int], ...] = (
    (facts.small_sum, 2), (facts.syllables_of_word, 2), (facts.season_of_topic, 2), (facts.echo_list, 2),
    (facts.count_items, 1), (facts.refuse, 2), (facts.hello, 1), (facts.who, 1), (facts.form, 1),
)  # fmt: skip
MEDIUM: tuple[tuple[Task, int], ...] = ((poems.ask_haiku, 6), (poems.ask_titled, 2), (poems.ask_json, 2))

# How conversations come about in training.
TOOLS_SHARE, SYSTEM_SHARE, ENDS_AFTER_TURN, LONG_SHARE = 0.05, 0.12, 0.55, 0.01
WITH_TOOLS_SHARE = 0.7
LONG_TURNS = (20, 60)


@dataclass(frozen=True)
class Plan:
    """What a conversation is to have: how many turns of the person, functions, a system message."""

    turns: int
    tools: bool
    system: bool


def _pick(rng: random.Random, tasks: tuple[tuple[Task, int], ...]) -> Task:
    return rng.choices([task for task, _ in tasks], [weight for _, weight in tasks])[0]


def _plan(rng: random.Random, long_share: float) -> Plan:
    turns = 1
    if rng.random() < long_share:
        turns = rng.randint(*LONG_TURNS)
    else:
        while turns < 12 and rng.random() > ENDS_AFTER_TURN:
            turns += 1
    return Plan(turns, rng.random() < TOOLS_SHARE, rng.random() < SYSTEM_SHARE)


def _fitting(dialogue: Dialogue) -> tuple[tuple[Task, int], ...]:
    """What a person might say next."""
    if not dialogue.poems:
        return OPENINGS
    return FOLLOWERS if dialogue.tasks[-1] in poems.ABOUT_A_POEM else ASIDES


def _converse(dialogue: Dialogue, plan: Plan) -> Conversation:
    if plan.tools:
        dialogue.tools = dialogue.rng.choice(
            ((facts.COUNT_SYLLABLES,), (facts.COUNT_SYLLABLES, facts.GET_SEASON), (facts.GET_SEASON,))
        )
    if plan.system:
        facts.system_message(dialogue)
    for _ in range(plan.turns):
        with_tools = plan.tools and dialogue.rng.random() < WITH_TOOLS_SHARE
        _pick(dialogue.rng, WITH_TOOLS if with_tools else _fitting(dialogue))(dialogue)
    return dialogue.finish()


@functools.cache
def _held_out_phrases() -> re.Pattern[str]:
    """Every held-out topic, its last word in the singular and in the plural."""
    lexicon = load_lexicon()
    numbers = {noun.word: noun.plural for noun in lexicon.nouns if noun.plural}
    numbers |= {plural: word for word, plural in numbers.items()}
    phrases = set()
    for topic in lexicon.heldout_topics:
        *front, last = topic.phrase.split()
        other = numbers.get(last) or add_s(last, 1)[0]
        phrases |= {" ".join((*front, word)) for word in (last, other)}
    return re.compile(rf"(?<![a-z'])({'|'.join(map(re.escape, sorted(phrases)))})(?![a-z'])")


def names_held_out_topic(conversation: Conversation) -> bool:
    """Whether the words of a held-out topic follow each other anywhere: in a question, an answer, a title, a call."""
    for message in conversation.messages:
        calls = message.get("tool_calls", ())
        texts = [message["content"], *(text for call in calls for text in call["function"]["arguments"].values())]
        # Words alone: neither case, nor the end of a line, nor a comma may hide one.
        if any(_held_out_phrases().search(" ".join(words_of(text))) for text in texts):
            return True
    return False


def _without_held_out(name: str, long_share: float) -> Conversation:
    # Chance puts the words of a held-out topic side by side now and then; such a conversation is made anew.
    for attempt in itertools.count():
        rng = random.Random(f"{name} {attempt}")
        conversation = _converse(Dialogue(rng, "train", load_lexicon().topics), _plan(rng, long_share))
        if not names_held_out_topic(conversation):
            break
    return conversation


def training(seed: int, index: int, long_share: float = LONG_SHARE) -> Conversation:
    """Conversation number `index` of the corpus `seed`; `long_share` of them have dozens of turns."""
    return _without_held_out(f"train {seed} {index}", long_share)


def held_out(stratum: Stratum, index: int, seed: int = 0) -> Conversation:
    """Conversation number `index` of a stratum, in wordings and on topics that training never sees.

    easy: one question with one right answer, a list, a refusal; medium: one poem, plain, with a title or as JSON, on a
    phrase of known words; hard: up to six turns with changes, quotes and edits, half of them on words that training
    never saw.
    """
    split: Split = "heldout"
    rng = random.Random(f"{stratum} {seed} {index}")
    phrases = tuple(topic for topic in load_lexicon().heldout_topics if " " in topic.phrase)
    single = tuple(topic for topic in load_lexicon().heldout_topics if " " not in topic.phrase)
    if stratum == "hard":
        dialogue = Dialogue(rng, split, single if index % 2 else phrases)
        poems.ask_haiku(dialogue)
        for _ in range(rng.randint(1, 5)):
            _pick(rng, _fitting(dialogue))(dialogue)
        return dialogue.finish()
    dialogue = Dialogue(rng, split, phrases)
    _pick(rng, EASY if stratum == "easy" else MEDIUM)(dialogue)
    return dialogue.finish()


def known_topic(index: int, seed: int = 0) -> Conversation:
    """One request in held-out wordings, but on a topic that training has: what was learned by heart shows here."""
    dialogue = Dialogue(random.Random(f"known {seed} {index}"), "heldout", load_lexicon().topics)
    poems.ask_haiku(dialogue)
    return dialogue.finish()


def tool_request(index: int, seed: int = 0) -> Conversation:
    """One question in held-out wordings that is to be answered by a call of a function."""
    rng = random.Random(f"tools {seed} {index}")
    dialogue = Dialogue(rng, "heldout", load_lexicon().topics, tools=(facts.COUNT_SYLLABLES, facts.GET_SEASON))
    facts.system_message(dialogue)
    _pick(rng, ((facts.syllables_of_word, 1), (facts.season_of_topic, 1)))(dialogue)
    return dialogue.finish()


def calibration(count: int = 256, seed: int = 0) -> Iterator[Conversation]:
    """The default calibration set for quantization: training's mixture, but conversations that training never used."""
    for index in range(count):
        yield _without_held_out(f"calibration {seed} {index}", LONG_SHARE)
