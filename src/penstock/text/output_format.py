"""How a model writes what is not for the reader, and the parser that each request's outputs get."""

import uuid
from collections.abc import Iterable
from typing import Protocol

import msgspec

from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError
from penstock.text.calls.formats import MARKERS, PARSERS
from penstock.text.calls.gemma_calls import GEMMA_OPENER
from penstock.text.calls.parser import HERMES_OPENER, LLAMA_OPENER, MISTRAL_ARGUMENTS, MISTRAL_OPENER
from penstock.text.calls.python_calls import PYTHON_TEMPLATE
from penstock.text.calls.tagged import GLM, QWEN
from penstock.text.chat_template import ChatTemplate
from penstock.text.harmony import (
    ANSWER_BEGINNING,
    CHANNEL,
    HARMONY,
    HARMONY_MARKERS,
    MESSAGE,
    REASONING_END,
    HarmonyCount,
    HarmonyParser,
    before_final,
)
from penstock.text.pieces import OutputParser, PlainParser
from penstock.text.reasoning import MARKS, THINK, Before, Marks, ReasoningParser, thought_rules
from penstock.text.reasoning_count import ReasoningCount
from penstock.text.table import TokenStream
from penstock.text.tokenizer import Tokenizer

TOOL_CALL_PARSERS = ("auto", "none", *PARSERS, HARMONY)
REASONING_PARSERS = ("auto", "none", *MARKS, HARMONY)

# What templates of models that reason or not, as they are told, call it.
THINKING_SWITCHES = ("enable_thinking", "thinking")


class TokenCount(Protocol):
    """Counts those tokens of one sample that are reasoning.

    Attributes:
        tokens: those that are surely reasoning.
        over: the rest cannot be reasoning.
    """

    @property
    def tokens(self) -> int: ...

    @property
    def over(self) -> bool: ...

    def take(self, tokens: Iterable[int]) -> None:
        """Take the next tokens of the output."""

    def finish(self) -> None:
        """The output has ended: what was undecided is decided."""


