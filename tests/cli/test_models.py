"""`penstock models`: what is bundled and cached, whether it can be served, and why not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from penstock.cli.models import run_models
from support.checkpoints import make
from support.waiting import PATIENCE

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Torch takes seconds to import, and nothing here needs it.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from penstock.cli.main import main; main()"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models where the package would have its own."""
    folder = tmp_path_factory.mktemp("bundle")
    for name in ("haiku", "haiku-draft"):
        make("llama", folder / name)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, which does not exist yet."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def add(cache: Path, name: str, fill: Callable[[Path], object], ref: str = "main") -> Path:
    """Put a repository into the cache as the hub's client lays it out; returns its snapshot."""
    repository = cache / name.replace("/", "--")
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / ref).write_text(COMMIT)
    fill(snapshot)
    return snapshot


def write_config(**changes: object) -> Callable[[Path], object]:
    """A model of a kind that is served, but for these values of its configuration."""

    def fill(snapshot: Path) -> None:
        make("qwen3", snapshot)
        config = json.loads((snapshot / "config.json").read_text())
        (snapshot / "config.json").write_text(json.dumps({**config, **changes}))

    return fill


def without(file: str) -> Callable[[Path], object]:
    """A model that lacks a file."""

    def fill(snapshot: Path) -> None:
        make("qwen3", snapshot)
        (snapshot / file).unlink()

    return fill


@pytest.fixture
def listed(bundle: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], dict[str, Any]]:
    """What --json prints."""

    def run() -> dict[str, Any]:
        run_models(as_json=True, folder=bundle)
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        return printed

    return run


@pytest.mark.usefixtures("cache")
def test_bundled_models_need_no_cache(listed: Callable[[], dict[str, Any]], bundle: Path) -> None:
    listing = listed()
    assert listing["problems"] == []
    assert [entry["name"] for entry in listing["models"]] == ["haiku", "haiku-draft"]
    for entry in listing["models"]:
        assert entry["source"] == "bundled" and entry["servable"] and entry["reason"] is None
        assert entry["summary"] and entry["directory"] == str(bundle / entry["name"])
        assert entry["size_bytes"] > entry["parameters"] * 4 > 400_000


@pytest.mark.usefixtures("cache")
def test_an_incomplete_installation_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_models(as_json=False, folder=tmp_path / "nowhere")
    assert "haiku is missing from this installation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (write_config(), None),
        (write_config(architectures=["FancyForCausalLM"]), "FancyForCausalLM, which is not implemented"),
        (write_config(quantization_config={"quant_method": "aqlm"}), "quantization_config"),
        (write_config(hidden_size=80), "shape"),
        (without("config.json"), "owner/model has model.safetensors, but no config.json"),
        (without("model.safetensors"), "owner/model has neither model.safetensors"),
    ],
    ids=["whole", "architecture", "value", "contradiction", "no configuration", "no weights"],
)
def test_whether_a_cached_model_can_be_served(
    listed: Callable[[], dict[str, Any]], cache: Path, fill: Callable[[Path], object], says: str | None
) -> None:
    snapshot = add(cache, "models/owner/model", fill)
    add(cache, "datasets/owner/data", lambda _: None)
    entry = listed()["models"][-1]
    assert (entry["name"], entry["source"], entry["directory"]) == ("owner/model", "cache", str(snapshot))
    assert entry["servable"] is (says is None)
    assert entry["size_bytes"] == sum(file.stat().st_size for file in snapshot.iterdir())
    if says is None:
        assert entry["reason"] is None
        assert entry["summary"] == "Qwen3ForCausalLM" and entry["parameters"] > 100_000
    else:
        assert says in entry["reason"] and str(cache) not in entry["reason"]


def test_what_the_name_alone_does_not_reach(listed: Callable[[], dict[str, Any]], cache: Path) -> None:
    ownerless = add(cache, "models/ownerless", write_config())
    add(cache, "models/owner/old", write_config(), ref="v1")
    reasons = {entry["name"]: entry["reason"] for entry in listed()["models"]}
    assert str(ownerless) in reasons["ownerless"]
    assert "other revisions" in reasons["owner/old"]


def test_what_is_not_sound_in_the_cache_is_told(listed: Callable[[], dict[str, Any]], cache: Path) -> None:
    (cache / "models--owner--interrupted").mkdir(parents=True)
    add(cache, "models/owner/model", write_config())
    listing = listed()
    assert [entry["name"] for entry in listing["models"][2:]] == ["owner/model"]
    (problem,) = listing["problems"]
    assert "models--owner--interrupted" in problem


def test_a_cache_that_is_a_file_hides_nothing_else(listed: Callable[[], dict[str, Any]], cache: Path) -> None:
    cache.write_text("")
    listing = listed()
    assert len(listing["models"]) == 2
    (problem,) = listing["problems"]
    assert "HF_HUB_CACHE" in problem


@pytest.mark.usefixtures("cache")
def test_packed_weights_are_counted(
    listed: Callable[[], dict[str, Any]],
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert (listed()["packed_cache"], listed()["packed_bytes"]) == (str(tmp_path / "packed"), 0)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "model-int4-0123456789abcdef.packed").write_bytes(bytes(2_000_000))
    assert listed()["packed_bytes"] == 2_000_000
    run_models(as_json=False, folder=bundle)
    assert f"Packed weights ({tmp_path / 'packed'}): 2.0 MB" in capsys.readouterr().out
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "packed" / "model-int4-0123456789abcdef.packed"))
    (problem,) = listed()["problems"]
    assert "PENSTOCK_CACHE" in problem


def test_the_table_is_plain(bundle: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(cache, "models/owner/good", write_config())
    add(cache, "models/owner/odd", write_config(architectures=["[red]"]))
    (cache / "models--owner--interrupted").mkdir()
    run_models(as_json=False, folder=bundle)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("haiku ") and "writes haiku" in line for line in lines)
    assert "owner/good 0.2M 0.6 MB yes" in lines
    assert "owner/odd - 0.6 MB no: config.json has architectures = [red], which is not implemented" in lines
    assert any("models--owner--interrupted" in line for line in lines)


@pytest.mark.parametrize(("variable", "folder"), [("HF_HUB_CACHE", "."), ("HF_HOME", "hub")])
def test_the_command_finds_the_cache_where_the_library_does_and_needs_no_torch(
    tmp_path: Path, variable: str, folder: str
) -> None:
    add(tmp_path / folder, "models/owner/model", write_config())
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE_"))}
    command = [sys.executable, "-c", WITHOUT_TORCH, "models", "--json"]
    environment = {**others, variable: str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert result.returncode == 0, result.stderr
    listing = json.loads(result.stdout)
    assert [(entry["name"], entry["servable"]) for entry in listing["models"][2:]] == [("owner/model", True)]
