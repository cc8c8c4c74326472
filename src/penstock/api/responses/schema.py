"""The fields of `/v1/responses`: which are accepted, their types, and which are refused by name."""

from typing import Any

import msgspec

from penstock.api.effort import Effort
from penstock.api.fields import FieldRules, HintField, RefusedField
from penstock.api.kv_policy import KVPolicyField
from penstock.api.rules import COMMON_RULES

# What an answer could include beside its text; without the tools of a hosted API there is none of it.
_NOT_THERE = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)


def _includes_nothing(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each in _NOT_THERE for each in value)


RULES: FieldRules = {
    "access_programs": HintField("It is for the operator of a hosted API."),
    "background": RefusedField("responses are not computed in the background; leave it out, and stream.", (False,)),
    "background_options": RefusedField(
        "responses are not computed in the background; leave it out, and stream.", ({},)
    ),
    "client_metadata": COMMON_RULES["client_metadata"],
    "context_management": HintField("Conversations are never shortened; the client can send less of it.", ([],)),
    "conversation": RefusedField("is not supported; use previous_response_id."),
    "image": RefusedField("only text is supported; leave it out."),
    "include": HintField(
        "There is nothing of it in an answer.",
        ([],),
        _includes_nothing,
        f"only what answers do not have is accepted: {', '.join(sorted(_NOT_THERE))}.",
    ),
    "max_tool_calls": HintField("It limits tools that the server calls, which has none."),
    "moderation": COMMON_RULES["moderation"],
    "personality": COMMON_RULES["verbosity"],
    "prompt": RefusedField("is not supported; send the prompt as input and instructions."),
    "prompt_cache_options": COMMON_RULES["prompt_cache_options"],
    "safety_identifier": COMMON_RULES["safety_identifier"],
    "top_logprobs": RefusedField("is not supported yet; leave it out.", (0,)),
    "truncation": RefusedField('only "disabled" is supported: no prompt is truncated.', ("disabled",)),
}
TEXT_RULES: FieldRules = {"verbosity": COMMON_RULES["verbosity"]}
_TOLD_WHOLE = HintField("Reasoning is told as it is.")
REASONING_RULES: FieldRules = {
    "context": HintField("The chat template decides how much earlier reasoning the model is shown."),
    "generate_summary": _TOLD_WHOLE,
    "mode": HintField("There is one mode."),
    "summary": _TOLD_WHOLE,
}


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A function of the client that the model may call."""

    name: str
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class NamespaceTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="namespace"):
    """Functions of the client that belong together."""

    name: str
    tools: list[FunctionTool]
    description: str | None = None


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """The one function to call."""

    name: str


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the text must be like."""

    format: dict[str, Any] | None = None


class ReasoningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much the model reasons."""

    effort: Effort | None = None


class StreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a response is streamed."""

    include_obfuscation: bool | None = None


class InputFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/responses/input_tokens`: what the prompt is made of."""

    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[FunctionTool | NamespaceTool] | None = None
    tool_choice: str | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class ResponsesFields(InputFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`. None stands for the default."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamConfig | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    priority: int | None = None
    service_tier: str | None = None
    cache_salt: str | None = None
    kv_policy: KVPolicyField | None = None
    timeout: float | None = None
