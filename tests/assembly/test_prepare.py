"""What a model's files say before an engine is built."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.assembly.prepare import prepare
from penstock.bundled.tiny import tiny_checkpoint
from penstock.core.config import EngineOptions
from penstock.core.errors import ModelFileError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "tiny")


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
