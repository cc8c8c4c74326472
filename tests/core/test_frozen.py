"""What every room may import has no state of its own."""

import importlib
import pkgutil

import pytest

from penstock import configuration, core

MODULES = [
    module.name for room in (core, configuration) for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_no_module_has_what_can_be_changed(name: str) -> None:
    found = vars(importlib.import_module(name)).items()
    # Names between two underscores are Python's own.
    changeable = [each for each, value in found if isinstance(value, dict | list | set) and not each.startswith("__")]
    assert not changeable, f"constants of {name} are tuples, frozen sets and mapping proxies: {changeable}"


def test_there_are_such_modules() -> None:
    assert "penstock.core.plan" in MODULES and "penstock.configuration.resolve" in MODULES
