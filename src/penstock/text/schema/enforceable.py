"""A JSON schema as llguidance can hold an output to it, and what of it cannot be enforced.

An output of what is left fits the schema, but for the keywords that are told. Where a keyword can be enforced in other
words, it is; where it cannot, it is left out, and where that would let other names in, they are not written at all.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.text.schema.form import is_well_formed
from penstock.text.schema.keywords import (
    ASSERTIONS,
    BOUNDS,
    DEFINITIONS,
    FORMATS,
    IN_PLACE,
    INNER,
    NAMED,
    UNSUPPORTED,
    VALUES,
)
from penstock.text.schema.patterns import is_open, matches, names_of, pattern_problem, problem

Schema = Any
"""An object or a boolean."""
Path = tuple[str | int, ...]
"""The keys that lead from a schema's root to what is in it."""

# llguidance computes with float64, and divides by numbers of a few digits.
_MOST_EXACT = 2**53
_MOST_DIGITS = 9
# Expressions count no further; no output is longer.
_MOST_LENGTH = 2**31
_INEXACT = "a number of it has too many digits"
_MALFORMED = "JSON Schema has no such value of it"
_RUN_OUT = "it matches a limited number of names, and keys are not repeated"
# White space between the parts of a JSON value is bounded, so that a model cannot fill its whole output with it: a
# space, or a line break and its indentation.
_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,32})?", "lenient": False, "coerce_one_of": False}
_TELLING = ("type", "const", "enum")
_MOST_REFERENCES = 16
# Each is compared to all others.
_MOST_PATTERNS = 20
_MOST_ALTERNATIVES = 1000
# Expressions of one schema, and names that one is tried on. Each is compiled, in some 0.2 ms.
_MOST_TRIED = 1000
_NOT_TRIED = f"no more than {_MOST_TRIED} expressions, and names for them, are looked at"
# Characters of a path. A name can be as long as the schema, and a thousand keywords can be below it.
_LONGEST_TOLD = 200
_NOTHING = object()


class Unenforced(msgspec.Struct, frozen=True):
    """A keyword that outputs are not held to.

    Attributes:
        path: where it is, itself included.
        why: what is in the way; empty where it is the keyword as such.
    """

    path: Path
    why: str = ""

    @property
    def field(self) -> str:
        """The path as messages write what is in a field, `.properties.tags.uniqueItems`; its end where it is long."""
        text = "".join(f"[{key}]" if isinstance(key, int) else f".{key[:_LONGEST_TOLD]}" for key in self.path)
        return _end_of(text)

    def refusal(self, param: str) -> InvalidParameter:
        """What to say where all of the schema in a field has to be enforced."""
        return InvalidParameter(param, f"{self} cannot be enforced; leave it out.")

    def __str__(self) -> str:
        """`the keyword 'uniqueItems' of the property 'filters.tags'`, and why."""
        names: list[str] = []
        keys = iter(self.path[:-1])
        for key in keys:
            if key in NAMED:
                names.append(str(next(keys, ""))[:_LONGEST_TOLD])
            elif key in ("items", "prefixItems", "additionalProperties"):
                names.append("*" if key == "additionalProperties" else "[]")
        place = f" of the property {_end_of('.'.join(names).replace('.[]', '[]'))!r}" if names else ""
        return f"the keyword {str(self.path[-1])!r}{place}" + (f" ({self.why})" if self.why else "")


