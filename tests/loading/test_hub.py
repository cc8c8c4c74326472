"""Names of models: directories, and the hub's with and without a network."""

import errno
import json
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import ModelInfo
from huggingface_hub.errors import HfHubHTTPError

from penstock.bundled.registry import FOLDER
from penstock.core.errors import ModelFileError
from penstock.loading.hub import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})


def test_resolving_directories(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path
    for name in (str(tmp_path / "config.json"), "./nothing", "/nothing/here", "one", "a/b/c"):
        with pytest.raises(ModelFileError, match="directory"):
            resolve_model(name)


def test_a_bundled_name_is_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "haiku").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("haiku") == FOLDER / "haiku"
    folder = resolve_model("./haiku")
    assert folder == tmp_path / "haiku"
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize("name", ["a prompt " * 1000, "~nobody-of-this-name/model", "with\0zero", "one two/three four"])
def test_what_cannot_be_a_path_is_refused_like_what_is_not_there(name: str) -> None:
    with pytest.raises(ModelFileError, match=r"does not exist.*owner/model.*haiku"):
        resolve_model(name)


@pytest.fixture
def offline_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def _snapshot(cache: Path, files: dict[str, str]) -> Path:
    """A snapshot of owner/model as the hub's client lays it out."""
    repository = cache / "models--owner--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def _message() -> str:
    with pytest.raises(ModelFileError) as caught:
        resolve_model("owner/model")
    assert caught.value.message.endswith(".") and "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.usefixtures("offline_cache")
def test_hub_name_without_network() -> None:
    message = _message()
    assert "config.json of owner/model" in message and "pass the path" in message


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": "{}", "model.safetensors": ""},
        {
            "config.json": "{}",
            "model.safetensors.index.json": INDEX,
            "model-00001-of-00002.safetensors": "",
            "model-00002-of-00002.safetensors": "",
        },
        {"config.json": "{}", "gptq_model-4bit-128g.safetensors": ""},
        {"config.json": "{}", "model.safetensors.index.json": INDEX, "model.safetensors": ""},
    ],
    ids=["one file", "shards", "another name", "stale index"],
)
def test_complete_snapshot_is_used_without_network(offline_cache: Path, files: dict[str, str]) -> None:
    folder = _snapshot(offline_cache, files)
    assert resolve_model("owner/model") == folder


@pytest.mark.parametrize(
    "files, missing",
    [
        ({"model.safetensors": ""}, "config.json"),
        ({"config.json": "{}"}, "model.safetensors"),
        (
            {"config.json": "{}", "model.safetensors.index.json": INDEX, "model-00001-of-00002.safetensors": ""},
            "model-00002-of-00002.safetensors",
        ),
    ],
)
def test_interrupted_download_is_not_used(offline_cache: Path, files: dict[str, str], missing: str) -> None:
    _snapshot(offline_cache, files)
    message = _message()
    assert f"{missing} of owner/model" in message and "not finished" in message


Download = Callable[[], str]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Download], list[dict[str, Any]]]:
    """Puts a reachable hub in the client's place, whose downloads do as told; returns their arguments."""

    def install(download: Download) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def snapshot_download(name: str, **arguments: Any) -> str:
            calls.append(arguments)
            return download()

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_args, **_kwargs: ModelInfo(id="owner/model"))
        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return install


def _raising(error: BaseException) -> Download:
    def download() -> str:
        raise error

    return download


def test_only_what_is_read_is_downloaded(hub: Callable[[Download], list[dict[str, Any]]], tmp_path: Path) -> None:
    calls = hub(lambda: str(tmp_path))
    assert resolve_model("owner/model") == tmp_path

    def wanted(file: str) -> bool:
        allowed = any(fnmatch(file, pattern) for pattern in calls[0]["allow_patterns"])
        return allowed and not any(fnmatch(file, pattern) for pattern in calls[0]["ignore_patterns"])

    read = ("config.json", "model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json")
    assert all(wanted(file) for file in (*read, "model.safetensors.index.json", "chat_template.jinja"))
    not_read = ("consolidated.safetensors", "consolidated-00001.safetensors", "onnx/config.json", "pytorch_model.bin")
    assert not any(wanted(file) for file in (*not_read, "original/consolidated.00.pth", "modeling.py"))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["README.md", "b.Q8_0.gguf", "a.Q4_K.gguf"], "hf download owner/model a.Q4_K.gguf"),
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin"),
    ],
)
def test_a_model_without_safetensors_is_not_downloaded(
    monkeypatch: pytest.MonkeyPatch, files: list[str], says: str
) -> None:
    info = ModelInfo(id="owner/model", siblings=[{"rfilename": file} for file in files])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_args, **_kwargs: info)
    assert says in _message()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_trouble_with_the_disk_is_told(hub: Callable[[Download], list[dict[str, Any]]], code: int) -> None:
    error = OSError(code, "the reason")
    calls = hub(_raising(error))
    message = _message()
    assert "the reason" in message and "HF_HOME" in message and len(calls) == 1


def test_what_is_no_trouble_with_the_connection_is_not_hidden(hub: Callable[[Download], list[dict[str, Any]]]) -> None:
    calls = hub(_raising(KeyError("a bug")))
    with pytest.raises(KeyError):
        resolve_model("owner/model")
    assert len(calls) == 1


@pytest.mark.parametrize(
    "kind", [ConnectionResetError, TimeoutError, *HfHubHTTPError.__bases__], ids=lambda kind: kind.__name__
)
def test_lost_connection_falls_back_to_the_cache(
    hub: Callable[[Download], list[dict[str, Any]]], tmp_path: Path, kind: type[Exception]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("")
    outcomes = iter([_raising(kind("lost")), lambda: str(tmp_path)])
    calls = hub(lambda: next(outcomes)())
    assert resolve_model("owner/model") == tmp_path
    assert [call["local_files_only"] for call in calls] == [False, True]
