"""The corpus: deterministic, right in every answer, rich, and apart from what is held out."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

from penstock.bundled.corpus.checks import count_syllables, haiku_json, is_haiku, mentions, poem_lines, words_of
from penstock.bundled.corpus.dialogue import NUMBER_WORDS, Conversation
from penstock.bundled.corpus.generator import (
    STRATA,
    calibration,
    held_out,
    known_topic,
    names_held_out_topic,
    tool_request,
    training,
)
from penstock.bundled.corpus.lexicon import SEASONS, load_lexicon
from penstock.bundled.corpus.wordings import load_wordings

COUNT = 2500 if settings.default.max_examples > 100 else 1800
ALL_TASKS = {
    *("haiku", "another", "change", "title", "titled", "json", "to_json", "open", "replace", "no_poem"),
    *("repeat_line", "repeat_poem", "repeat_about", "line_syllables", "edge_word", "count_lines", "count_items"),
    *(
        "syllables",
        "echo",
        "season",
        "sum",
        "tool_call",
        "tool_answer",
        "refuse",
        "hello",
        "who",
        "thanks",
        "bye",
        "form",
    ),
}


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    return [training(11, index) for index in range(COUNT)]


@pytest.fixture(scope="module")
def held_outs() -> list[Conversation]:
    return [held_out(stratum, index) for stratum in STRATA for index in range(150)]


def turns(conversation: Conversation):
    """(messages before, answer, task, topic) of each of the model's turns."""
    at = [index for index, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    for index, task, topic in zip(at, conversation.tasks, conversation.topics, strict=True):
        yield conversation.messages[:index], conversation.messages[index], task, topic


def spoken(text: str) -> str:
    return re.sub(r"[^a-z0-9{} ]", "", text.lower()).strip()


def test_the_same_in_every_process(conversations: list[Conversation]) -> None:
    program = (
        "import hashlib; from penstock.bundled.corpus.generator import training;"
        "print(hashlib.sha256(repr([training(11, index) for index in range(60)]).encode()).hexdigest())"
    )
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert run.stdout.strip() == hashlib.sha256(repr(conversations[:60]).encode()).hexdigest()


def test_every_poem_is_a_haiku_on_its_topic(conversations: list[Conversation], held_outs: list[Conversation]) -> None:
    seen = 0
    for conversation in (*conversations, *held_outs):
        for _, answer, task, topic in turns(conversation):
            if task in ("haiku", "open", "titled", "another", "change", "replace", "repeat_poem", "repeat_about"):
                lines = poem_lines(answer["content"])
                assert is_haiku(lines), answer
                assert topic is None or mentions("\n".join(lines or ()), topic)
                seen += 1
    assert seen > COUNT


def test_every_json_answer_is_valid(conversations: list[Conversation]) -> None:
    answers = [
        answer["content"] for each in conversations for _, answer, task, _ in turns(each) if task in ("json", "to_json")
    ]
    assert len(answers) > 100
    for text in answers:
        found = haiku_json(text)
        assert found is not None and is_haiku(found.lines), text


def line_asked_for(question: str) -> int:
    """Which line a question is about, from 0: named beside the word line, else anywhere."""
    names = {"first": 0, "1": 0, "second": 1, "2": 1, "third": 2, "last": 2, "3": 2}
    name = "|".join(names)
    text = question.lower()
    beside = re.findall(rf"\b({name})(?:st|nd|rd)?,? lines?\b|\blines? (?:number |no\.? ?|nr\.? ?|#)?({name})\b", text)
    found = [each or other for each, other in beside] or re.findall(rf"\b({name})\b", text)
    return names[found[-1]]


def poem_in(text: str) -> tuple[str, ...] | None:
    """The poem of an answer, as text or as JSON."""
    found = haiku_json(text)
    return found.lines if found else poem_lines(text)


def last_poem(before: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The newest poem in the model's answers, read from their text alone."""
    for message in reversed(before):
        if message["role"] == "assistant" and is_haiku(lines := poem_in(message["content"])):
            return lines or ()
    raise AssertionError("there is no poem")


def is_right(task: str, before: Sequence[dict[str, Any]], text: str) -> bool:
    """Whether an answer is the right one, by other means than the generator's."""
    question = next(message["content"] for message in reversed(before) if message["role"] == "user")
    said = words_of(text)
    if task == "sum":
        return sum(map(int, re.findall(r"\d+", question))) == int(re.findall(r"\d+", text)[-1])
    if task == "syllables":
        # Asked for a word, or, where functions were offered but not this one, for a line in quotes.
        asked = re.findall(r'"([^"]+)"', question) or [word for word in words_of(question) if word in said]
        return any(count and NUMBER_WORDS[count] in said for count in map(count_syllables, asked))
    if task == "echo":
        return ", ".join(text.split("\n")).lower() in question.lower()
    if task == "count_items":
        items = re.findall(r"\w+(?:, \w+)+", question)[-1].split(", ")
        return NUMBER_WORDS[len(items)] in said
    if task == "season":
        topics = [topic for topic in load_lexicon().topics if mentions(question, topic.phrase)]
        topics += [topic for topic in load_lexicon().heldout_topics if mentions(question, topic.phrase)]
        return any(
            (season := topic.season) in said or (season == "any" and not set(SEASONS) & set(said)) for topic in topics
        )
    poem = last_poem(before)
    if task == "line_syllables":
        return NUMBER_WORDS[(5, 7, 5)[line_asked_for(question)]] in said
    if task == "edge_word":
        words = words_of(poem[line_asked_for(question)])
        return words[0] in said or words[-1] in said
    if task == "repeat_line":
        return text == poem[line_asked_for(question)]
    if task == "repeat_poem":
        return text == "\n".join(poem)
    if task == "replace":
        old, new = ("\n".join(lines).split() for lines in (poem, text.split("\n")))
        changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        return len(changed) == 1 and all(word in question.lower() for word in words_of(" ".join(changed[0])))
    raise AssertionError(task)


CHECKED = (
    "sum",
    "syllables",
    "echo",
    "count_items",
    "season",
    "line_syllables",
    "edge_word",
    "repeat_line",
    "repeat_poem",
    "replace",
)


@pytest.mark.parametrize("task", CHECKED)
def test_every_answer_is_right(task: str, conversations: list[Conversation], held_outs: list[Conversation]) -> None:
    seen = 0
    for conversation in (*conversations, *held_outs):
        for before, answer, done, _ in turns(conversation):
            if done == task:
                assert is_right(task, before, answer["content"]), (before[-1]["content"], answer["content"])
                seen += 1
    assert seen >= 10


def test_an_earlier_poem_is_repeated_by_its_topic(conversations: list[Conversation]) -> None:
    seen = 0
    for conversation in conversations:
        for before, answer, task, _ in turns(conversation):
            if task == "repeat_about":
                poems = [lines for message in before if is_haiku(lines := poem_in(message["content"]))]
                assert tuple(answer["content"].split("\n")) in poems
                # The question ends in the topic, or has it before a few words more.
                assert {word for word in words_of(answer["content"]) if len(word) > 2} & set(
                    words_of(before[-1]["content"])
                )
                seen += 1
    assert seen > 20


def test_a_poem_keeps_its_title(conversations: list[Conversation]) -> None:
    seen = 0
    for conversation in conversations:
        title = None
        for _, answer, task, _ in turns(conversation):
            text = answer["content"]
            if task in ("titled", "json"):
                found = haiku_json(text)
                title = found.title if found else text.split("\n")[0]
            elif task in ("title", "to_json"):
                found = haiku_json(text)
                now = found.title if found else text
                assert title in (None, now), conversation
                seen += title is not None
                title = now
            elif task in ("haiku", "open", "another", "change", "repeat_about"):
                title = None
    assert seen > 5


def test_calls_name_a_function_that_is_offered_with_its_arguments(conversations: list[Conversation]) -> None:
    seen = 0
    for conversation in conversations:
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
        for index, message in enumerate(conversation.messages):
            for call in message.get("tool_calls", ()):
                function = call["function"]
                assert set(function["arguments"]) == set(offered[function["name"]]["required"])
                result = json.loads(conversation.messages[index + 1]["content"])
                assert conversation.messages[index + 1]["role"] == "tool"
                if function["name"] == "count_syllables":
                    assert result == {"syllables": count_syllables(function["arguments"]["text"])}
                seen += 1
    assert seen > 30


def test_it_is_rich(conversations: list[Conversation]) -> None:
    poems = {
        poem_lines(answer["content"]) for each in conversations for _, answer, task, _ in turns(each)
        if task in ("haiku", "another", "change", "open", "titled")
    }  # fmt: skip
    words = {word for poem in poems if poem for line in poem for word in words_of(line)}
    assert len(poems) > 1500
    assert len(words) > 2200
    assert {task for each in conversations for task in each.tasks} == ALL_TASKS


def test_training_never_names_a_held_out_topic(conversations: list[Conversation]) -> None:
    phrases = [topic.phrase for topic in load_lexicon().heldout_topics]
    text = " ".join(words_of(json.dumps([each.messages for each in conversations]).replace("\\n", " ")))
    assert [phrase for phrase in phrases if re.search(rf"\b{phrase}\b", text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "silver fish",
        "the old well\nsilver fish in the rain",
        "Silver Fish at Dusk\n\nthe old well",
        '{"title": "Rain", "lines": ["silver fish", "b", "c"], "season": "any"}',
        "Repeat: moon, silver, fish",
        "SILVER FISH, please",
        "two lost kittens",
        "walking past igloos",
    ],
)
def test_a_held_out_topic_is_found_wherever_it_hides(text: str) -> None:
    said = Conversation(({"role": "user", "content": text},), (), (), ())
    assert names_held_out_topic(said)
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"text": text}}}],
    }
    assert names_held_out_topic(Conversation((call,), (), (), ()))


