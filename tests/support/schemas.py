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


# Functions whose parameters can all be enforced.
AS_CLIENTS_SEND_THEM: list[dict[str, Any]] = [
    {},
    {"parameters": None, "strict": None},
    {"parameters": {}},
    {"parameters": {"type": "object"}},
    {"parameters": {"type": "object", "properties": {}}},
    {"parameters": {"type": "object", "additionalProperties": False}, "description": "x " * 100},
    {
        "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Arguments",
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "x " * 50, "examples": ["/a"], "default": None},
                "limit": {"type": ["integer", "null"], "exclusiveMinimum": 0, "maximum": 9007199254740991},
                "mode": {"anyOf": [{"enum": ["read", "write", None]}, {"type": "null"}], "nullable": True},
                "kind": {"const": "file"},
                "format": {"type": "string", "format": "int64-or-whatever"},
                "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                "meta": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
                "range": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "minItems": 2},
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1000,
                    "items": {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]},
                },
            },
            "required": ["path"],
            "additionalProperties": False,
        }
    },
    {
        "parameters": {
            "type": "object",
            "properties": {"shape": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "discriminator": {}}},
            "$defs": {
                kind: {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"
            },
        }
    },
    {
        "parameters": {
            "type": "object",
            "properties": {"x-a": {"type": "integer"}, "x": {"type": "integer"}},
            "patternProperties": {"^x-": {"minimum": 1}, "^(x)$": {"minimum": 3}},
            "required": ["x"],
        }
    },
]

# By the keyword that no output can be held to.
UNENFORCEABLE: dict[str, Any] = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "null"}},
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "dependentRequired": {"type": "object", "dependentRequired": {"x": ["y"]}},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 3}},
    "pattern": {"type": "string", "pattern": "^(?!no)"},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "minProperties": {"type": "object", "properties": {"x": {}, "y": {}}, "minProperties": 2},
    "patternProperties": {"type": "object", "patternProperties": {"^[a-z]{2}$": {}}},
    "multipleOf": {"type": "integer", "multipleOf": 10**12},
    "const": {"const": 2**53 + 1},
    "type": {"type": "str"},
    "required": {"type": "string", "required": True},
    "anyOf": {"anyOf": []},
    "properties": {"type": "object", "properties": None},
    "$ref": {"$ref": "https://example.com/schema.json"},
}


def any_schema(seed: int) -> dict[str, Any]:
    """A schema of any keywords, as clients send them: whether they can be enforced or not."""
    return _Any(random.Random(seed)).schema(0)


