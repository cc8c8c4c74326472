"""The handbook's examples print what its pages say, and its commands have options that exist."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from penstock.cli.main import app

HANDBOOK = Path(__file__).resolve().parents[2] / "docs" / "handbook"
PAGES = sorted(HANDBOOK.glob("*.md"))
# What runs without torch, and in a moment.
ROOMS = ("core", "observability", "planning", "scheduler", "simulation")


def examples(page: Path) -> doctest.DocTest:
    """A page's examples; the marks of its blocks end an output as an empty line does."""
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.MULTILINE)
    return doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_print_what_the_page_says(page: Path) -> None:
    told: list[str] = []
    found = doctest.DocTestRunner(verbose=False).run(examples(page), out=told.append)
    assert not found.failed, "".join(told)


def test_all_pages_but_commands_have_examples() -> None:
    assert {page.stem for page in PAGES if not examples(page).examples} == {"diagnosis"}


def test_examples_need_what_runs_everywhere() -> None:
    imported = re.findall(r"^>>> (?:from|import) penstock\.(\w+)", "".join(page.read_text() for page in PAGES), re.M)
    assert set(imported) <= set(ROOMS) and len(imported) > 50


def test_the_index_has_every_page() -> None:
    index = (HANDBOOK / "README.md").read_text()
    assert {page.name for page in PAGES} - {"README.md"} == set(re.findall(r"^\| \[[^]]*\]\((.+?)\)", index, re.M))


def options(command: TyperCommand | TyperGroup) -> set[str]:
    """All spellings of a command's options, or of those of all commands below it."""
    if isinstance(command, TyperGroup):
        return {name for each in command.commands.values() for name in options(each)}
    return {name for each in command.params if isinstance(each, TyperOption) for name in each.opts}


@pytest.mark.parametrize("line", re.findall(r"^penstock .*$", (HANDBOOK / "diagnosis.md").read_text(), re.M))
def test_commands_have_options_that_exist(line: str) -> None:
    command, words = get_command(app), shlex.split(line)[1:]
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)]
    assert {word for word in words if word.startswith("--")} <= options(command)


def test_options_that_are_named_exist() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "".join(page.read_text() for page in PAGES)))
    known = options(get_command(app)) | {"--no-enable-prefix-caching"}
    assert named - known == {"--speculative-config"}, "vLLM's"
