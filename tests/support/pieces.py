"""What a parser makes of a text, however the text is cut."""

import random
from collections.abc import Sequence
from typing import Any

from penstock.text.pieces import CallArguments, CallStart, Content, OutputParser, Reasoning


def parsed(parser: OutputParser, parts: Sequence[str], *, reasons_first: bool = True) -> dict[str, Any]:
    """The pieces of all parts, added up; fails where pieces are empty or out of order.

    Where an output is of messages, one may reason behind one for the reader.
    """
    pieces = [piece for part in parts for piece in parser.feed(part)]
    pieces += parser.finish()
    assert list(parser.finish()) == []
    content, reasoning = "", ""
    calls: list[list[str]] = []
    for piece in pieces:
        match piece:
            case Content():
                assert piece.text
                content += piece.text
            case Reasoning():
                assert piece.text and not (reasons_first and (calls or content.strip()))
                reasoning += piece.text
            case CallStart():
                assert piece.index == len(calls)
                calls.append([piece.name, ""])
            case CallArguments():
                assert piece.text and piece.index == len(calls) - 1
                calls[-1][1] += piece.text
    return {"content": content, "reasoning": reasoning, "calls": [tuple(call) for call in calls]}


def cut(text: str, places: Sequence[int]) -> list[str]:
    """The text in parts that begin at these places, taken modulo its length."""
    starts = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[low:high] for low, high in zip(starts, starts[1:], strict=False)]


def every_cut(text: str, share: float = 1) -> list[list[str]]:
    """In one piece, character by character, and cut at one place or two, whichever they are.

    With a `share`, cut at any one place, and at that share of all twos.
    """
    two = [[text[:low], text[low:high], text[high:]] for high in range(len(text) + 1) for low in range(high + 1)]
    if share == 1:
        return [[text], list(text), *two]
    return [*each_cut(text), *random.Random(text).sample(two, int(share * len(two)))]


def each_cut(text: str) -> list[list[str]]:
    """In one piece, character by character, and cut at one place, whichever it is."""
    return [[text], list(text), *([text[:place], text[place:]] for place in range(1, len(text)))]
