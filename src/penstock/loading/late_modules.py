"""Checkpoints of late interaction: ColBERT's own (`artifact.metadata`), and PyLate's (`modules.json`)."""

from collections.abc import Mapping
from pathlib import Path
from string import punctuation
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.late_interaction import LateInteraction
from penstock.core.vectors import Dense, Normalize, VectorModules
from penstock.loading.json_file import read_json

METADATA = "artifact.metadata"
SETTINGS = "config_sentence_transformers.json"


def colbert_modules(folder: Path) -> VectorModules | None:
    """What ColBERT's own metadata say; None where there are none. Raises ModelFileError and UnsupportedModel."""
    if not (folder / METADATA).is_file():
        return None
    said, config = read_json(folder / METADATA), read_json(folder / "config.json")
    similarity = said.get("similarity", "cosine")
    if similarity != "cosine":
        raise UnsupportedModel(f"{METADATA} has similarity = {similarity!r}; implemented: cosine.")
    late = LateInteraction(
        _text(said, METADATA, "query_token_id", "[unused0]"),
        _text(said, METADATA, "doc_token_id", "[unused1]"),
        _count(said, METADATA, "query_maxlen", 32),
        _count(said, METADATA, "doc_maxlen", 220),
        expands=True,
        seen=_flag(said, METADATA, "attend_to_mask_tokens", False),
        skipped=tuple(punctuation) if _flag(said, METADATA, "mask_punctuation", True) else (),
    )
    inputs, outputs = _count(config, "config.json", "hidden_size", 0), _count(said, METADATA, "dim", 128)
    return late_modules(late, (Dense("", inputs, outputs, biased=False),))


def is_pylate(settings: Mapping[str, Any]) -> bool:
    """Whether the settings of a sentence-transformers' folder are PyLate's."""
    return "query_prefix" in settings or "document_prefix" in settings


def pylate_modules(settings: Mapping[str, Any], steps: tuple[Dense, ...]) -> VectorModules:
    """What PyLate's settings say, of a model with these dense layers. Raises ModelFileError."""
    skipped = settings.get("skiplist_words") or ()
    if not isinstance(skipped, list | tuple) or not all(isinstance(word, str) for word in skipped):
        raise ModelFileError(f"{SETTINGS} has skiplist_words that are no texts.")
    late = LateInteraction(
        _text(settings, SETTINGS, "query_prefix", "[Q] "),
        _text(settings, SETTINGS, "document_prefix", "[D] "),
        _count(settings, SETTINGS, "query_length", 32),
        _count(settings, SETTINGS, "document_length", 180),
        expands=_flag(settings, SETTINGS, "do_query_expansion", True),
        seen=_flag(settings, SETTINGS, "attend_to_expansion_tokens", False),
        skipped=tuple(skipped),
    )
    return late_modules(late, steps)


def late_modules(late: LateInteraction, steps: tuple[Dense, ...]) -> VectorModules:
    """A vector of length 1 for each token."""
    longest = max(late.query_length, late.document_length)
    return VectorModules("tokens", (*steps, Normalize()), longest=longest, late=late)


def _text(said: Mapping[str, Any], file: str, key: str, default: str) -> str:
    value = said.get(key, default)
    if not isinstance(value, str) or not value:
        raise ModelFileError(f"{file} has {key} = {value!r}; it must be a token.")
    return value


def _count(said: Mapping[str, Any], file: str, key: str, default: int) -> int:
    return whole_number(said.get(key, default), file, key)


def whole_number(value: Any, file: str, key: str) -> int:
    """What a file has under a key, if it is a whole number above 0. Raises ModelFileError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelFileError(f"{file} has {key} = {value!r}; it must be a whole number above 0.")
    return value


def _flag(said: Mapping[str, Any], file: str, key: str, default: bool) -> bool:
    value = said.get(key, default)
    if not isinstance(value, bool):
        raise ModelFileError(f"{file} has {key} = {value!r}; it must be true or false.")
    return value
