"""The tiny checkpoint: made once, under a name that says its format, or refused with one sentence."""

from pathlib import Path

import pytest

from penstock.bundled.tiny import tiny_checkpoint
from penstock.core.errors import ConfigurationError


def test_it_is_made_once_in_a_folder_with_a_format_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tiny_checkpoint()
    assert path == tmp_path / "penstock" / "tiny-random-1"
    made = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(made)
    assert tiny_checkpoint() == path
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == made


def test_what_an_older_format_left_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = tmp_path / "penstock" / "tiny-random"
    old.mkdir(parents=True)
    (old / "config.json").write_text("{}")
    assert tiny_checkpoint() != old


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="XDG_CACHE_HOME"):
        tiny_checkpoint()
