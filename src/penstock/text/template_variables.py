"""What a chat template can be told: the names it reads and does not make itself."""

from collections.abc import Iterator
from typing import TypeVar

import jinja2.meta
import jinja2.nodes

_Kind = TypeVar("_Kind", bound=jinja2.nodes.Node)

_DEFINED = frozenset({"defined", "undefined"})
_DEFAULTS = frozenset({"default", "d"})


def settable_variables(tree: jinja2.nodes.Template) -> frozenset[str]:
    """The names that a template reads from outside.

    Jinja counts a name that is set in one branch only as read from outside, too. Such a name is the template's own,
    unless the template sets it in the place of a value that is missing: `{% if not x is defined %}{% set x = 1 %}`, or
    `{% set x = x | default(1) %}`.
    """
    read = frozenset(jinja2.meta.find_undeclared_variables(tree))
    return read - (_assigned(tree) - frozenset(_with_default(tree)))


def _assigned(node: jinja2.nodes.Node) -> frozenset[str]:
    """The names that a part of a template sets. How far those of macros' arguments and of loops go, Jinja knows."""
    targets = [each.target for each in _with_itself(node, jinja2.nodes.Assign)]
    targets += [each.target for each in _with_itself(node, jinja2.nodes.AssignBlock)]
    names = [name.name for target in targets for name in _with_itself(target, jinja2.nodes.Name)]
    return frozenset(names) | {macro.name for macro in _with_itself(node, jinja2.nodes.Macro)}


def _with_default(tree: jinja2.nodes.Template) -> Iterator[str]:
    for branch in tree.find_all(jinja2.nodes.If):
        yield from _asked_for(branch.test) & _assigned(branch)
    for assignment in tree.find_all(jinja2.nodes.Assign):
        yield from _asked_for(assignment.node) & _assigned(assignment)


def _asked_for(node: jinja2.nodes.Node) -> frozenset[str]:
    """The names that an expression looks for, or has a default for."""
    tests = [test.node for test in _with_itself(node, jinja2.nodes.Test) if test.name in _DEFINED]
    defaults = [each.node for each in _with_itself(node, jinja2.nodes.Filter) if each.name in _DEFAULTS]
    return frozenset(each.name for each in (*tests, *defaults) if isinstance(each, jinja2.nodes.Name))


def _with_itself(node: jinja2.nodes.Node, kind: type[_Kind]) -> Iterator[_Kind]:
    if isinstance(node, kind):
        yield node
    yield from node.find_all(kind)
