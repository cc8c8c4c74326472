"""What the fields of requests are: implemented, hints that are accepted and told as ignored, or refused by name.

A field that a dialect's type has is implemented. Every other field that clients know has a rule. A field without a rule
is refused, or told as ignored where the server was started so.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec
import msgspec.inspect

from penstock.api.equivalents import equivalent
from penstock.api.errors import UnknownField
from penstock.api.parsing import check_entries, decode_object, explain_mismatch
from penstock.core.errors import InvalidParameter

UnknownFields = Literal["refuse", "tell"]
UNKNOWN_FIELDS: tuple[UnknownFields, ...] = ("refuse", "tell")
MAX_NAME_LENGTH = 80
_LONGEST_QUOTED = 42
# The most fields without effect in one body.
_MOST_IGNORED = 256

Fields = TypeVar("Fields")


class HintField(msgspec.Struct, frozen=True):
    """A field that asks for nothing that would change what a right answer is.

    Attributes:
        why: what the server does instead, for the documents.
        neutral: values that ask for nothing at all, as null does; they are not told.
        fits: whether a value is such a hint; others are refused with the message `otherwise`.
    """

    why: str
    neutral: tuple[Any, ...] = ()
    fits: Callable[[Any], bool] = lambda value: True
    otherwise: str = ""


class RefusedField(msgspec.Struct, frozen=True):
    """A field that asks for something that the server does not do.

    Attributes:
        message: what to say to it.
        neutral: the values that ask for nothing and are accepted; null always is.
    """

    message: str
    neutral: tuple[Any, ...] = ()


FieldRule = HintField | RefusedField
FieldRules = Mapping[str, FieldRule]


class FieldReader:
    """Reads one request's body into typed fields, and keeps the names of those that have no effect.

    Attributes:
        ignored: these names, each once, with [] for any place in a list.
    """

    def __init__(self, unknown: UnknownFields | None = "refuse") -> None:
        """`unknown` says what becomes of fields without a rule; None where the operator has no say in it."""
        self._unknown = unknown
        self._ignored: dict[str, None] = {}

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the fields that were ignored so far."""
        return tuple(self._ignored)

    def ignore(self, name: str) -> None:
        """A field has no effect. Raises InvalidParameter where there are more than any client has use for."""
        self._ignored[re.sub(r"\[\d+\]", "[]", name)] = None
        if len(self._ignored) > _MOST_IGNORED:
            raise InvalidParameter("body", f"has more than {_MOST_IGNORED} unknown fields; leave them out.")

    def settle(self, fields: dict[str, Any], rules: FieldRules, path: str = "") -> None:
        """Take the fields that have rules out of an object; raises InvalidParameter for a value that is refused."""
        for name in [name for name in fields if name in rules]:
            value, rule = fields.pop(name), rules[name]
            if value is None or _is_one_of(value, rule.neutral):
                continue
            if isinstance(rule, RefusedField):
                raise InvalidParameter(path + name, rule.message)
            if not rule.fits(value):
                raise InvalidParameter(path + name, rule.otherwise)
            self.ignore(path + name)

    def convert(self, fields: dict[str, Any], kind: type[Fields]) -> Fields:
        """The fields as a typed whole; raises InvalidParameter, which names the field."""
        check_entries(fields)
        try:
            return msgspec.convert(fields, kind, str_keys=True)
        except msgspec.ValidationError:
            self._take_out_unknown(fields, kind)
        try:
            return msgspec.convert(fields, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise _with_values(explain_mismatch(str(error)), fields, kind) from error

    def _take_out_unknown(self, fields: dict[str, Any], kind: Any) -> None:
        for path, holder, name, known in list(_unknown_fields(fields, _type_info(kind), "")):
            if holder[name] is not None and self._unknown != "tell":
                raise UnknownField(path[-MAX_NAME_LENGTH:], self._why_unknown(name, known, at_top=path == name))
            del holder[name]
            self.ignore(path)

    def _why_unknown(self, name: str, known: Collection[str], *, at_top: bool) -> str:
        if at_top and (says := equivalent(name, known)) is not None:
            return f"is a field of other servers; {says}"
        nearest = get_close_matches(name[:MAX_NAME_LENGTH], list(known), 1)
        meant = f"did you mean {nearest[0]}? If not, leave it out" if nearest else "leave it out"
        option = ", or start the server with --unknown-fields tell" if self._unknown else ""
        return f"is not a field of this request; {meant}{option}."


def _is_one_of(value: Any, others: Iterable[Any]) -> bool:
    """JSON's true is not 1, although Python's is."""
    return any(type(value) is type(other) and value == other for other in others)


def parse_fields(body: bytes, kind: type[Fields]) -> Fields:
    """A body that is no request for answers; raises RequestError, naming the field."""
    return FieldReader(None).convert(decode_object(body), kind)


_Unknown = tuple[str, dict[str, Any], str, Collection[str]]


def _unknown_fields(value: Any, kind: msgspec.inspect.Type, path: str) -> Iterator[_Unknown]:
    """Fields that the type of their object does not have: the path, the object, the name, and the names that it has."""
    if isinstance(kind, msgspec.inspect.UnionType):
        kind = _member(value, kind)
    if isinstance(kind, msgspec.inspect.ListType) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_fields(item, kind.item_type, f"{path}[{index}]")
    if isinstance(kind, msgspec.inspect.StructType) and isinstance(value, dict):
        types = {field.encode_name: field.type for field in kind.fields}
        for name in value:
            place = f"{path}.{name}" if path else name
            if name in types:
                yield from _unknown_fields(value[name], types[name], place)
            elif kind.forbid_unknown_fields and name != kind.tag_field:
                yield place, value, name, types


def _member(value: Any, kind: msgspec.inspect.UnionType) -> msgspec.inspect.Type:
    """The type of a union that a value is meant to have, as far as that matters here."""
    if isinstance(value, list):
        return next((each for each in kind.types if isinstance(each, msgspec.inspect.ListType)), kind)
    structs = [each for each in kind.types if isinstance(each, msgspec.inspect.StructType)]
    if not isinstance(value, dict) or not structs:
        return kind
    tagged = [each for each in structs if each.tag_field is not None and value.get(each.tag_field) == each.tag]
    return tagged[0] if tagged else structs[0] if len(structs) == 1 and structs[0].tag_field is None else kind


def _with_values(mismatch: InvalidParameter, fields: dict[str, Any], kind: Any) -> InvalidParameter:
    """The error; where a value is not one of some, with those."""
    param = mismatch.param or ""
    given = re.match(r"invalid (?:enum )?value (.*)\.$", mismatch.message.removeprefix(f"{param}: "), re.DOTALL)
    values = [] if given is None else sorted(_values_at(param, fields, _type_info(kind)))
    if given is None or not values:
        return mismatch
    # It is quoted already.
    shown = given[1] if len(given[1]) <= _LONGEST_QUOTED else given[1][: _LONGEST_QUOTED - 1] + given[1][0]
    return InvalidParameter(param, f"{shown} is not one of {', '.join(values)}.")


def _values_at(param: str, value: Any, kind: msgspec.inspect.Type) -> set[str]:
    """The texts that a field may be, by the type of what it is in; none where that cannot be told."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", param):
        union = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
        tags = {
            str(each.tag) for each in union if isinstance(each, msgspec.inspect.StructType) and each.tag_field == name
        }
        if tags:
            return tags
        kind = _member(value, kind) if isinstance(kind, msgspec.inspect.UnionType) else kind
        if index and isinstance(kind, msgspec.inspect.ListType):
            value, kind = value[int(index)], kind.item_type
        elif isinstance(kind, msgspec.inspect.StructType):
            types = {field.encode_name: field.type for field in kind.fields}
            value, kind = value.get(name), types.get(name, msgspec.inspect.AnyType())
    union = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return {str(each) for one in union if isinstance(one, msgspec.inspect.LiteralType) for each in one.values}


@cache
def _type_info(kind: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)