def _end_of(text: str) -> str:
    return text if len(text) <= _LONGEST_TOLD else f"…{text[1 - _LONGEST_TOLD :]}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """What can be enforced of a schema, as a rule's body in llguidance's dialect of Lark."""
    return f"%json {json.dumps({**schema, 'x-guidance': _OPTIONS}, ensure_ascii=False)}"


def enforceable(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Unenforced, ...]]:
    """What of a schema can be enforced, as llguidance understands it, and the rest."""
    walk = _Walk(schema)
    return walk.whole(schema, (), in_place=False), tuple(walk.unenforced)


class _Walk:
    """The way through one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.unenforced: list[Unenforced] = []
        self._tried = 0

    def whole(self, schema: Mapping[str, Any], path: Path, *, in_place: bool) -> dict[str, Any]:
        """A schema that is an object; `in_place`: it is one of several for the same value."""
        found: dict[str, Any] = {}
        for key, value in schema.items():
            kept = self._kept(schema, key, value, (*path, key))
            if kept is not _NOTHING:
                found[key] = kept
        self._restrict_names(found, schema, (*path, "propertyNames"))
        self._restrict_unevaluated(found, schema, path)
        self._sort_patterns(found, (*path, "patternProperties"))
        self._restrict_counts(found, path, in_place=in_place)
        return self._without_one_of(found, (*path, "oneOf"))

    def _leave_out(self, path: Path, why: str = "") -> None:
        self.unenforced.append(Unenforced(path, why))

    def _may_try(self, count: int) -> bool:
        """Whether `count` more expressions may still be compiled."""
        self._tried += count
        return self._tried <= _MOST_TRIED

    def _kept(self, schema: Mapping[str, Any], key: str, value: Any, path: Path) -> Any:
        """What is left of a keyword's value."""
        if key in ASSERTIONS and not is_well_formed(key, value):
            self._leave_out(path, _MALFORMED)
            return _NOTHING
        if key in NAMED and isinstance(value, Mapping):
            return {name: self._inner(each, (*path, name)) for name, each in value.items()}
        if key in INNER and isinstance(value, list):
            return [self._inner(each, (*path, index), in_place=key in IN_PLACE) for index, each in enumerate(value)]
        if key in INNER:
            return self._inner(value, path)
        if key == "enum" and isinstance(value, list) and value:
            exact = [each for each in value if _is_exact(each)]
            if len(exact) < len(value):
                self._leave_out(path, _INEXACT)
            return exact or _NOTHING
        why = _NOT_TRIED if key == "pattern" and not self._may_try(1) else _why_not(schema, key, value)
        if why is not None:
            self._leave_out(path, why)
        return value if why is None and _is_constraint(schema, key, value) else _NOTHING

    def _inner(self, schema: Schema, path: Path, *, in_place: bool = False) -> Schema:
        if isinstance(schema, Mapping):
            return self.whole(schema, path, in_place=in_place)
        if not isinstance(schema, bool):
            self._leave_out(path, _MALFORMED)
            return True
        return schema

    def _restrict_names(self, found: dict[str, Any], schema: Mapping[str, Any], path: Path) -> None:
        """Say by other keywords what names of properties are like."""
        names = schema.get("propertyNames", True)
        if isinstance(names, Mapping):
            names = {
                key: each for key, each in names.items() if key in ASSERTIONS and (key, each) != ("type", "string")
            }
        if names is True or names == {}:
            return
        properties, others = found.get("properties", {}), found.get("additionalProperties", True)
        only: tuple[str, Any] = (
            next(iter(names.items())) if isinstance(names, Mapping) and len(names) == 1 else ("", None)
        )
        keyword, value = only
        listed = [value] if keyword == "const" else value
        if keyword not in ("const", "enum", "pattern") or not is_well_formed(keyword, value):
            self._leave_out(path)
        elif found.get("patternProperties"):
            self._leave_out(path, "beside patternProperties")
        elif isinstance(listed, list):
            found["properties"] = {name: each for name, each in properties.items() if name in listed} | {
                name: others for name in listed if isinstance(name, str) and name not in properties
            }
            found["additionalProperties"] = False
        elif properties and others not in (True, {}):
            self._leave_out(path)
        elif not self._may_try(1 + len(properties)):
            self._leave_out(path, _NOT_TRIED)
        elif (why := pattern_problem(value)) is not None:
            self._leave_out(path, why)
        else:
            found["properties"] = {name: each if matches(value, name) else False for name, each in properties.items()}
            found["patternProperties"] = {value: others}
            found["additionalProperties"] = False

    def _restrict_unevaluated(self, found: dict[str, Any], schema: Mapping[str, Any], path: Path) -> None:
        """Where nothing else applies to the same value, what is not evaluated is what is not named."""
        for key, named in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            value = schema.get(key, True)
            if value in (True, {}) or (named in found and not isinstance(found[named], list)):
                continue
            if schema.keys() & IN_PLACE or isinstance(found.get(named), list):
                self._leave_out((*path, key))
            else:
                found[named] = self._inner(value, (*path, key))

    def _sort_patterns(self, found: dict[str, Any], path: Path) -> None:
        """Let patterns of names be such as keep keys unique, and match no name that another matches."""
        patterns = found.pop("patternProperties", None)
        if not isinstance(patterns, Mapping):
            return
        declared: dict[str, list[Schema]] = {name: [schema] for name, schema in found.get("properties", {}).items()}
        kept: dict[str, Schema] = {}
        for pattern, schema in patterns.items():
            listed = names_of(pattern)
            if listed is not None:
                for name in listed:
                    declared.setdefault(name, []).append(schema)
                continue
            why = self._why_no_pattern(pattern, kept)
            if why is None and schema is not False and not is_open(pattern):
                why = _RUN_OUT if self._may_try(len(declared)) else _NOT_TRIED
                matched = [name for name in declared if why is _RUN_OUT and matches(pattern, name)]
                for name in matched:
                    declared[name].append(schema)
                if why is _RUN_OUT and not matched:
                    # No name that it matches is written.
                    kept[pattern] = False
            if why is None:
                kept[pattern] = schema
            else:
                self._leave_out(path, f"{pattern[:80]}: {why}")
        if declared:
            properties = (*path[:-1], "properties")
            found["properties"] = {name: self._all(each, (*properties, name)) for name, each in declared.items()}
        if kept:
            found["patternProperties"] = kept

    def _why_no_pattern(self, pattern: str, kept: Collection[str]) -> str | None:
        """Why an expression for names cannot be enforced beside those that are kept."""
        return (pattern_problem(pattern) or _beside_others(pattern, kept)) if self._may_try(2) else _NOT_TRIED

    def _all(self, schemas: Sequence[Schema], path: Path) -> Schema:
        """What schemas have in common that are sorted out already."""
        told = [schema for schema in schemas if schema is not True]
        if len(told) > 1:
            return self.whole({"allOf": told}, path, in_place=False)
        return told[0] if told else True

    def _restrict_counts(self, found: dict[str, Any], path: Path, *, in_place: bool) -> None:
        """Leave out numbers of properties that say nothing, or that llguidance cannot count."""
        least, most = found.get("minProperties", 0), found.get("maxProperties", math.inf)
        if not (isinstance(least, int) and isinstance(most, int | float)):
            return
        required = {name for name in found.get("required", ()) if isinstance(name, str)}
        named = {name for name, schema in found.get("properties", {}).items() if schema is not False} | required
        is_open = found.get("additionalProperties", True) is not False or bool(found.get("patternProperties"))
        if least <= len(required):
            found.pop("minProperties", None)
        if not is_open and most >= len(named):
            found.pop("maxProperties", None)
        least, most = least - len(required), most - len(required)
        is_counted = not (in_place or found.keys() & IN_PLACE)
        # It counts no more than one optional property.
        if is_counted and (named <= required or (not is_open and least <= 1 and most in (1, math.inf))):
            return
        for key in ("minProperties", "maxProperties"):
            if key in found:
                del found[key]
                self._leave_out((*path, key), "optional properties cannot be counted")

    def _without_one_of(self, found: dict[str, Any], path: Path) -> dict[str, Any]:
        """Put `anyOf` in the place of `oneOf`, which says the same where no two alternatives overlap."""
        branches = found.get("oneOf")
        if not isinstance(branches, list):
            return found
        if not self._may_try(min(len(branches), _MOST_TRIED)):
            self._leave_out(path, _NOT_TRIED)
        elif len(branches) > _MOST_ALTERNATIVES or problem({"oneOf": [self._outline(branch) for branch in branches]}):
            self._leave_out(path, "its alternatives may overlap")
        if "anyOf" in found:
            found["allOf"] = [*found.get("allOf", ()), {"anyOf": found.pop("oneOf")}]
        return {"anyOf" if key == "oneOf" else key: value for key, value in found.items()}

    def _outline(self, branch: Schema) -> Schema:
        """What tells an alternative from others: its type, its value, and those of the properties it must have."""
        if not isinstance(branch, Mapping):
            return branch
        for _ in range(_MOST_REFERENCES):
            if "$ref" not in branch:
                break
            start, _, name = str(branch["$ref"]).removeprefix("#/").partition("/")
            definitions = self._root.get(start) if start in DEFINITIONS else None
            target = definitions.get(name) if isinstance(definitions, Mapping) else None
            if not isinstance(target, Mapping):
                return True
            branch = target
        outline = {key: branch[key] for key in _TELLING if key in branch}
        required, properties = branch.get("required"), branch.get("properties")
        if isinstance(required, list) and isinstance(properties, Mapping):
            outline["required"] = required
            outline["properties"] = {
                name: {key: schema[key] for key in _TELLING if key in schema}
                for name, schema in properties.items()
                if name in required and isinstance(schema, Mapping)
            }
        return outline or True


