"""Which parsers a model gets: from its chat template, or as asked."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from penstock.bundled.registry import bundled_models
from penstock.core.errors import ConfigurationError
from penstock.text.calls.parser import HermesParser, MistralParser
from penstock.text.chat_template import ChatTemplate, load_chat_template
from penstock.text.output_format import OutputFormat, Parsing, check_parsers, choose_format
from penstock.text.pieces import PlainParser
from penstock.text.reasoning import ReasoningParser
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.pieces import parsed
from support.tokenizers_made import make_raw, save

TOOLS = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    raw: Any = make_raw("byte_level")
    raw.add_special_tokens([AddedToken(text, special=True) for text in ("[TOOL_CALLS]", "[ARGS]", "</think>")])
    raw.add_tokens([AddedToken("<tool_call>", special=False)])
    return load_tokenizer(save(raw, tmp_path_factory.mktemp("marked")))


@pytest.mark.parametrize(
    ("source", "calls", "why"),
    [
        (f"{TOOLS}<tool_call>", "hermes", "<tool_call>"),
        (f"{TOOLS}[TOOL_CALLS]", "mistral", "[TOOL_CALLS]"),
        (f"{TOOLS}<|python_tag|>", "llama3", "Llama 3"),
        (f'{TOOLS}<|start_header_id|>{{"name": x, "parameters": y}}', "llama3", "Llama 3"),
        # Llama 3.1's sets its own variable of the name where there is none.
        (
            "{% if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}"
            "{% if not tools is defined %}{% set tools = none %}{% endif %}"
            '{% if tools is not none %}<|start_header_id|>{"name": function name, "parameters": x}{% endif %}',
            "llama3",
            "Llama 3",
        ),
        (TOOLS, None, "none of the known formats"),
        (f"{TOOLS}<tool_call><function=x>", "qwen3_coder", "<function="),
        (f"{TOOLS}<tool_call>f<arg_key>x", "glm45", "<arg_key>"),
        (f"{TOOLS}<|tool_call>call:", "gemma4", "<|tool_call>"),
        (f"{TOOLS}<|python_tag|>[func_name1(params_name1=params_value1)]", "pythonic", "[func_name1("),
        ("<tool_call> and tools", None, "takes no tools"),
        ("{{ messages }}", None, "takes no tools"),
    ],
)
def test_the_format_of_calls_is_the_templates(tokenizer: Tokenizer, source: str, calls: str | None, why: str) -> None:
    chosen, reasons = choose_format(ChatTemplate(source), tokenizer)
    assert chosen.calls == calls
    assert (reasons[0].setting, reasons[0].value) == ("tool call parser", calls or "none") and why in reasons[0].why
    assert bool(chosen.refusal) == (calls is None)


@pytest.mark.parametrize(
    ("source", "reasoning"), [("<think>", True), ("{{ content.split('</think>') }}", True), ("think", False)]
)
def test_reasoning_is_the_templates(tokenizer: Tokenizer, source: str, reasoning: bool) -> None:
    chosen, reasons = choose_format(ChatTemplate(source), tokenizer)
    assert chosen.reasoning == reasoning
    assert reasons[1].value == ("think" if reasoning else "none") and "<think>" in reasons[1].why


def test_marks_of_reasoning_are_the_templates(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ content.split('<channel|>') }}")
    chosen, reasons = choose_format(template, tokenizer)
    assert (chosen.reasoning, chosen.marks, reasons[1].value) == (True, "gemma4", "gemma4")
    assert chosen.before_answer("<|turn>model\n<|channel>thought\n") == "open reasoning"
    assert chosen.before_answer("<|turn>model\n<|channel>thought\n<channel|>") == "nothing"
    assert chosen.before_answer("<|turn>model\n") == "reasoning"
    parser = chosen.parsing().parser()
    assert parsed(parser, ["<|channel>thought\nHm.\n<channel|>So"])["reasoning"] == "Hm."
    # Other blocks between the same marks are text.
    other = "<|channel>note\nHm.<channel|>So"
    assert parsed(chosen.parsing().parser(), [other])["content"] == other


def test_options_go_first(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(f"{TOOLS}<tool_call><think>")
    chosen, reasons = choose_format(template, tokenizer, "mistral", "none")
    assert (chosen.calls, chosen.reasoning) == ("mistral", False)
    assert [reason.why for reason in reasons] == ["as asked", "as asked"]
    chosen, _ = choose_format(template, tokenizer, "none", "think")
    assert chosen.calls is None and chosen.reasoning and "--tool-call-parser none" in chosen.refusal
    # Tools that no prompt would mention are refused, whatever was asked for.
    chosen, reasons = choose_format(ChatTemplate("x"), tokenizer, "hermes")
    assert chosen.calls is None and "takes no tools" in reasons[0].why
    for options in (("xml", "auto"), ("auto", "deep")):
        with pytest.raises(ConfigurationError, match=r"--\S+-parser \w+ is not one of auto, none, "):
            check_parsers(*options)


def test_templates_with_another_for_tools(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("plain", tool_use=f"{TOOLS}[TOOL_CALLS]")
    assert choose_format(template, tokenizer)[0].calls == "mistral"
    tools = [{"type": "function"}]
    assert template.render([], special_tokens={}) == "plain"
    assert template.render([], special_tokens={}, tools=tools) == '{"type": "function"}[TOOL_CALLS]'


def test_bundled_models() -> None:
    for model in bundled_models():
        tokenizer = load_tokenizer(model.directory)
        chosen, _ = choose_format(load_chat_template(tokenizer), tokenizer)
        assert (chosen.calls, chosen.reasoning, chosen.special_markers) == ("hermes", False, {})


def test_parsers_of_requests(tokenizer: Tokenizer) -> None:
    chosen = choose_format(ChatTemplate(f"{TOOLS}[TOOL_CALLS][ARGS]<think>"), tokenizer)[0]
    assert chosen.calls_by_name
    marks = chosen.special_markers
    assert marks == {text: tokenizer.token_id(text) for text in ("[TOOL_CALLS]", "[ARGS]", "</think>")}
    with_tools, without = chosen.parsing(tools=True), chosen.parsing()
    assert with_tools is not None and without is not None
    assert isinstance(with_tools.parser(), ReasoningParser)
    assert set(chosen.kept_tokens(with_tools)) == set(marks.values())
    assert chosen.kept_tokens(without) == (marks["</think>"],) and chosen.kept_tokens(None) == ()
    assert OutputFormat().parsing(tools=True) is None
    assert isinstance(Parsing(calls="mistral").parser(), MistralParser)
    assert isinstance(Parsing().parser(), PlainParser) and isinstance(Parsing(calls="hermes").parser(), HermesParser)
    assert Parsing(calls="hermes").call_id("one").startswith("call_")
    identifier = Parsing(calls="mistral").call_id("one")
    assert Parsing(calls="mistral").call_id("two") != identifier == Parsing(calls="mistral").call_id("one")
    assert len(identifier) == 9 and identifier.isalnum()


def test_what_may_come_before_an_answer() -> None:
    chosen = OutputFormat(reasoning=True)
    assert chosen.before_answer("assistant\n") == "reasoning"
    assert chosen.before_answer("assistant\n<think>\n") == "open reasoning"
    assert chosen.before_answer("assistant\n<think>\n\n</think>\n\n") == "nothing"
    # What the client has begun of the answer, if anything, stands in the prompt.
    assert chosen.before_answer("I believe", "<think>I believe") == "open reasoning"
    assert chosen.before_answer("x</think>So", "<think>x</think>So") == "nothing"
    assert chosen.before_answer("So", "So") == "nothing"
    assert chosen.before_answer("<think>x</think>\n\n", "") == "nothing"
    assert OutputFormat().before_answer("<think>") == "nothing"


def test_templates_of_directories(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": f"{TOOLS}<tool_call>"}]
    tokenizer = load_tokenizer(save(make_raw("byte_level"), tmp_path, chat_template=named))
    assert choose_format(load_chat_template(tokenizer), tokenizer)[0].calls == "hermes"
