"""Messages of harmony: for whom each is, the same however the output is cut; and outputs that are held to a grammar."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.grammar import Grammar
from penstock.text.calls.grammar import calls_grammar
from penstock.text.calls.parameters import ToolSchema
from penstock.text.chat_template import ChatTemplate
from penstock.text.harmony import HARMONY_MARKERS, HarmonyCount, HarmonyParser
from penstock.text.output_format import OutputFormat, Parsing, choose_format
from support.language import Language, Vocabulary
from support.pieces import cut, every_cut, parsed

THOUGHT = "<|channel|>analysis<|message|>Let me <see.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Kiel"}'
# (text, reasoning, content, calls)
EXAMPLES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("", "", "", []),
    ("Hello", "", "Hello", []),
    ("<|channel|>final<|message|>Hello", "", "Hello", []),
    ("<|channel|>final<|message|>Hello<|return|>", "", "Hello", []),
    (f"{THOUGHT}<|channel|>final<|message|>Hi <|", "Let me <see.", "Hi <|", []),
    (f"{THOUGHT}{CALL}<|call|>", "Let me <see.", "", [("weather", '{"city": "Kiel"}')]),
    (f"{THOUGHT}{CALL}", "Let me <see.", "", [("weather", '{"city": "Kiel"}')]),
    (
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}",
        "",
        "I look.",
        [("weather", '{"city": "Kiel"}')],
    ),
    # The recipient may stand before the channel.
    (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "", "", [("f", "{}")]),
    ("<|start|>assistant<|channel|>final<|message|>Hello", "", "Hello", []),
    # A message that nothing ended, before the next.
    ("<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>No.", "Hm.", "No.", []),
    ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>No.", "Hm.", "No.", []),
    # What is for nobody here is for the reader, and a header alone is nothing.
    ("<|channel|>commentary to=browser.open<|message|>x", "", "x", []),
    ("<|channel|>final<|message|>A<|end|><|start|>assistant<|chan", "", "A", []),
    ("<|chan", "", "<|chan", []),
]


@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), EXAMPLES)
def test_messages(text: str, reasoning: str, content: str, calls: list[tuple[str, str]], share: float) -> None:
    for parts in every_cut(text, share):
        assert parsed(HarmonyParser(), parts) == {"content": content, "reasoning": reasoning, "calls": calls}
        hidden = parsed(HarmonyParser(shown=False), parts)
        assert hidden == {"content": content, "reasoning": "", "calls": calls}


def test_without_tools_a_call_is_for_the_reader() -> None:
    found = parsed(HarmonyParser(tools=False), [THOUGHT, CALL])
    assert found == {"content": '{"city": "Kiel"}', "reasoning": "Let me <see.", "calls": []}


def test_enough_calls_are_the_end() -> None:
    parser = HarmonyParser(most_calls=1)
    parser.feed(f"{CALL}<|call|>")
    assert parser.done and parser.calls_whole and not parser.feed(CALL)


def test_a_call_that_breaks_off_is_not_whole() -> None:
    for text in (CALL[:-1], f"{CALL[:-1]}<|end|>", CALL.replace("{", "[").replace("}", "]")):
        parser = HarmonyParser()
        parser.feed(text)
        parser.finish()
        assert not parser.calls_whole


@given(
    fragments=st.lists(
        st.sampled_from([*HARMONY_MARKERS, "analysis", "final", " to=functions.f", "{}", "<|", "a", " "])
    ),
    places=st.lists(st.integers(0, 99), max_size=6),
)
def test_cuts_change_nothing(fragments: list[str], places: list[int]) -> None:
    text = "".join(fragments)
    whole = parsed(HarmonyParser(), [text], reasons_first=False)
    assert parsed(HarmonyParser(), cut(text, places), reasons_first=False) == whole


def test_reasoning_may_come_behind_a_message_for_the_reader() -> None:
    text = "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm."
    expected = {"content": "First.", "reasoning": "Hm.", "calls": []}
    assert parsed(HarmonyParser(), [text], reasons_first=False) == expected


@pytest.fixture(scope="module", params=[HARMONY_MARKERS, ()])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """With marks that are special tokens, or none."""
    return Vocabulary(tmp_path_factory.mktemp("marks"), request.param)


def style(vocabulary: Vocabulary) -> OutputFormat:
    return OutputFormat(calls="harmony", reasoning=True, harmony=True, special_markers=vocabulary.marks)


def test_an_answer_is_held_to_its_grammar_behind_its_header(vocabulary: Vocabulary) -> None:
    for grammar, good, bad in (
        (Grammar.choice(["yes", "no"]), "no", "maybe"),
        (Grammar.regex("[0-9]{2}"), "12", "1"),
        (Grammar.json_schema({"enum": ["x"]}), '"x"', '"y"'),
    ):
        rules = style(vocabulary).thought_rules("reasoning")
        possible = Language(vocabulary, Grammar(grammar.kind, grammar.text, "x", rules))
        for before in ("", THOUGHT):
            assert f"{before}<|channel|>final<|message|>{good}" in possible
            assert f"{before}<|channel|>final<|message|>{bad}" not in possible
        assert good not in possible
        alone = Language(
            vocabulary, Grammar(grammar.kind, grammar.text, "x", style(vocabulary).thought_rules("nothing"))
        )
        assert f"<|channel|>final<|message|>{good}" in alone
        assert f"{THOUGHT}<|channel|>final<|message|>{good}" not in alone


WEATHER = ToolSchema(
    "weather",
    {"type": "object", "properties": {"city": {"enum": ["Kiel", "Bonn"]}}, "required": ["city"]},
    strict=True,
    place="tools",
)


@pytest.mark.parametrize("enforced", ["required", "strict"])
def test_calls_follow_the_schema_of_their_tool(vocabulary: Vocabulary, enforced: Any) -> None:
    made = calls_grammar("harmony", [WEATHER], enforced, True, special_markers=vocabulary.marks)
    rules = style(vocabulary).thought_rules("reasoning", tools=True)
    possible = Language(vocabulary, Grammar("lark", made.text, "tools", rules, json_inside=True))
    assert THOUGHT + CALL in possible and CALL in possible
    assert CALL.replace("Kiel", "Rom") not in possible
    answer = "<|channel|>final<|message|>Hello"
    assert (answer in possible) == (enforced == "strict")
    chance, complete = random.Random(1), 0
    for _ in range(8):
        text = possible.example(chance, begun=CALL[: CALL.index("{")])
        if text is not None:
            complete += 1
            [(name, arguments)] = parsed(Parsing(calls="harmony", harmony=True).parser(), list(text))["calls"]
            assert name == "weather" and json.loads(arguments)["city"] in ("Kiel", "Bonn")
    assert complete


class _Texts:
    """Tokens whose number is their place in a list of texts."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def next(self, token: int) -> bytes:
        return self._texts[token].encode()


