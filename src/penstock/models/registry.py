"""From config.json to a declaration: which family reads which architecture."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.models import gemma3, llama, mistral, qwen
from penstock.models.declaration import ModelDeclaration

FAMILIES: dict[str, Callable[[Mapping[str, Any]], ModelDeclaration]] = {
    llama.ARCHITECTURE: llama.declare,
    mistral.ARCHITECTURE: mistral.declare,
    qwen.QWEN2: qwen.declare_qwen2,
    qwen.QWEN3: qwen.declare_qwen3,
    gemma3.ARCHITECTURE: gemma3.declare,
    gemma3.MULTIMODAL_ARCHITECTURE: gemma3.declare_multimodal,
}


def declare(config: Mapping[str, Any]) -> ModelDeclaration:
    """The declaration of the model that `config` (the content of config.json) describes.

    Raises UnsupportedModel for an architecture or a value that is not implemented, naming it, and ModelFileError for
    values that are missing, malformed or contradict each other.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ModelFileError("config.json has no architectures, so the model's family is not known.")
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name](config)
    raise UnsupportedModel(
        f"The architecture {', '.join(names)} is not implemented; these are: {', '.join(sorted(FAMILIES))}."
    )