class Parsing(msgspec.Struct, frozen=True, kw_only=True):
    """How the outputs of one request are cut into pieces.

    Attributes:
        calls: the format of calls; None where calls are text like any other.
        most_calls: calls after this number are left out.
        texts: for each tool those of its parameters whose values are text, and whether they may be null.
        calls_alone: whether the answer is calls and nothing else, so that what is left of one is no content.
        reasoning: whether a block of reasoning is looked for; `reasoning_opened`: the prompt has opened it;
            `reasoning_shown`: it is told, and not left out; `marks`: what is around it, a name in `MARKS`.
        harmony: whether the output is of messages in harmony.
    """

    calls: str | None = None
    most_calls: int | None = None
    texts: dict[str, dict[str, bool]] = {}
    calls_alone: bool = False
    reasoning: bool = False
    reasoning_opened: bool = False
    reasoning_shown: bool = True
    marks: str = THINK
    harmony: bool = False

    def parser(self) -> OutputParser:
        """A parser for one sample."""
        if self.harmony:
            return HarmonyParser(self.most_calls, tools=self.calls is not None, shown=self.reasoning_shown)
        if self.calls is None:
            inner: OutputParser = PlainParser()
        else:
            inner = PARSERS[self.calls](self.most_calls, self.texts, alone=self.calls_alone)
        if not self.reasoning:
            return inner
        return ReasoningParser(inner, opened=self.reasoning_opened, shown=self.reasoning_shown, marks=self.marks)

    def reasoning_count(self, stream: TokenStream | None) -> "TokenCount | None":
        """What counts one sample's tokens of reasoning, told or not; None where there can be none.

        `stream` gives the sample's text; None where its tokens have none.
        """
        if stream is None:
            return None
        if self.harmony:
            return HarmonyCount(stream)
        if not self.reasoning:
            return None
        return ReasoningCount(stream, opened=self.reasoning_opened, marks=self.marks)

    def call_id(self, name: str) -> str:
        """The identifier of a call that `name` tells from all others, always the same.

        Templates of Mistral's models accept none but those of nine characters.
        """
        identifier = uuid.uuid5(uuid.NAMESPACE_OID, name).hex
        return identifier[:9] if self.calls == "mistral" else f"call_{identifier[:24]}"


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes calls of tools and reasoning.

    Attributes:
        calls: the format of calls, a name in `PARSERS`; None where requests with tools are refused.
        refusal: why they are.
        reasoning: whether answers begin with a block of reasoning, between the `marks` of that name in `MARKS`.
        special_markers: those marks of calls and reasoning that are special tokens, by their text.
        calls_by_name: of Mistral's two formats the newer one, which begins with the call's name.
        harmony: whether outputs are of messages in harmony, reasoning and calls among them.
        reasoning_closing: the tokens that end a block of reasoning; empty where the vocabulary cannot write that.
        answer_opening: the tokens that then begin an answer, where there must be some.
    """

    calls: str | None = None
    refusal: str = "this server has no chat template to give tools to."
    reasoning: bool = False
    marks: str = THINK
    special_markers: dict[str, int] = {}
    calls_by_name: bool = False
    reasoning_closing: tuple[int, ...] = ()
    answer_opening: tuple[int, ...] = ()
    harmony: bool = False

    def parsing(
        self,
        *,
        tools: bool = False,
        most_calls: int | None = None,
        texts: dict[str, dict[str, bool]] | None = None,
        calls_alone: bool = False,
        reasoning: bool = True,
        reasoning_opened: bool = False,
        reasoning_shown: bool = True,
    ) -> Parsing | None:
        """How the outputs of a request, with tools or without, are parsed; None where all of them are content.

        Without `reasoning`, none is looked for.
        """
        calls = self.calls if tools else None
        reasoning = reasoning and self.reasoning
        if calls is None and not reasoning and not self.harmony:
            return None
        return Parsing(
            calls=calls,
            most_calls=most_calls,
            texts=texts or {},
            calls_alone=calls_alone,
            reasoning=reasoning,
            reasoning_opened=reasoning_opened,
            reasoning_shown=reasoning_shown,
            marks=self.marks,
            harmony=self.harmony,
        )

    @property
    def around(self) -> Marks:
        """The marks around a block of reasoning; harmony has none."""
        return MARKS[self.marks]

    def kept_tokens(self, parsing: Parsing | None) -> tuple[int, ...]:
        """Special tokens that must stay in the text for `parsing`, although others are left out."""
        if parsing is None:
            return ()
        if parsing.harmony:
            return tuple(self.special_markers[each] for each in HARMONY_MARKERS if each in self.special_markers)
        around = (self.around.begin, self.around.end) if parsing.reasoning else ()
        markers = (*MARKERS.get(parsing.calls or "", ()), *around)
        return tuple(self.special_markers[marker] for marker in markers if marker in self.special_markers)

    def before_answer(self, prompt: str, begun: str = "") -> Before:
        """What may come before the answer. `prompt` is the prompt's end, `begun` what is there of the answer."""
        if not self.reasoning:
            return "nothing"
        if self.harmony:
            return "nothing" if begun.strip() else "reasoning"
        # Templates may leave white space off that ends a mark, or add some.
        opener, closer = self.around.opener.rstrip(), self.around.end
        if begun.strip():
            return "open reasoning" if begun.rfind(opener) > begun.rfind(closer) else "nothing"
        end = prompt.rstrip()
        if end.endswith(opener):
            return "open reasoning"
        return "nothing" if end.endswith(closer) else "reasoning"

    def thought_rules(self, before: Before, *, tools: bool = False) -> str:
        """What comes before an answer that is held to a grammar, as `Grammar.thought` has it; `tools`: of calls."""
        if self.harmony:
            reasons = before != "nothing"
            return before_final(reasons=reasons, final=not tools, special_markers=self.special_markers)
        return thought_rules(before, self.special_markers, self.around)


def check_parsers(tool_call_parser: str, reasoning_parser: str) -> None:
    """Raise ConfigurationError where an option is none of its values."""
    for option, value, values in (
        ("--tool-call-parser", tool_call_parser, TOOL_CALL_PARSERS),
        ("--reasoning-parser", reasoning_parser, REASONING_PARSERS),
    ):
        if value not in values:
            raise ConfigurationError(f"{option} {value} is not one of {', '.join(values)}.")