def test_tokens_of_reasoning_are_counted_without_headers() -> None:
    texts = ["<|channel|>", "analysis", "<|message|>", "Let", " me", " see", "<|end|>", "<|start|>", "assistant"]
    texts += ["<|channel|>", "final", "<|message|>", "Hello", "<|return|>"]
    count = HarmonyCount(_Texts(texts))  # type: ignore[arg-type]
    count.take(range(len(texts)))
    count.finish()
    assert count.tokens == 3 and count.over


def test_a_template_that_writes_harmony_is_known(tmp_path: Path) -> None:
    marks = Vocabulary(tmp_path, HARMONY_MARKERS)
    source = "{% for tool in tools %}{{ tool }}{% endfor %}<|channel|>analysis<|message|>"
    chosen, reasons = choose_format(ChatTemplate(source), marks.tokenizer)
    assert chosen.calls == "harmony" and chosen.harmony and chosen.reasoning
    closing = chosen.reasoning_closing + chosen.answer_opening
    end = "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert marks.tokenizer.decode(list(closing), skip_special=False) == end
    assert [reason.value for reason in reasons] == ["harmony", "harmony"]
    parsing = chosen.parsing()
    assert parsing is not None and isinstance(parsing.parser(), HarmonyParser)
    assert set(chosen.kept_tokens(parsing)) == set(marks.marks.values())
    plain, _ = choose_format(ChatTemplate(source), marks.tokenizer, "none", "none")
    assert plain.parsing() is None
