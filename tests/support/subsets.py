"""Which cases of a test `make test` runs where all of them take long: always the same ones; `make soak` runs all."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from zlib import crc32

import pytest

Parameters = Mapping[str, object]


def left_out(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """What is left out of the tests that have the mark `one_in(number, each=names)`: see `kept`."""
    tests = defaultdict[str, dict[str, pytest.Item]](dict)
    for item in items:
        if item.get_closest_marker("slow") is None:
            tests[item.nodeid.partition("[")[0]][item.nodeid] = item
    for cases in tests.values():
        mark = next(iter(cases.values())).get_closest_marker("one_in")
        if mark is None:
            continue
        names = kept({name: _parameters(case) for name, case in cases.items()}, *mark.args, **mark.kwargs)
        yield from (case for name, case in cases.items() if name not in names)


def kept(cases: Mapping[str, Parameters], number: int, each: Collection[str] | None = None) -> set[str]:
    """One case in `number`, by its name and parameters, so that each value of each parameter is in one of them.

    Those that are needed for this are kept beside one in `number`. It holds for the parameters in `each`, where it is
    given. Cases are drawn by their names, so that a new one changes little about which of the others are kept.
    """
    drawn = sorted(cases, key=lambda name: crc32(name.encode()))
    names, seen = set[str](), set[tuple[str, object]]()
    for name in drawn:
        values = {(key, _told(value)) for key, value in cases[name].items() if each is None or key in each}
        if len(names) * number < len(drawn) or values - seen:
            names.add(name)
            seen |= values
    return names


def _parameters(case: pytest.Item) -> Parameters:
    if not isinstance(case, pytest.Function) or not hasattr(case, "callspec"):
        raise pytest.UsageError(f"{case.nodeid} has the mark one_in, and no parameters")
    return case.callspec.params


def _told(value: object) -> object:
    """What two parameters share where they have the same value."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
