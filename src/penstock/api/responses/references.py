"""References in the input of a response: items of stored responses, which the client names by their ids."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import InvalidParameter

KIND = "item_reference"


def referenced(given: str | list[Any]) -> dict[str, str]:
    """The ids that an input refers to, each with the place of its reference. Raises InvalidParameter.

    An item that could come back many times would make a short request a conversation of any length.
    """
    found: dict[str, str] = {}
    for index, item in enumerate(given if isinstance(given, list) else ()):
        if _is_reference(item):
            identifier = item.get("id")
            if not isinstance(identifier, str):
                raise InvalidParameter(f"input[{index}].id", "must be a string, the id of an item.")
            if identifier in found:
                message = f"is the id that {found[identifier]} refers to; refer to an item once."
                raise InvalidParameter(f"input[{index}].id", message)
            found[identifier] = f"input[{index}]"
    return found


def with_items(given: str | list[Any], found: Mapping[str, dict[str, Any]]) -> str | list[Any]:
    """The input with what was found in the place of each reference."""
    if isinstance(given, str) or not found:
        return given
    return [found[item["id"]] if _is_reference(item) else item for item in given]


def _is_reference(item: Any) -> bool:
    """Whether it is one, whose type may be left out."""
    if not isinstance(item, dict):
        return False
    return item.get("type") == KIND or (item.get("type") is None and item.keys() - {"type"} == {"id"})
