"""Penstock serves large language models: an inference engine and an OpenAI-compatible server.

The names below are imported when they are first used, so that `import penstock` stays fast and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.core.beam_params import BeamSearchParams
    from penstock.core.beam_search import BeamSearch
    from penstock.core.grammar import Grammar
    from penstock.core.kv_policy import KVPolicy
    from penstock.core.sampling import SamplingParams
    from penstock.llm import LLM, AsyncEngine

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngine",
    "BeamSearch",
    "BeamSearchParams",
    "Grammar",
    "KVPolicy",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "AsyncEngine": "penstock.llm",
    "BeamSearch": "penstock.core.beam_search",
    "BeamSearchParams": "penstock.core.beam_params",
    "Grammar": "penstock.core.grammar",
    "KVPolicy": "penstock.core.kv_policy",
    "LLM": "penstock.llm",
    "SamplingParams": "penstock.core.sampling",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
