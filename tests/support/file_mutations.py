"""Model files as no program writes them: truncated, overwritten, and sound JSON with unsound values in it."""

import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from penstock.core.errors import StartupError

NASTY_VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    2**31 - 1,
    2**31,
    2**63,
    2**64,
    10**400,
    -0.0,
    0.5,
    64.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "64",
    "\0",
    "../config.json",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [None],
    [[]],
    [1, "a", None, {}],
    list(range(2000)),
    {"": None},
    {"a": {"b": {"c": []}}},
]


def bounded(what: Callable[[], object], memory: int, seconds: float, label: str) -> bool:
    """Whether it succeeds; fails with anything but an error of the tree, and where it took too much."""
    tracemalloc.start()
    # Of the processor, since others may use the machine.
    began = time.process_time()
    try:
        what()
        return True
    except StartupError as error:
        error.message.encode()
        return False
    except BaseException as error:
        error.add_note(label)
        raise
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < memory, f"{label}: {peak} bytes"
        assert time.process_time() - began < seconds, label


def paths(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested lists and objects, as keys from the outermost."""
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of `content` with another value at `path`."""
    if not path:
        return value
    first, *rest = path
    copy = content.copy()
    copy[first] = replaced(content[first], tuple(rest), value)
    return copy


def nested(depth: int, kind: str = "list") -> str:
    """JSON text so many levels deep."""
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    inner = "" if kind == "list" else "1"
    return opening * depth + inner + closing * depth


def mutated_json(rng: random.Random, content: dict[str, Any]) -> bytes:
    """The object's text with one to three places changed."""
    changed: Any = content
    for _ in range(rng.choice([1, 1, 2, 3])):
        places = list(paths(changed))[1:]
        if not places:
            break
        place = rng.choice(places)
        way = rng.randrange(5)
        if way == 0:
            parent = changed
            for key in place[:-1]:
                parent = parent[key]
            shorter = parent.copy()
            del shorter[place[-1]]
            changed = replaced(changed, place[:-1], shorter)
        elif way == 1:
            other = changed
            for key in rng.choice(places):
                other = other[key]
            changed = replaced(changed, place, other)
        else:
            changed = replaced(changed, place, rng.choice(NASTY_VALUES))
    text = json.dumps(changed)
    way = rng.randrange(12)
    if way == 0 and text.startswith("{") and len(text) > 2:
        # The same key twice, with another value.
        key = json.dumps(rng.choice(list(content)))
        text = "{" + f"{key}: {json.dumps(rng.choice(NASTY_VALUES))}, " + text[1:]
    elif way == 1:
        text = text.replace(": ", f': {nested(rng.choice([10, 200, 900, 960, 990, 5000]))}, "b": ', 1)
    elif way == 2:
        text = text.replace(": ", ": " + "9" * rng.choice([100, 4299, 5000]) + ', "b": ', 1)
    return text.encode()


def mutated_bytes(rng: random.Random, content: bytes) -> bytes:
    """The bytes with some of them overwritten, cut out or put in."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 20])):
        if not data:
            break
        place = rng.randrange(len(data))
        way = rng.randrange(5)
        if way == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif way == 1:
            data[place] = rng.randrange(256)
        elif way == 2:
            del data[place : place + rng.choice([1, 8, 100])]
        elif way == 3:
            data[place:place] = rng.choice([b"\0" * 8, b"\xff" * 8, b"{", b"]", b'"', b"\xef\xbb\xbf", b"9" * 50])
        else:
            data[place : place + 8] = rng.choice([0, 1, 2**32, 2**63, 2**64 - 1]).to_bytes(8, "little")
    return bytes(data)


def safetensors_file(header: bytes, data: bytes) -> bytes:
    """A file of a header and what comes after it."""
    return len(header).to_bytes(8, "little") + header + data
