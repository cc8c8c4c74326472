"""What of a JSON schema outputs are held to: all that is not told."""

import contextlib
import copy
import json
import random
from typing import Any

import jsonschema
import pytest

from penstock.bundled.registry import FOLDER
from penstock.core.errors import InvalidParameter
from penstock.core.grammar import Grammar
from penstock.text.schema.enforceable import enforceable
from penstock.text.schema.keywords import ASSERTIONS, UNSUPPORTED
from penstock.text.schema.patterns import is_open
from penstock.text.tokenizer import load_tokenizer
from support.random_outputs import RandomOutputs, unique
from support.schemas import UNENFORCEABLE, any_schema


@pytest.fixture(scope="module", params=["made to repeat keys", "of a model"])
def outputs(request: pytest.FixtureRequest) -> RandomOutputs:
    """Of two vocabularies."""
    if request.param == "made to repeat keys":
        return RandomOutputs()
    tokenizer = load_tokenizer(FOLDER / "haiku")
    assert tokenizer.eos_token_id is not None
    return RandomOutputs(tokenizer.table, tokenizer.eos_token_id)


def test_outputs_fit_whatever_the_schema(outputs: RandomOutputs, pytestconfig: pytest.Config) -> None:
    """A keyword that is not enforced is told, and then the others are."""
    count = 2 * int(pytestconfig.getoption("--schemas"))
    complete = told = nothing_fits = 0
    for seed in range(count):
        schema = any_schema(seed)
        left, unenforced = enforceable(schema)
        assert enforceable(left) == (left, ()), schema
        told += bool(unenforced)
        if unenforced:
            with pytest.raises(InvalidParameter, match="cannot be enforced"):
                outputs.grammars.compile(Grammar.json_schema(schema))
        grammar = Grammar.json_schema(left)
        try:
            outputs.grammars.compile(grammar)
        except InvalidParameter as error:
            assert "nsatisfiable" in error.message, (error.message, schema)
            nothing_fits += 1
            continue
        for turn in range(2):
            text = outputs.draw(grammar, random.Random(f"{seed} {turn}"), 120)
            if text is not None:
                complete += 1
                value = json.loads(text, object_pairs_hook=unique)
                jsonschema.validate(value, left)
                if not unenforced:
                    jsonschema.validate(value, schema)
    print(f"{complete} of {2 * count} outputs were complete; of {told} schemas a part was not enforced")
    assert complete >= count and count // 5 <= told <= count * 4 // 5 and nothing_fits <= count // 10


_KEYWORDS = sorted({*ASSERTIONS, *UNSUPPORTED, "format", "propertyNames", "unevaluatedProperties", "unevaluatedItems"})
JUNK: list[Any] = [None, True, 0, -1, 2.5, "x", "(", [], [None], {}, {"type": {}}, ["a", 1], {"a": None}, {"$ref": 1}]


def test_values_that_no_keyword_has_are_told_or_refused(outputs: RandomOutputs) -> None:
    """They are never the cause of anything else."""
    chance = random.Random(1)
    for seed in range(300):
        schema = any_schema(seed)
        place: Any = schema
        while chance.random() < 0.6:
            inner = [each for each in place.values() if isinstance(each, dict) and each]
            if not inner:
                break
            place = chance.choice(inner)
        place[chance.choice([*place, *_KEYWORDS])] = copy.deepcopy(chance.choice(JUNK))
        left, unenforced = enforceable(schema)
        assert all(str(each) and each.field for each in unenforced)
        assert enforceable(left)[1] == ()
        with contextlib.suppress(InvalidParameter):
            outputs.grammars.compile(Grammar.json_schema(left))


@pytest.mark.parametrize("keyword", UNENFORCEABLE)
def test_what_cannot_be_enforced_is_told_by_its_place(keyword: str) -> None:
    inner = UNENFORCEABLE[keyword]
    schema = {"type": "object", "properties": {"deep": {"type": "array", "items": inner}}, "required": ["deep"]}
    left, (unenforced,) = enforceable(schema)
    assert unenforced.field == f".properties.deep.items.{keyword}"
    assert str(unenforced).startswith(f"the keyword '{keyword}' of the property 'deep[]'")
    assert list(left) == list(schema)
    (unenforced,) = enforceable({"$defs": {"d": inner}, "$ref": "#/$defs/d"})[1]
    assert unenforced.field == f".$defs.d.{keyword}"


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        # Remarks, and what asks for nothing.
        ({"type": "string", "nullable": True, "description": "d", "x-order": 1, "default": None}, {"type": "string"}),
        ({"properties": {"title": {"title": "t"}, "default": {}}}, {"properties": {"title": {}, "default": {}}}),
        ({"type": "string", "format": "color"}, {"type": "string"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"enum": ["x"], "format": "date"}, {"enum": ["x"]}),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, {"type": "array", "maxItems": 1}),
        ({"if": {"type": "null"}}, {}),
        ({"dependentRequired": {}, "not": False, "contains": {}, "minContains": 0}, {}),
        ({"propertyNames": {"type": "string", "format": "date"}}, {}),
        ({"maxLength": 2**40}, {}),
        ({"minProperties": 1, "required": ["a"]}, {"required": ["a"]}),
        ({"const": None}, {"const": None}),
        # The same in other words.
        (
            {"propertyNames": {"enum": ["a", "b"]}, "properties": {"a": {"type": "null"}, "c": {}}},
            {"properties": {"a": {"type": "null"}, "b": True}, "additionalProperties": False},
        ),
        (
            {"propertyNames": {"pattern": "^a"}, "properties": {"ab": {"type": "null"}, "c": {}}},
            {
                "properties": {"ab": {"type": "null"}, "c": False},
                "patternProperties": {"^a": True},
                "additionalProperties": False,
            },
        ),
        (
            {"properties": {"ab": {"type": "integer"}}, "patternProperties": {"^ab$": {"minimum": 1}, "^(c|d-e)$": {}}},
            {"properties": {"ab": {"allOf": [{"type": "integer"}, {"minimum": 1}]}, "c": {}, "d-e": {}}},
        ),
        ({"unevaluatedProperties": False}, {"additionalProperties": False}),
        ({"prefixItems": [{}], "unevaluatedItems": False}, {"prefixItems": [{}], "items": False}),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, {"anyOf": [{"type": "null"}, {"type": "string"}]}),
        (
            {"oneOf": [{"type": "null"}, {"type": "string"}], "anyOf": [{"enum": [None]}]},
            {"allOf": [{"anyOf": [{"type": "null"}, {"type": "string"}]}], "anyOf": [{"enum": [None]}]},
        ),
    ],
)
def test_what_is_left(schema: dict[str, Any], left: dict[str, Any]) -> None:
    assert enforceable(schema) == (left, ())


