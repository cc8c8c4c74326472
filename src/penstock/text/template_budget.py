"""What one rendering of a chat template may use, and how the values that it makes are measured."""

import contextlib
import contextvars
import sys
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.utils

MAX_STEPS = 2_000_000
MAX_SECONDS = 10.0
# Characters of any text.
MAX_OUTPUT = 8 * 1024 * 1024
# Values of any list.
MAX_ITEMS = 1024 * 1024
# Bytes of all values that are made.
MAX_MADE = 256 * 1024 * 1024
# What a rendering that others wait for has.
MOMENT_SECONDS = 0.02
# Steps of a rendering that only tries a template out, on a few short messages.
TRIAL_STEPS = 50_000

# Text can be written to a block, a macro's result, and from there again.
_REWRITES = 4
# Looking at one value of many takes less time than a step.
VISITS_A_STEP = 4

MEASURED = (list, tuple, set, frozenset, Mapping, KeysView, ValuesView, ItemsView)


class TakesLong(Exception):
    """A rendering that has a moment only takes longer; nothing is wrong with it."""


class Budget:
    """Steps, time and memory that one rendering may still use."""

    def __init__(self) -> None:
        self.steps = 0
        self.written = 0
        self.made_bytes = 0
        self.brief = _brief.get()
        self.most_steps = TRIAL_STEPS if _trial.get() else MAX_STEPS
        self.deadline = time.monotonic() + (MOMENT_SECONDS if self.brief else MAX_SECONDS)
        self._next_look = 64

    def step(self, count: int = 1) -> None:
        """Take `count` steps. Raises TemplateRuntimeError where there are no more."""
        self.steps += count
        if self.steps > self.most_steps:
            raise jinja2.TemplateRuntimeError(f"it takes more than {self.most_steps} steps")
        if self.steps >= self._next_look:
            self._next_look = self.steps + 64
            self.look()

    def look(self) -> None:
        """See whether there is time left. Raises TakesLong, or TemplateRuntimeError."""
        if time.monotonic() > self.deadline:
            if self.brief:
                raise TakesLong
            raise jinja2.TemplateRuntimeError(f"it takes longer than {MAX_SECONDS:g} seconds")

    def made(self, value: Any) -> None:
        """A value was made. Raises TemplateRuntimeError where that was one too many."""
        size = sys.getsizeof(value)
        self.made_bytes += size
        if self.made_bytes > MAX_MADE:
            raise jinja2.TemplateRuntimeError(f"it makes more than {MAX_MADE} bytes of values")
        if size > _LARGE:
            self.look()

    def write(self, size: int) -> None:
        """`size` characters were written. Raises TemplateRuntimeError where they are too many in all."""
        self.written += size
        if self.written > _REWRITES * MAX_OUTPUT:
            raise jinja2.TemplateRuntimeError(f"it writes more than {_REWRITES * MAX_OUTPUT} characters")


_LARGE = 64 * 1024
_brief: contextvars.ContextVar[bool] = contextvars.ContextVar("chat_template_brief", default=False)
_trial: contextvars.ContextVar[bool] = contextvars.ContextVar("chat_template_trial", default=False)
current: contextvars.ContextVar[Budget] = contextvars.ContextVar("chat_template_budget")


@contextlib.contextmanager
def in_a_moment() -> Iterator[None]:
    """Let renderings in the block raise TakesLong after a moment, where the caller can do them elsewhere then."""
    token = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(token)


@contextlib.contextmanager
def on_trial() -> Iterator[None]:
    """Let renderings in the block end after few steps. Steps are the same on every machine, seconds are not."""
    token = _trial.set(True)
    try:
        yield
    finally:
        _trial.reset(token)


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """The values; each one is a step."""
    budget = current.get()
    for value in values:
        budget.step()
        yield value


def check_size(size: int) -> None:
    """Raise SecurityError for a value of `size` characters or items, where that is too many."""
    if size > MAX_OUTPUT:
        raise jinja2.exceptions.SecurityError(f"it makes a value longer than {MAX_OUTPUT}")


def check_items(count: int) -> None:
    """Raise SecurityError for a list of `count` values, where that is too many."""
    if count > MAX_ITEMS:
        raise jinja2.exceptions.SecurityError(f"it makes a list of more than {MAX_ITEMS} values")


def check_pieces(text: str) -> None:
    """Each piece of a split text takes many times the memory of its characters."""
    if len(text) > 2 * MAX_ITEMS:
        raise jinja2.exceptions.SecurityError(f"it splits a text of more than {2 * MAX_ITEMS} characters")


def bounded(value: Any) -> Any:
    """A value that was made, if it is not too large. Raises SecurityError."""
    if isinstance(value, str | list | tuple):
        check_size(len(value))
        if not isinstance(value, str):
            check_items(len(value))
        budget = current.get(None)
        # Constants are made while the template is compiled.
        if budget is not None:
            budget.made(value)
    return value


def made(value: Any) -> Any:
    """A new list, tuple or dictionary. However often it holds the same values, looking at all is bounded."""
    value_size(value, text=False)
    return bounded(value)


def compared(value: Any) -> Any:
    """A value that is compared: what it takes to look at all of it is a number of steps. Raises SecurityError."""
    if isinstance(value, MEASURED):
        value_size(value, text=False)
    elif isinstance(value, str) and len(value) > _LARGE:
        current.get().step()
        current.get().look()
    return value


def text_size(value: Any, indent: int = 0) -> int:
    """At least about how long a value's text is. Raises SecurityError as soon as that is more than MAX_OUTPUT.

    Lists may hold the same list twice, and so forth, so that little memory stands for very much text.
    """
    return len(value) if isinstance(value, str) else value_size(value, indent)


def value_size(value: Any, indent: int = 0, *, text: bool = True) -> int:
    """The same, `text` or not: a namespace can be within what does not become text."""
    size, visits, waiting = 0, 0, [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        visits += 1
        size += 4 + indent * depth
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, MEASURED):
            check_size(size + len(item))
            for inner in item:
                waiting.append((inner, depth + 1))
                if isinstance(item, Mapping):
                    waiting.append((item[inner], depth + 1))
        elif text and isinstance(item, jinja2.utils.Namespace):
            raise jinja2.exceptions.SecurityError("a namespace cannot become text")
        check_size(size)
        check_items(visits)
    budget = current.get(None)
    if budget is not None:
        budget.step(visits // VISITS_A_STEP)
    return size


def spent(values: Iterator[Any]) -> Iterator[Any]:
    """What a filter yields one by one."""
    budget = current.get()
    for number, value in enumerate(values):
        if number % VISITS_A_STEP == 0:
            budget.step()
        yield bounded(value)