def choose_format(
    template: ChatTemplate, tokenizer: Tokenizer, tool_call_parser: str = "auto", reasoning_parser: str = "auto"
) -> tuple[OutputFormat, list[Reason]]:
    """The format of a model's outputs, as asked or as its chat template says, with the reasons.

    Raises ConfigurationError where an option is none of its values.
    """
    check_parsers(tool_call_parser, reasoning_parser)
    calls, why, refusal = _choose_calls(template, tool_call_parser)
    harmony = reasoning_parser == HARMONY or (
        reasoning_parser == "auto" and tool_call_parser in ("auto", "none", HARMONY) and _writes_harmony(template)
    )
    if calls == HARMONY and not harmony:
        calls, refusal = None, f"are in messages of harmony, which --reasoning-parser {reasoning_parser} does not read."
    marks = None
    if harmony:
        reasoning_why = f"the chat template writes {CHANNEL}"
    elif reasoning_parser == "auto":
        marks = _marks_in(template)
        seen = f"mentions {MARKS[marks].begin}" if marks else f"does not mention {MARKS[THINK].begin}"
        reasoning_why = f"the chat template {seen}"
    else:
        marks, reasoning_why = reasoning_parser if reasoning_parser in MARKS else None, "as asked"
    chosen = OutputFormat(
        calls=calls,
        refusal=refusal,
        reasoning=harmony or marks is not None,
        marks=HARMONY if harmony else marks or THINK,
        special_markers=_special_markers(tokenizer, harmony=harmony),
        calls_by_name=MISTRAL_ARGUMENTS in template.source,
        reasoning_closing=_written(tokenizer, REASONING_END if harmony else MARKS[marks].closing if marks else ""),
        answer_opening=_written(tokenizer, ANSWER_BEGINNING if harmony else ""),
        harmony=harmony,
    )
    return chosen, [
        Reason("tool call parser", calls or "none", why, at_start=True),
        Reason(
            "reasoning parser",
            HARMONY if harmony else marks or "none",
            reasoning_why,
            at_start=True,
        ),
    ]


def _choose_calls(template: ChatTemplate, asked: str) -> tuple[str | None, str, str]:
    """The format of calls, why, and what to say to requests with tools where there is none."""
    if not template.takes_tools:
        why = "the chat template takes no tools"
        return None, why, f"are not supported by this model: {why}."
    if asked == "none":
        return None, "as asked", "are not supported by this server, which was started with --tool-call-parser none."
    if asked != "auto":
        return asked, "as asked", ""
    source = template.source
    if _writes_harmony(template):
        return HARMONY, f"the chat template writes {CHANNEL}", ""
    # The first two have the marks of Hermes' format too, the third may have those of Llama's.
    for name, mark in (
        ("qwen3_coder", QWEN.name_begin),
        ("glm45", GLM.key_begin),
        ("pythonic", PYTHON_TEMPLATE),
        ("gemma4", GEMMA_OPENER),
        ("mistral", MISTRAL_OPENER),
        ("hermes", HERMES_OPENER),
    ):
        if mark in source:
            return name, f"the chat template writes {mark}", ""
    if LLAMA_OPENER in source or ("<|start_header_id|>" in source and "parameters" in source):
        return "llama3", "the chat template is one of Llama 3's", ""
    why = "the chat template takes tools, but has calls in none of the known formats"
    return None, why, f"are not supported for this model: {why}; --tool-call-parser can name one."


def _writes_harmony(template: ChatTemplate) -> bool:
    return CHANNEL in template.source and MESSAGE in template.source


def _marks_in(template: ChatTemplate) -> str | None:
    """Which marks of reasoning a template has; None: none."""
    found = (name for name, marks in MARKS.items() if marks.opener in template.source or marks.end in template.source)
    return next(found, None)


def _written(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text that a model may have to write; none where its vocabulary cannot."""
    ids = tokenizer.encode(text, add_special_tokens=False) if text else []
    return tuple(ids) if text.strip() in tokenizer.decode(ids, skip_special=False) else ()


def _special_markers(tokenizer: Tokenizer, *, harmony: bool) -> dict[str, int]:
    markers = [marker for group in MARKERS.values() for marker in group]
    markers += [mark for marks in MARKS.values() for mark in (marks.begin, marks.end)]
    markers += HARMONY_MARKERS if harmony else ()
    ids = {marker: tokenizer.token_id(marker) for marker in markers}
    return {marker: index for marker, index in ids.items() if index is not None and tokenizer.table.special[index]}
