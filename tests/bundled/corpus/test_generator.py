"""The corpus: deterministic, right in every answer, rich, and apart from what is held out."""

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys

import pytest

from penstock.bundled.corpus.checks import count_syllables, haiku_json, is_haiku, mentions, poem_lines, words_of
from penstock.bundled.corpus.dialogue import NUMBER_WORDS, Conversation
from penstock.bundled.corpus.generator import STRATA, calibration, held_out, names_held_out_topic, training
from penstock.bundled.corpus.lexicon import load_lexicon
from penstock.bundled.corpus.wordings import load_wordings

COUNT = 1500
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


def test_facts_are_right(conversations: list[Conversation], held_outs: list[Conversation]) -> None:
    checked = dict.fromkeys(("sum", "syllables", "echo", "count_items", "line_syllables", "edge_word"), 0)
    for conversation in (*conversations, *held_outs):
        for before, answer, task, _ in turns(conversation):
            question, text = before[-1]["content"], answer["content"]
            numbers = [int(number) for number in re.findall(r"\d+", text)]
            if task == "sum":
                asked = [int(number) for number in re.findall(r"\d+", question)]
                assert sum(asked) == numbers[-1], (question, text)
            elif task == "syllables":
                # Asked for a word, or, where functions were offered but not this one, for a line in quotes.
                asked_for = re.findall(r'"([^"]+)"', question) or [w for w in words_of(question) if w in words_of(text)]
                counts = {count_syllables(each) for each in asked_for}
                assert any(count and NUMBER_WORDS[count] in words_of(text) for count in counts), (question, text)
            elif task == "echo":
                assert ", ".join(text.split("\n")).lower() in question.lower()
            elif task == "count_items":
                items = re.findall(r"\w+(?:, \w+)+", question)[-1].split(", ")
                assert NUMBER_WORDS[len(items)] in text.lower()
            elif task == "line_syllables":
                assert "five" in text.lower() or "seven" in text.lower()
            elif task != "edge_word":
                continue
            checked[task] += 1
    assert min(checked.values()) >= 10, checked


def test_quotes_are_word_for_word(conversations: list[Conversation]) -> None:
    seen = 0
    for conversation in conversations:
        for before, answer, task, _ in turns(conversation):
            if task in ("repeat_line", "repeat_poem", "repeat_about"):
                earlier = [message["content"] for message in before if message["role"] == "assistant"]
                quoted = answer["content"]
                said = itertools.chain.from_iterable((text, *text.splitlines(), *json_lines(text)) for text in earlier)
                assert any(quoted == each or quoted in each for each in said), conversation
                seen += 1
    assert seen > 100


def json_lines(text: str) -> tuple[str, ...]:
    found = haiku_json(text)
    return ("\n".join(found.lines), *found.lines) if found else ()


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
    assert len(words) > 2000
    assert {task for each in conversations for task in each.tasks} == ALL_TASKS


def test_training_never_names_a_held_out_topic(conversations: list[Conversation]) -> None:
    phrases = [topic.phrase for topic in load_lexicon().heldout_topics]
    text = "\n".join(str(message["content"]).lower() for each in conversations for message in each.messages)
    assert [phrase for phrase in phrases if re.search(rf"\b{phrase}\b", text)] == []


def test_held_out_conversations_are_about_held_out_things(held_outs: list[Conversation]) -> None:
    for conversation in held_outs:
        if any(task in ("haiku", "titled", "json") for task in conversation.tasks):
            assert names_held_out_topic(conversation)


def test_held_out_wordings_are_others() -> None:
    sections = load_wordings()
    kept_out = {name.removesuffix(".heldout"): lines for name, lines in sections.items() if name.endswith(".heldout")}
    assert len(kept_out) >= 20
    everything = {spoken(line) for name, lines in sections.items() if not name.endswith(".heldout") for line in lines}
    for name, lines in kept_out.items():
        assert len(lines) >= 3, name
        assert not everything & {spoken(line) for line in lines}, name


def test_calibration_is_not_training(conversations: list[Conversation]) -> None:
    first = list(calibration(64))
    assert first == list(calibration(64))
    assert not {repr(each) for each in first} & {repr(each) for each in conversations}
    assert not any(names_held_out_topic(each) for each in first)


def test_long_conversations_are_long() -> None:
    assert all(len(training(3, index, 1.0).tasks) >= 20 for index in range(3))