def test_other_words_are_no_held_out_topic() -> None:
    assert not names_held_out_topic(
        Conversation(({"role": "user", "content": "a silver fisher, an old light"},), (), (), ())
    )


def test_held_out_conversations_are_about_held_out_things(held_outs: list[Conversation]) -> None:
    for conversation in held_outs:
        if any(task in ("haiku", "titled", "json") for task in conversation.tasks):
            assert names_held_out_topic(conversation)


def test_held_out_wordings_are_others() -> None:
    sections = load_wordings()
    kept_out = {name.removesuffix(".heldout"): lines for name, lines in sections.items() if name.endswith(".heldout")}
    # What is asked has held-out wordings; system messages are never part of a held-out conversation's own words.
    asked = {name for name in sections if not name.endswith((".heldout", ".answer")) and not name.startswith("system")}
    assert set(kept_out) == asked
    everything = {spoken(line) for name, lines in sections.items() if not name.endswith(".heldout") for line in lines}
    for name, lines in kept_out.items():
        assert len(lines) >= 3, name
        assert not everything & {spoken(line) for line in lines}, name


def test_calibration_is_not_training(conversations: list[Conversation]) -> None:
    first = list(calibration(64))
    assert first == list(calibration(64))
    assert not {repr(each) for each in first} & {repr(each) for each in conversations}
    assert not any(names_held_out_topic(each) for each in first)


def test_a_request_for_a_function_ends_in_a_call_and_its_answer() -> None:
    for index in range(20):
        conversation = tool_request(index)
        assert conversation.tasks[0] == "tool_call"
        assert [message["role"] for message in conversation.messages][1:] == ["user", "assistant", "tool", "assistant"]


def test_a_known_topic_is_one_of_trainings() -> None:
    phrases = {topic.phrase for topic in load_lexicon().topics}
    assert {known_topic(index).topics[0] for index in range(50)} <= phrases


def test_long_conversations_are_long() -> None:
    assert all(len(training(3, index, 1.0).tasks) >= 20 for index in range(3))
