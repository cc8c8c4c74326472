"""What stands in MODEL's place: nothing, a bundled model's name that a folder has too, a prompt."""

from pathlib import Path

import pytest

from penstock.bundled.registry import DEFAULT
from penstock.cli.options import model_or_default, refuse_prompt_as_model
from penstock.core.errors import ConfigurationError


def test_without_a_model_the_bundled_one_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    assert model_or_default(None) == DEFAULT
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert "no model was given" in line and "haiku" in line and "writes haiku" in line
    assert told.out == ""


def test_a_model_that_was_given_is_taken_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("owner/model", "./haiku", "haiku", "haiku-draft"):
        assert model_or_default(model) == model
    assert capsys.readouterr().err == ""


def test_a_folder_with_a_bundled_name_is_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "haiku").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_or_default("haiku") == "haiku"
    assert "./haiku" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["write a haiku about rain"], "penstock run haiku 'write a haiku about rain'"),
        (["write", "a haiku", "about rain"], "penstock run haiku 'write a haiku about rain'"),
        (["hello"], "penstock run haiku hello"),
        (["rain and/or snow?"], "penstock run haiku 'rain and/or snow?'"),
        (["what's\nthis"], "penstock run haiku 'what'\"'\"'s this'"),
        (["long " * 5000], "lo...'"),
        (["Qwen3-0.6B"], "a hub name such as owner/model"),
    ],
)
def test_a_prompt_in_the_models_place_is_told_where_it_belongs(arguments: list[str], command: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        refuse_prompt_as_model(arguments[0], arguments[1:])
    assert command in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


@pytest.mark.parametrize(
    "model", [None, "haiku", "owner/model", "./no such folder", "/nowhere/at all", "~/my models/x"]
)
def test_what_may_be_a_model_is_not_taken_for_a_prompt(model: str | None) -> None:
    assert not is_refused(model)


def test_a_folder_whose_name_reads_like_a_prompt_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_refused("write a haiku")
    (tmp_path / "write a haiku").mkdir()
    assert not is_refused("write a haiku")


def is_refused(model: str | None) -> bool:
    try:
        refuse_prompt_as_model(model, ["hello"])
    except ConfigurationError:
        return True
    return False
