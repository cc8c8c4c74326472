"""Options that several commands share, as dataclasses: typer itself knows functions' parameters only."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command as typer takes it: in place of each parameter that is a dataclass, the fields of that class.

    Fields that are dataclasses are expanded in turn. All names are different, and all have defaults.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += _parameters_of(groups[name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def expanded(**given: Any) -> Any:
        made = {name: _taken_from(given, group) for name, group in groups.items()}
        return command(**given, **made)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _taken_from(given: dict[str, Any], group: Any) -> Any:
    """The group of what was given; its fields are taken out of `given`."""
    types = get_type_hints(group)

    def value(name: str) -> Any:
        return _taken_from(given, types[name]) if is_dataclass(types[name]) else given.pop(name)

    return group(**{field.name: value(field.name) for field in fields(group)})


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    found: list[inspect.Parameter] = []
    for field in fields(group):
        kind = types[field.name]
        if is_dataclass(kind):
            found += _parameters_of(kind)
        else:
            found.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kind)
            )
    return found