def _beside_others(pattern: str, others: Collection[str]) -> str | None:
    """Why an expression for names cannot stand beside others."""
    if len(others) == _MOST_PATTERNS:
        return f"no more than {_MOST_PATTERNS} patterns are told apart"
    together = {"type": "object", "patternProperties": dict.fromkeys([*others, pattern], True)}
    return "another pattern may match the same names" if problem(together) else None


def _why_not(schema: Mapping[str, Any], key: str, value: Any) -> str | None:
    """Why a keyword cannot be enforced; None where it can, or where it asks for nothing."""
    if key in UNSUPPORTED:
        return None if _asks_nothing(schema, key, value) else ""
    if key == "pattern" and isinstance(value, str):
        return pattern_problem(value)
    if key == "$ref" and isinstance(value, str) and not value.startswith("#"):
        return "only what is in the schema itself can be referred to"
    if key == "multipleOf":
        return None if _can_divide(value) else _INEXACT
    if key in BOUNDS or key == "const":
        return None if _is_exact(value) else _INEXACT
    return _INEXACT if key == "minLength" and _is_huge(value) else None


def _is_constraint(schema: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a keyword says something about outputs that its value does not say by itself."""
    if key == "format":
        # A value that is one of some need not be in a form.
        return isinstance(value, str) and value in FORMATS and not schema.keys() & VALUES
    return key in ASSERTIONS and key not in UNSUPPORTED and not (key == "maxLength" and _is_huge(value))


def _asks_nothing(schema: Mapping[str, Any], key: str, value: Any) -> bool:
    match key:
        case "uniqueItems":
            most = schema.get("maxItems")
            return value is not True or (isinstance(most, int) and most <= 1)
        case "contains":
            return schema.get("minContains") == 0 and "maxContains" not in schema
        case "not":
            return value is False
        case "if":
            return "then" not in schema and "else" not in schema
        case "dependencies" | "dependentRequired" | "dependentSchemas":
            return not value
    return False


def _is_exact(value: Any) -> bool:
    """Whether all numbers in a value are what they are as float64."""
    if isinstance(value, Mapping):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    return isinstance(value, bool) or not isinstance(value, int | float) or abs(value) < _MOST_EXACT


def _can_divide(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return False
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    return isinstance(exponent, int) and len(digits) <= _MOST_DIGITS and -_MOST_DIGITS <= exponent <= 0


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and value >= _MOST_LENGTH
