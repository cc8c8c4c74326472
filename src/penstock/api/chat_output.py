"""What a chat's outputs must look like, and how they are cut into reasoning, calls of tools and content."""

import json
from typing import Any

import msgspec

from penstock.api.tools import ToolUse
from penstock.core.errors import InvalidParameter
from penstock.core.grammar import Grammar
from penstock.core.sampling import ReasoningBudget
from penstock.text.harmony import REASONING_END
from penstock.text.output_format import OutputFormat, Parsing
from penstock.text.reasoning import Before
from penstock.text.schema.enforceable import enforceable

# As in vLLM.
BUDGET_FIELD = "thinking_token_budget"
MAX_BUDGET = 2**31 - 1


class ChatOutput(msgspec.Struct, frozen=True):
    """How outputs are cut into pieces, None where all is content; the grammar and the budget that they have, if any."""

    parsing: Parsing | None
    grammar: Grammar | None
    budget: ReasoningBudget | None


def resolve_output(
    style: OutputFormat,
    asked: Grammar | None,
    use: ToolUse | None,
    *,
    before: Before,
    reasoning_shown: bool,
    reasoning_tokens: int | None,
) -> ChatOutput:
    """The output of a chat that asks for a grammar and offers tools, or does neither; raises InvalidParameter.

    Args:
        style: how the model writes calls and reasoning.
        asked, use: the grammar and the tools.
        before: what may come before the answer. Reasoning before one that is held to a grammar is free.
        reasoning_shown: whether reasoning is told.
        reasoning_tokens: None, or how much reasoning there may be.
    """
    grammar = asked
    if use is not None:
        grammar = _with_calls(style, asked, use)
    calls = grammar is not None and use is not None and grammar.param == "tools"
    if grammar is not None:
        grammar = msgspec.structs.replace(grammar, thought=style.thought_rules(before, tools=calls))
    parsing = style.parsing(
        tools=use is not None,
        most_calls=None if use is None else use.most_calls,
        texts=None if use is None else use.texts(style),
        calls_alone=use is not None and use.required,
        # An answer that begins at once may begin like reasoning, where its grammar says so.
        reasoning=grammar is None or before != "nothing",
        reasoning_opened=before == "open reasoning",
        reasoning_shown=reasoning_shown,
    )
    budget = None if reasoning_tokens is None else _budget(style, reasoning_tokens, before, calls=calls)
    # Where there can be no reasoning, there is nothing to end.
    reasons = parsing is not None and (parsing.reasoning or parsing.harmony)
    return ChatOutput(parsing, grammar, budget if reasons else None)


def _with_calls(style: OutputFormat, asked: Grammar | None, use: ToolUse) -> Grammar | None:
    """The grammar of outputs that may, or must, call tools; None where they are free."""
    otherwise: dict[str, Any] | None = None
    unenforced: tuple[str, ...] = ()
    if asked is not None:
        otherwise, unenforced = _schema_beside_tools(asked), asked.unenforced
    calls = use.grammar(style, otherwise)
    if calls is None:
        return None
    told = (*unenforced, *calls.unenforced)
    return Grammar("lark", calls.text, "tools", json_inside=True, parts=calls.parts, unenforced=told)


def _budget(style: OutputFormat, tokens: int, before: Before, *, calls: bool) -> ReasoningBudget:
    """`calls`: whether a grammar of calls holds."""
    if not style.reasoning:
        raise InvalidParameter(BUDGET_FIELD, "this model does not reason; leave it out.")
    if not style.reasoning_closing:
        end = REASONING_END if style.harmony else style.around.end
        raise InvalidParameter(BUDGET_FIELD, f"this model's vocabulary cannot write {end}; leave it out.")
    if not 0 <= tokens <= MAX_BUDGET:
        raise InvalidParameter(BUDGET_FIELD, f"{tokens} is outside 0..{MAX_BUDGET}.")
    # A grammar of calls begins with their headers.
    closing = style.reasoning_closing + (() if calls else style.answer_opening)
    return ReasoningBudget(tokens=tokens, closing=closing, opened=before == "open reasoning", marks=style.marks)


def _schema_beside_tools(asked: Grammar) -> dict[str, Any]:
    """The JSON schema of answers that are no calls of tools."""
    schema = json.loads(asked.text) if asked.kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise InvalidParameter(asked.param, "cannot be combined with tools that may be called; a JSON schema can.")
    left, unenforced = enforceable(schema)
    if unenforced:
        raise unenforced[0].refusal(asked.param)
    return left