def test_names_that_could_run_out_are_not_written_but_for_those_that_are_declared(outputs: RandomOutputs) -> None:
    declared = {"properties": {"ab": {"type": "integer"}}, "required": ["ab"]}
    patterns = {"^[a-z]{2}$": {"minimum": 1, "maximum": 9}}
    schema = {"type": "object", **declared, "patternProperties": patterns, "additionalProperties": False}
    left, (unenforced,) = enforceable(schema)
    assert "limited number of names" in str(unenforced)
    for turn in range(5):
        text = outputs.draw(Grammar.json_schema(left), random.Random(turn))
        assert text is not None and 1 <= json.loads(text, object_pairs_hook=unique)["ab"] <= 9
    left, (unenforced,) = enforceable({"patternProperties": patterns})
    assert left == {"patternProperties": {"^[a-z]{2}$": False}}


def test_a_property_that_a_pattern_matches_too_can_be_written(outputs: RandomOutputs) -> None:
    """And what follows it: a comma only where there is a name for it."""
    schema = {
        "type": "object",
        "properties": {"ab": {"type": "integer"}},
        "patternProperties": {"^ab$": {"minimum": 1, "maximum": 9}},
        "additionalProperties": False,
    }
    for turn in range(10):
        text = outputs.draw(Grammar.json_schema(schema), random.Random(turn))
        assert text is not None
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^" + "[" * 100_000 + "$": {}}},
        {"patternProperties": {"^[" + "a" * 100_000 + "]{2}$": {}}},
        {"patternProperties": {f"^{index}-": {} for index in range(5000)}},
        {"oneOf": [{"const": index} for index in range(8000)]},
        {"properties": {str(index): {"pattern": f"^(?={index})"} for index in range(3000)}},
        {"properties": {str(index): {"pattern": f"^{index}-"} for index in range(3000)}},
        {
            "properties": {str(index): {} for index in range(3000)},
            "patternProperties": {f"^[0-9]{{1,{index + 4}}}$": {} for index in range(300)},
        },
        {"properties": {f"a{index}": {} for index in range(10_000)}, "propertyNames": {"pattern": "^a"}},
        {"properties": {str(index): {"oneOf": [{"const": each} for each in range(500)]} for index in range(20)}},
    ],
    ids=range(9),
)
def test_a_hostile_schema_is_sorted_out_by_a_bounded_number_of_comparisons(schema: dict[str, Any]) -> None:
    left, unenforced = enforceable(schema)
    assert unenforced and enforceable(left)[1] == ()


def test_a_name_may_be_in_any_number_of_patterns() -> None:
    """What they say of it stands side by side: nested, a few hundred would be too deep."""
    patterns = {f"^(a|b{index})$": {"minLength": index} for index in range(1, 1000)}
    left, unenforced = enforceable({"patternProperties": patterns})
    assert left["properties"]["a"] == {"allOf": list(patterns.values())} and unenforced == ()
    assert enforceable(left) == (left, ())


def test_what_is_told_of_long_names_is_short() -> None:
    inner = {"properties": {f"p{index}": {"uniqueItems": True} for index in range(100)}}
    _, unenforced = enforceable({"properties": {"n" * 100_000: {"properties": {"m" * 100_000: inner}}}})
    assert len(unenforced) == 100
    assert all(len(each.field) == 200 and len(str(each)) < 300 for each in unenforced)
    assert unenforced[7].field.endswith(".p7.uniqueItems") and ".p7'" in str(unenforced[7])


@pytest.mark.parametrize(
    ("pattern", "is_so"),
    [
        ("^x-", True),
        ("_id$", True),
        ("^[a-z]+$", True),
        ("^[a-z]+(?:-[0-9]+)*$", True),
        ("^([a-z]{2,})$", True),
        ("^a.*?$", True),
        ("^[$|]+$", True),
        ("^[a-z]{2}$", False),
        ("^[0-9]{4}-[0-9]{2}$", False),
        ("^(a|b.*)$", False),
        ("^a$|^b", False),
        ("^a\\+$", False),
        ("^([a-z]{2})+$", True),
        ("^[+]$", False),
    ],
)
def test_names_that_cannot_run_out(pattern: str, is_so: bool) -> None:
    assert is_open(pattern) == is_so
