"""Reading server-sent events strictly."""

import json
from typing import Any


def events(text: str) -> list[Any]:
    """The events of a whole stream, [DONE] left off; fails on anything that is not one JSON object an event."""
    parts = text.split("\n\n")
    assert parts[-1] == "", "the stream must end with an empty line"
    assert all(part.startswith("data: ") and "\n" not in part for part in parts[:-1])
    assert parts[-2] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
