"""The values that keywords of JSON Schema have."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.text.schema.keywords import BOUNDS, NAMED

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool | Mapping)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_type(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else _are_texts(value) and bool(value) and _TYPES.issuperset(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


_FORMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _is_filled_list),
    **dict.fromkeys(("additionalItems", "additionalProperties"), _is_schema),
    **dict.fromkeys(("$anchor", "$id", "$ref", "pattern"), _is_text),
    **dict.fromkeys(
        ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"),
        _is_count,
    ),
    # Those of older drafts say whether another bound is one.
    **dict.fromkeys(BOUNDS, lambda value: isinstance(value, int | float)),
    **dict.fromkeys(NAMED, lambda value: isinstance(value, Mapping)),
    "enum": lambda value: isinstance(value, list),
    "items": lambda value: _is_schema(value) or isinstance(value, list),
    "required": _are_texts,
    "type": _is_type,
}


def is_well_formed(key: str, value: Any) -> bool:
    """Whether a keyword may have such a value; keywords that are not known may have any."""
    return _FORMS.get(key, lambda value: True)(value)
