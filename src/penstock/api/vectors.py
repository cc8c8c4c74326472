"""Prompts that a model wants before texts which become vectors, by the names that its checkpoint gives them."""

from typing import Any

from penstock.core.errors import InvalidParameter


def put_before(prompt: str, given: Any, *, asked: bool) -> tuple[Any, str]:
    """An input with a prompt before each of its texts, and what was put there.

    Token ids stay as they are unless it was `asked` for: then it raises InvalidParameter.
    """
    if not prompt:
        return given, ""
    texts = [given] if isinstance(given, str) else given
    if not all(isinstance(text, str) for text in texts):
        if not asked:
            return given, ""
        raise InvalidParameter(
            "input", "token ids have no prompt put before them; send texts, or leave out input_type."
        )
    return (prompt + given if isinstance(given, str) else [prompt + text for text in texts]), prompt
