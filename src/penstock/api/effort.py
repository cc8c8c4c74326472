"""How much a model is asked to reason: efforts of OpenAI's and Anthropic's APIs, as the chat template can say them."""

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

from penstock.text.chat_template import ChatTemplate
from penstock.text.output_format import THINKING_SWITCHES

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# From the least to the most.
EFFORTS: tuple[str, ...] = get_args(Effort)
# What templates with levels call it.
LEVEL_VARIABLE = "reasoning_effort"


def variables_of(effort: str, template: ChatTemplate) -> tuple[Mapping[str, Any], bool]:
    """The variables that say an effort to a chat template, and whether they say just that.

    A template with levels gets the nearest that it names, of two as near the higher. A template with a switch gets
    it on, or off for the effort "none". Any other gets nothing.
    """
    if LEVEL_VARIABLE in template.variables:
        levels = [each for each in EFFORTS if each in template.words] or [effort]
        asked = EFFORTS.index(effort)
        level = min(levels, key=lambda each: (abs(EFFORTS.index(each) - asked), -EFFORTS.index(each)))
        return {LEVEL_VARIABLE: level}, level == effort
    switch = switch_of(template.variables)
    return ({}, False) if switch is None else ({switch: effort != "none"}, effort == "none")


def switch_of(variables: Collection[str]) -> str | None:
    """The variable that says whether the model reasons; None where a template has none."""
    return next((switch for switch in THINKING_SWITCHES if switch in variables), None)