class _Any:
    """Makes schemas from one source of chance."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._ends: list[Callable[[], dict[str, Any]]] = [self._text, self._count, self._amount, self._one_of_values]
        self._makers = [*self._ends, self._map, self._map, self._record, self._record, self._list, self._pair]
        self._makers += [self._alternatives, self._both, self._tree]

    def schema(self, depth: int) -> dict[str, Any]:
        self._depth = depth
        schema = self._chance.choice(self._makers if depth < MAX_DEPTH else self._ends)()
        remarks = [{"description": "d"}, {"x-order": {"type": 1}}, {"nullable": True}, {"default": {"enum": 1}}, {}]
        return schema | self._chance.choice(remarks)

    def _some(self, *keywords: dict[str, Any], chance: float = 0.3) -> dict[str, Any]:
        return {key: value for each in keywords if self._chance.random() < chance for key, value in each.items()}

    def _inner(self) -> dict[str, Any]:
        depth = self._depth
        try:
            return self.schema(depth + 1)
        finally:
            self._depth = depth

    def _text(self) -> dict[str, Any]:
        form = self._chance.choice(["date", "uuid", "ipv4", "date-time", "color", "int64", "regex"])
        pattern = self._chance.choice([*_PATTERNS, "a|b", "(?!x)y", "^(a)\\1$", "[b-", "\\bword\\b", "^[!-~]{2,}$"])
        return {"type": "string"} | self._chance.choice(
            [
                {"format": form},
                {"pattern": pattern},
                self._some({"minLength": 1}, {"maxLength": 5}, {"maxLength": 2**40}),
            ]
        )

    def _count(self) -> dict[str, Any]:
        bounds = self._some({"minimum": -5}, {"maximum": 12}, {"exclusiveMinimum": -7}, {"multipleOf": 3})
        return {"type": "integer"} | bounds | self._some({"maximum": 2**60 + 1}, {"multipleOf": 10**15}, chance=0.05)

    def _amount(self) -> dict[str, Any]:
        return {"type": self._chance.choice(["number", ["number", "null"]])} | self._some(
            {"minimum": -1.5}, {"exclusiveMaximum": 1000}, {"multipleOf": 0.5}
        )

    def _one_of_values(self) -> dict[str, Any]:
        values = ["a", "b\n", None, True, 3, 2.5, -1, {"a": [1]}, 2**53 + 1, [None]]
        if self._chance.random() < 0.3:
            return {"const": self._chance.choice(values[:8])}
        return {"enum": self._chance.sample(values, 3)}

    def _map(self) -> dict[str, Any]:
        patterns = ["^a", "^b$", "^(a|b)$", "^[0-9]+$", "^[a-z]{2}$", "_x$", "^x-[a-z]*$", "(?=a)"]
        names = [
            {"pattern": "^[a-z]+$"},
            {"enum": ["a", "b", "c"]},
            {"format": "date"},
            {"maxLength": 2},
            {"pattern": "a{2}$"},
        ]
        return {"type": "object"} | self._some(
            {"additionalProperties": self._inner()},
            {"patternProperties": {name: self._inner() for name in self._chance.sample(patterns, 2)}},
            {"propertyNames": self._chance.choice(names)},
            {"minProperties": self._chance.randint(0, 3)},
            {"maxProperties": self._chance.randint(3, 4)},
            chance=0.4,
        )

    def _record(self) -> dict[str, Any]:
        names = self._chance.sample(["a", "b", "ab", "a b", 'q"', "ü", "_x", "not"], self._chance.randint(1, 3))
        schema = {"type": "object", "properties": {name: self._inner() for name in names}}
        schema["required"] = [name for name in names if self._chance.random() < 0.5]
        return schema | self._some(
            {"additionalProperties": self._chance.choice([False, True, {"type": "integer"}])},
            {"additionalProperties": False},
            {"patternProperties": {"^a": {"type": "string"}}},
            {"minProperties": 1},
            {"maxProperties": 3},
            {"unevaluatedProperties": False},
            {"dependentRequired": {names[0]: names[1:]}},
            {"if": {"required": names}, "then": {"maxProperties": 9}},
            chance=0.2,
        )

    def _list(self) -> dict[str, Any]:
        return {"type": "array", "items": self._inner()} | self._some(
            {"minItems": 1}, {"maxItems": 3}, {"maxItems": 1000}, {"uniqueItems": True}, {"contains": {"type": "null"}}
        )

    def _pair(self) -> dict[str, Any]:
        return {"type": "array", "prefixItems": [self._inner(), self._inner()]} | self._some(
            {"items": False}, {"minItems": 2}, {"unevaluatedItems": False}, {"maxItems": 2}
        )

    def _alternatives(self) -> dict[str, Any]:
        key = self._chance.choice(["anyOf", "oneOf"])
        if self._chance.random() < 0.5:
            kinds = [
                {"properties": {"kind": {"const": kind}, "a": self._inner()}, "required": ["kind"]} for kind in "xy"
            ]
            return {key: [{"type": "object", **kind} for kind in kinds]}
        return {key: [self._inner(), {"type": "null"}]}

    def _both(self) -> dict[str, Any]:
        first = {"type": "object", "properties": {"a": self._inner()}, "required": ["a"]}
        return {"allOf": [first, {"properties": {"b": self._inner()}} | self._some({"minProperties": 2})]}

    def _tree(self) -> dict[str, Any]:
        if self._depth:
            return {"type": "boolean"}
        node = {"type": "object", "properties": {"a": self._inner(), "next": {"$ref": "#/$defs/node"}}}
        return {"$ref": "#/$defs/node", "$defs": {"node": node}}
