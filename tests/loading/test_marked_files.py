"""A model whose files an editor on Windows has saved, with byte order marks, is the same model."""

import codecs
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import Prepared, prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import StartupError
from penstock.text.chat_template import load_chat_template
from support import checkpoints

MESSAGES = [{"role": "user", "content": "the"}]
INDEX, SHARD = "model.safetensors.index.json", "model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every file of text that is read."""
    folder = checkpoints.make("qwen3", tmp_path_factory.mktemp("marked") / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = config.pop("chat_template")
    eos = config.pop("eos_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": eos}))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / SHARD)
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, SHARD)}))
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def texts(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".jinja")]


def opened(folder: Path) -> Prepared:
    return prepare(EngineOptions.of(model=str(folder), threads=1), api_beside=False)


@pytest.mark.parametrize("without", ["chat_template.json", "chat_template.jinja"])
def test_marks_change_nothing(folder: Path, without: str) -> None:
    (folder / without).unlink()

    def found() -> tuple[object, ...]:
        prepared = opened(folder)
        tokenizer = prepared.load_tokenizer()
        assert tokenizer is not None
        text = load_chat_template(tokenizer).render(MESSAGES, special_tokens=tokenizer.special_tokens)
        checkpoint = prepared.checkpoint
        ends = prepared.end_tokens(tokenizer)
        return (
            checkpoint.config,
            checkpoint.generation_config,
            list(checkpoint.tensors),
            text,
            ends,
            tokenizer.encode("the"),
        )

    expected = found()
    files = texts(folder)
    assert len(files) == 7
    for file in files:
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert found() == expected


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", INDEX, "tokenizer_config.json"])
def test_utf_16_is_named(folder: Path, name: str) -> None:
    file = folder / name
    file.write_bytes(file.read_text().encode("utf-16"))
    with pytest.raises(StartupError, match=f"{name} is not valid JSON.*UTF-16; save it as UTF-8"):
        opened(folder).load_tokenizer()
