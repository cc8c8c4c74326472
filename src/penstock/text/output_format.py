"""How a model writes what is not for the reader, and the parser that each request's outputs get."""

import uuid

import msgspec

from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError
from penstock.text.calls.parser import (
    HERMES_CLOSER,
    HERMES_OPENER,
    LLAMA_OPENER,
    MISTRAL_ARGUMENTS,
    MISTRAL_ID,
    MISTRAL_OPENER,
    PARSERS,
)
from penstock.text.chat_template import ChatTemplate
from penstock.text.pieces import OutputParser, PlainParser
from penstock.text.reasoning import THINK_CLOSER, THINK_OPENER, ReasoningParser
from penstock.text.tokenizer import Tokenizer

TOOL_CALL_PARSERS = ("auto", "none", *PARSERS)
REASONING_PARSERS = ("auto", "none", "think")

_MARKERS = {
    "hermes": (HERMES_OPENER, HERMES_CLOSER),
    "llama3": (LLAMA_OPENER,),
    "mistral": (MISTRAL_OPENER, MISTRAL_ARGUMENTS, MISTRAL_ID),
}
_REASONING_MARKERS = (THINK_OPENER, THINK_CLOSER)
# What templates say whose calls stand between the markers of a format above, but are not JSON.
_OTHER_FORMATS = ("<function=", "<arg_key>")


class Parsing(msgspec.Struct, frozen=True, kw_only=True):
    """How the outputs of one request are cut into pieces.

    Attributes:
        calls: the format of calls; None where calls are text like any other.
        most_calls: what comes after so many calls is left out.
        reasoning: whether a block of reasoning is looked for; `reasoning_opened`: the prompt has opened it;
            `reasoning_shown`: it is told, and not left out.
    """

    calls: str | None = None
    most_calls: int | None = None
    reasoning: bool = False
    reasoning_opened: bool = False
    reasoning_shown: bool = True

    def parser(self) -> OutputParser:
        """A parser for one sample."""
        inner = PlainParser() if self.calls is None else PARSERS[self.calls](self.most_calls)
        if not self.reasoning:
            return inner
        return ReasoningParser(inner, opened=self.reasoning_opened, shown=self.reasoning_shown)

    def call_id(self) -> str:
        """A new identifier of a call. Templates of Mistral's models accept none but those of nine characters."""
        identifier = uuid.uuid4().hex
        return identifier[:9] if self.calls == "mistral" else f"call_{identifier[:24]}"


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes calls of tools and reasoning.

    Attributes:
        calls: the format of calls, a name in `PARSERS`; None where requests with tools are refused.
        refusal: why they are.
        reasoning: whether answers begin with a block of reasoning.
        special_markers: those marks of calls and reasoning that are special tokens, by their text.
        calls_by_name: of Mistral's two formats the newer one, which begins with the call's name.
    """

    calls: str | None = None
    refusal: str = "this server has no chat template to give tools to."
    reasoning: bool = False
    special_markers: dict[str, int] = {}
    calls_by_name: bool = False

    def parsing(
        self,
        *,
        tools: bool = False,
        most_calls: int | None = None,
        reasoning_opened: bool = False,
        reasoning_shown: bool = True,
    ) -> Parsing | None:
        """How the outputs of a request, with tools or without, are parsed; None where all of them are content."""
        calls = self.calls if tools else None
        if calls is None and not self.reasoning:
            return None
        return Parsing(
            calls=calls,
            most_calls=most_calls,
            reasoning=self.reasoning,
            reasoning_opened=reasoning_opened,
            reasoning_shown=reasoning_shown,
        )

    def kept_tokens(self, parsing: Parsing | None) -> tuple[int, ...]:
        """Special tokens that must stay in the text for `parsing`, although others are left out."""
        if parsing is None:
            return ()
        markers = (*_MARKERS.get(parsing.calls or "", ()), *(_REASONING_MARKERS if parsing.reasoning else ()))
        return tuple(self.special_markers[marker] for marker in markers if marker in self.special_markers)

    def leaves_reasoning_open(self, text: str) -> bool:
        """Whether a prompt that ends in `text` has opened a block of reasoning that the output goes on with."""
        return self.reasoning and text.rstrip().endswith(THINK_OPENER)

    def is_inside_reasoning(self, text: str) -> bool:
        """Whether the end of an answer's beginning, which the output continues, is inside of its reasoning."""
        return self.reasoning and text.rfind(THINK_OPENER) > text.rfind(THINK_CLOSER)


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
    if reasoning_parser == "auto":
        reasoning = THINK_OPENER in template.source or THINK_CLOSER in template.source
        reasoning_why = f"the chat template {'mentions' if reasoning else 'does not mention'} {THINK_OPENER}"
    else:
        reasoning, reasoning_why = reasoning_parser == "think", "as asked"
    chosen = OutputFormat(
        calls=calls,
        refusal=refusal,
        reasoning=reasoning,
        special_markers=_special_markers(tokenizer),
        calls_by_name=MISTRAL_ARGUMENTS in template.source,
    )
    return chosen, [
        Reason("tool call parser", calls or "none", why),
        Reason("reasoning parser", "think" if reasoning else "none", reasoning_why),
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
    if not any(text in source for text in _OTHER_FORMATS):
        if MISTRAL_OPENER in source:
            return "mistral", f"the chat template writes {MISTRAL_OPENER}", ""
        if HERMES_OPENER in source:
            return "hermes", f"the chat template writes {HERMES_OPENER}", ""
        if LLAMA_OPENER in source or ("<|start_header_id|>" in source and "parameters" in source):
            return "llama3", "the chat template is one of Llama 3's", ""
    why = "the chat template takes tools, but has calls in none of the known formats"
    return None, why, f"are not supported for this model: {why}; --tool-call-parser can name one."


def _special_markers(tokenizer: Tokenizer) -> dict[str, int]:
    markers = [*(marker for group in _MARKERS.values() for marker in group), *_REASONING_MARKERS]
    ids = {marker: tokenizer.token_id(marker) for marker in markers}
    return {marker: index for marker, index in ids.items() if index is not None and tokenizer.table.special[index]}
