"""Random JSON schemas as people write them for answers: nested objects, arrays, enums, bounds, patterns, optionals."""

import random
from collections.abc import Callable
from typing import Any

_NAMES = (
    "name",
    "age",
    "city",
    "tags",
    "items",
    "id",
    "status",
    "price",
    "note",
    "kind",
    "when",
    "score",
    "größe",
    "x y",
)
_PATTERNS = ("^[a-z]{2,5}$", "^[A-Z]{3}-[0-9]{2,4}$", "^(red|green|blue)$", "^\\d{4}-\\d{2}$", "^[a-f0-9]+$")
MAX_DEPTH = 3


def random_schema(seed: int) -> dict[str, Any]:
    """An object schema; the same for the same seed."""
    return _object(random.Random(seed), 0)


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(_NAMES, chance.randint(1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(chance, depth + 1) for name in names},
        "required": [name for name in names if chance.random() < 0.6],
        "additionalProperties": False,
    }
    if chance.random() < 0.1:
        del schema["required"]
    return schema


def _value(chance: random.Random, depth: int) -> dict[str, Any]:
    makers: list[Callable[[random.Random, int], dict[str, Any]]] = [_string, _string, _number, _integer, _enum, _simple]
    if depth < MAX_DEPTH:
        makers += [_object, _array, _either]
    return chance.choice(makers)(chance, depth)


def _string(chance: random.Random, depth: int) -> dict[str, Any]:
    kind = chance.random()
    if kind < 0.3:
        return {"type": "string", "pattern": chance.choice(_PATTERNS)}
    if kind < 0.7:
        least = chance.randint(0, 4)
        return {"type": "string", "minLength": least, "maxLength": least + chance.randint(0, 20)}
    return {"type": "string"}


def _number(chance: random.Random, depth: int) -> dict[str, Any]:
    low = chance.randint(-1000, 1000) / 10
    return {"type": "number", "minimum": low, "maximum": low + chance.randint(1, 500)}


def _integer(chance: random.Random, depth: int) -> dict[str, Any]:
    low = chance.randint(-100, 100)
    bound = "exclusiveMaximum" if chance.random() < 0.3 else "maximum"
    return {"type": "integer", "minimum": low, bound: low + chance.randint(2, 10_000)}


def _enum(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": chance.sample(["red", "green", "blue", 1, 2.5, None, True, "a b", 'quo"te', "ünï", -3], 3)}


def _simple(chance: random.Random, depth: int) -> dict[str, Any]:
    return chance.choice([{"type": "boolean"}, {"type": "null"}, {"const": "fixed"}, {"type": ["integer", "null"]}])


def _array(chance: random.Random, depth: int) -> dict[str, Any]:
    least = chance.randint(0, 2)
    return {
        "type": "array",
        "items": _value(chance, depth + 1),
        "minItems": least,
        "maxItems": least + chance.randint(0, 3),
    }


def _either(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(chance, depth + 1), _integer(chance, depth)]}
