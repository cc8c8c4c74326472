"""What a model's files say before an engine is built."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.assembly.prepare import prepare
from penstock.core.config import EngineOptions
from penstock.core.errors import ModelFileError
from support.checkpoints import make


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = make("llama", tmp_path / "llama")
    # It would be asked before config.json, which is tested too.
    (path / "generation_config.json").unlink()
    return path


def eos_token_ids(checkpoint: Path, file: str, value: Any) -> tuple[int, ...]:
    path = checkpoint / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, "eos_token_id": value}))
    return prepare(EngineOptions(model=str(checkpoint)), api_beside=False).eos_token_ids(None)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("value", ["</s>", 1.5, True, -1, 2**31, [2, "3"], [2, -1], [None], {"id": 2}])
def test_an_end_of_sequence_that_is_no_token_id_names_the_file(checkpoint: Path, file: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=f"^{file}: eos_token_id"):
        eos_token_ids(checkpoint, file, value)


@pytest.mark.parametrize(("value", "expected"), [(5, (5,)), ([5, 6], (5, 6)), ([], ())])
def test_one_id_or_several(checkpoint: Path, value: object, expected: tuple[int, ...]) -> None:
    assert eos_token_ids(checkpoint, "generation_config.json", value) == expected


def served_name(model: str) -> str:
    return prepare(EngineOptions(model=model), api_beside=False).model_info(None).name


def test_a_bundled_model_is_served_under_its_name(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "haiku").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    assert served_name("haiku") == "haiku"
    # The folder of that name is another model.
    assert served_name("./haiku") == "llama"
