"""The formats of calls, by their names."""

from penstock.text.calls.gemma_calls import GEMMA_CLOSER, GEMMA_OPENER, GemmaParser
from penstock.text.calls.gemma_value import GEMMA_QUOTE
from penstock.text.calls.parser import (
    HERMES_CLOSER,
    HERMES_OPENER,
    LLAMA_OPENER,
    MISTRAL_ARGUMENTS,
    MISTRAL_ID,
    MISTRAL_OPENER,
    CallParser,
    HermesParser,
    LlamaParser,
    MistralParser,
)
from penstock.text.calls.python_calls import PYTHON_CLOSER, PYTHON_OPENER, PythonParser
from penstock.text.calls.tagged import GLM, QWEN, GlmParser, QwenParser

PARSERS: dict[str, type[CallParser]] = {
    "hermes": HermesParser,
    "llama3": LlamaParser,
    "mistral": MistralParser,
    "qwen3_coder": QwenParser,
    "glm45": GlmParser,
    "pythonic": PythonParser,
    "gemma4": GemmaParser,
}

# Formats whose values do not tell their type.
UNTYPED = frozenset({"qwen3_coder", "glm45"})

# The marks of each that may be special tokens.
MARKERS: dict[str, tuple[str, ...]] = {
    "hermes": (HERMES_OPENER, HERMES_CLOSER),
    "llama3": (LLAMA_OPENER,),
    "mistral": (MISTRAL_OPENER, MISTRAL_ARGUMENTS, MISTRAL_ID),
    "qwen3_coder": (HERMES_OPENER, HERMES_CLOSER, QWEN.value_end, QWEN.call_end),
    "glm45": (HERMES_OPENER, GLM.key_begin, GLM.key_end, GLM.value_begin, GLM.value_end, GLM.call_end),
    "pythonic": (PYTHON_OPENER, PYTHON_CLOSER),
    "gemma4": (GEMMA_OPENER, GEMMA_CLOSER, GEMMA_QUOTE),
}
