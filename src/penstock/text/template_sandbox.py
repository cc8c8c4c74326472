"""Where chat templates run: Jinja's immutable sandbox, with bounds on steps, time, and the size of every value.

What multiplies is checked before it is made: operators, formats, and the filters and methods that repeat or pad their
text. What no chat template needs for its work is left out instead. A value that refers to others many times over is
measured where it is made, compared, or becomes text. What is made counts, although it may be forgotten again: so no
template holds more than that.
"""

import functools
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from penstock.text.template_budget import (
    MAX_OUTPUT,
    MEASURED,
    VISITS_A_STEP,
    Budget,
    bounded,
    check_items,
    check_pieces,
    check_size,
    compared,
    counted,
    current,
    made,
    spent,
    text_size,
)

MAX_INTEGER_BITS = 4096
MAX_INDENT = 16

_SHORT_LITERAL = 32
# Filters and methods that pad, repeat or split to a length which the template names.
_REMOVED_FILTERS = ("batch", "center", "filesizeformat", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
_REMOVED_METHODS = frozenset(
    {"center", "encode", "expandtabs", "ljust", "maketrans", "rjust", "to_bytes", "translate", "zfill"}
)
# Filters that make text of any value.
_TEXT_FILTERS = frozenset(
    {"capitalize", "e", "escape", "forceescape", "indent", "lower", "replace", "safe", "string", "striptags", "title"}
    | {"trim", "truncate", "upper", "urlencode", "wordcount"}
)
# Filters that do not look at each of their values.
_QUICK_FILTERS = frozenset({"abs", "count", "d", "default", "first", "float", "int", "last", "length", "round"})
# Filters and methods that make a list of a text's pieces.
_SPLITTING = frozenset({"indent", "list", "split", "rsplit", "splitlines", "title", "wordcount"})
_COMPARING_FILTERS = frozenset({"dictsort", "groupby", "max", "min", "sort", "sum", "unique"})
_COMPARING_TESTS = (
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    "in",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
)


def rendered(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """The output of a template that a `Sandbox` has made. Raises whatever the template does."""
    token = current.set(Budget())
    try:
        parts, size = [], 0
        for part in template.generate(values):
            size += len(part)
            if size > MAX_OUTPUT:
                raise jinja2.TemplateRuntimeError(f"its output is longer than {MAX_OUTPUT} characters")
            parts.append(part)
        return "".join(parts)
    finally:
        current.reset(token)


class _Bound(jinja2.visitor.NodeTransformer):
    """Makes every loop count its steps, and every concatenation check its length."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        if node.recursive:
            raise jinja2.TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "__counted")
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        self.generic_visit(node)
        parts = jinja2.nodes.List(node.nodes, lineno=node.lineno)
        return _filtered(parts, "__concatenated")

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        return self._wrapped(node, "__made")

    def visit_Dict(self, node: jinja2.nodes.Dict) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        return self._wrapped(node, "__made")

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        if node.ctx != "load":
            return self.generic_visit(node)
        return self._wrapped(node, "__made")

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        if isinstance(node.arg, jinja2.nodes.Slice):
            return self._wrapped(node, "__cut")
        return self.generic_visit(node)

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        self.generic_visit(node)
        operands: list[jinja2.nodes.Compare | jinja2.nodes.Operand] = [node, *node.ops]
        for operand in operands:
            if not isinstance(operand.expr, jinja2.nodes.Const):
                operand.expr = _filtered(operand.expr, "__compared")
        return node

    def _wrapped(self, node: jinja2.nodes.Expr, name: str) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _filtered(node, name)

    def visit_Output(self, node: jinja2.nodes.Output) -> jinja2.nodes.Node:  # noqa: N802 (the name is Jinja's)
        self.generic_visit(node)
        node.nodes = [_counted_literal(child) for child in node.nodes]
        return node


def _filtered(node: jinja2.nodes.Node, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(cast(jinja2.nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _counted_literal(node: jinja2.nodes.Expr) -> jinja2.nodes.Expr:
    """Text of the template itself, as an expression that counts as written each time; short text stays as it is."""
    if not isinstance(node, jinja2.nodes.TemplateData) or len(node.data) < _SHORT_LITERAL:
        return node
    text = jinja2.nodes.Const(node.data, lineno=node.lineno)
    return _filtered(text, "__literal")


@jinja2.pass_context
def _literal(context: Any, text: str) -> str:
    # Because it takes the context, Jinja does not fold it into a constant.
    return text


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; here its body is simply rendered."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which counts steps and refuses operations that make much out of little."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlocks, jinja2.ext.loopcontrols],
            finalize=_written,
        )
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        self.filters |= {"format": _format, "indent": _indent, "join": _join, "replace": _replace, "tojson": _to_json}
        for name, function in self.filters.items():
            self.filters[name] = _checked(function, name)
        for name in _COMPARING_TESTS:
            self.tests[name] = _comparing(cast(Callable[..., Any], self.tests[name]))
        self.filters |= {"__counted": counted, "__literal": _literal, "__concatenated": _concatenated}
        self.filters |= {"__made": made, "__cut": bounded, "__compared": compared}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        # Jinja's own makes random text of any length.
        self.globals.pop("lipsum", None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Bound().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use a value's attribute."""
        if attr in _REMOVED_METHODS and isinstance(obj, str | bytes | int):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The `format` method of a text, which checks the result's size before it is made."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        if value.__name__ == "format_map":
            raise jinja2.exceptions.SecurityError("format_map is not available")

        def checked(*args: Any, **kwargs: Any) -> str:
            specs = [spec for _, _, spec, _ in string.Formatter().parse(value.__self__) if spec is not None]
            # A width is given by digits, or by a field inside of a field.
            if any(mark.isdigit() or mark == "{" for spec in specs for mark in spec):
                raise jinja2.exceptions.SecurityError("widths in a text format are not available")
            check_size(len(value.__self__) + len(specs) * text_size([*args, kwargs]))
            return inner(*args, **kwargs)

        return checked

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902, N805 (as in Jinja)
        current.get().step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name == "join" and len(args) == 1:
            args = (list(counted(args[0])),)
            check_size(sum(map(text_size, args[0])) + len(owner) * len(args[0]))
        elif isinstance(owner, str) and name == "replace":
            _check_replacement(owner, *args[:2])
        elif isinstance(owner, str) and name in _SPLITTING:
            check_pieces(owner)
        result = super().call(__context, __obj, *args, **kwargs)
        return made(result) if isinstance(result, MEASURED) else bounded(result)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result is bounded."""
        current.get().step()
        if isinstance(left, tuple) and operator in "+*":
            raise jinja2.exceptions.SecurityError("tuples cannot be added or repeated; use lists")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise jinja2.exceptions.SecurityError("it makes a number that is too large")
        elif operator == "*":
            sizes = [len(value) for value in (left, right) if hasattr(value, "__len__")]
            times = [value for value in (left, right) if isinstance(value, int)]
            check_size(max(sizes, default=0) * max(times, default=0))
            if isinstance(left, list | tuple) or isinstance(right, list | tuple):
                check_items(max(sizes, default=0) * max(times, default=0))
        elif operator == "%" and isinstance(left, str):
            _check_percent(left, right)
        return bounded(super().call_binop(context, operator, left, right))


def _comparing(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def checked(*args: Any) -> Any:
        for value in args:
            compared(value)
        return test(*args)

    return checked


def _written(value: Any) -> Any:
    """What an expression writes; Jinja calls this for each."""
    size = text_size(value)
    budget = current.get(None)
    # Constants are written while the template is compiled.
    if budget is not None:
        budget.write(size)
    return value


def _concatenated(values: list[Any]) -> Any:
    check_size(sum(map(text_size, values)))
    return bounded("".join(map(str, values)))


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A filter whose result is bounded, and where its work follows from all of its values, those before that."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if name in _QUICK_FILTERS:
            return function(*args, **kwargs)
        budget = current.get()
        budget.step()
        for value in (*args, *kwargs.values()):
            if isinstance(value, str):
                if name in _SPLITTING:
                    check_pieces(value)
            elif name in _TEXT_FILTERS:
                text_size(value)
            elif name in _COMPARING_FILTERS:
                compared(value)
            elif isinstance(value, MEASURED) and not isinstance(value, jinja2.runtime.Context):
                budget.step(len(value) // VISITS_A_STEP)
        result = function(*args, **kwargs)
        return spent(result) if isinstance(result, Iterator) else bounded(result)

    return checked


def _check_percent(layout: str, values: Any) -> None:
    if any(mark.isdigit() or mark == "*" for mark in layout):
        raise jinja2.exceptions.SecurityError("widths in a text format are not available")
    # A tuple's values are used once each, others perhaps by every mark.
    times = 1 if isinstance(values, tuple) else layout.count("%")
    check_size(len(layout) + times * text_size(values))


def _format(layout: Any, *args: Any, **kwargs: Any) -> str:
    text, values = str(layout), kwargs or args
    _check_percent(text, values)
    return text % values


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(s)
    check_size(len(text) + (len(text.splitlines()) + 1) * (len(width) if isinstance(width, str) else width))
    return jinja2.filters.do_indent(text, width, first, blank)


@jinja2.pass_environment
def _join(environment: Any, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
    items = list(counted(value))
    if attribute is not None:
        items = list(map(jinja2.filters.make_attrgetter(environment, attribute), items))
    check_size(sum(map(text_size, items)) + text_size(d) * len(items))
    return str(d).join(map(str, items))


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text = str(s)
    _check_replacement(text, str(old), str(new))
    return text.replace(str(old), str(new), -1 if count is None else count)


def _check_replacement(text: str, old: Any = None, new: Any = None) -> None:
    if isinstance(old, str) and isinstance(new, str):
        check_size(len(text) + text.count(old) * len(new))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes characters that HTML gives a meaning, which models are not trained on.
    width = len(indent) if isinstance(indent, str) else indent or 0
    if width > MAX_INDENT or any(len(separator) > MAX_INDENT for separator in separators or ()):
        raise jinja2.exceptions.SecurityError(f"indents and separators of more than {MAX_INDENT} are not available")
    text_size(value, width)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    if len(layout) > 256 or re.search(r"%[^a-zA-Z%]*\d", layout):
        raise jinja2.exceptions.SecurityError("a date's layout must be short and have no widths")
    return datetime.now().strftime(layout)
