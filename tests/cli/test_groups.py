"""Options that commands share."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.groups import with_groups


@dataclass(frozen=True, kw_only=True)
class Paint:
    colour: Annotated[str, typer.Option(help="Of the paint.")] = "red"
    layers: int = 1


def test_fields_are_options_and_come_as_one() -> None:
    app, given = typer.Typer(), []

    @app.command()
    @with_groups
    def paint(what: str, times: int = 2, *, paint: Paint) -> None:
        """Paint something."""
        given.append((what, times, paint))

    runner = CliRunner()
    assert runner.invoke(app, ["wall", "--layers", "3"]).exit_code == 0
    assert runner.invoke(app, ["door", "--colour", "blue", "--times", "1"]).exit_code == 0
    assert given == [("wall", 2, Paint(layers=3)), ("door", 1, Paint(colour="blue"))]
    shown = runner.invoke(app, ["--help"]).stdout
    assert "Paint something." in shown and "--colour" in shown and "Of the paint." in shown and "--paint" not in shown
    assert runner.invoke(app, ["wall", "--layers", "many"]).exit_code == 2


@dataclass(frozen=True, kw_only=True)
class Work:
    paint: Paint = Paint()
    hours: float = 1.5


def test_groups_of_groups_come_as_one_too() -> None:
    app, given = typer.Typer(), []

    @app.command()
    @with_groups
    def start(*, work: Work) -> None:
        given.append(work)

    runner = CliRunner()
    assert runner.invoke(app, ["--hours", "2", "--colour", "blue"]).exit_code == 0
    assert given == [Work(paint=Paint(colour="blue"), hours=2.0)]


def test_names_must_differ() -> None:
    def paint(colour: str = "", *, paint: Paint) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="duplicate parameter"):
        inspect.signature(with_groups(paint))
