"""Opening checkpoints: layouts that work, and one clear sentence for each that does not."""

import json
import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import penstock.loading.safetensors as safetensors_headers
from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.loading.checkpoint import Checkpoint, open_checkpoint
from penstock.loading.safetensors import read_header
from penstock.models.registry import declare
from support import checkpoints


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make("qwen2", tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def _open(folder: Path) -> Checkpoint:
    """Everything that happens before weights are read."""
    checkpoint = open_checkpoint(folder)
    checkpoint.locate(declare(checkpoint.config))
    return checkpoint


def _shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-0000{1 + index % 3}-of-00003.safetensors" for index, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "model.safetensors").unlink()


def _change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_single_file(folder: Path) -> None:
    checkpoint = _open(folder)
    assert checkpoint.config["model_type"] == "qwen2"
    assert checkpoint.generation_config["eos_token_id"] == checkpoints.EOS
    size = (folder / "model.safetensors").stat().st_size
    assert 0.9 * size < checkpoint.total_bytes < size
    entry = checkpoint.tensors["model.embed_tokens.weight"]
    assert (entry.dtype, entry.shape) == ("float32", (checkpoints.VOCAB_SIZE, 64))


def test_shards_hold_the_same(folder: Path) -> None:
    whole = _open(folder)
    _shard(folder)
    shards = _open(folder)
    assert {name: entry.shape for name, entry in shards.tensors.items()} == {
        name: entry.shape for name, entry in whole.tensors.items()
    }
    assert len({entry.file for entry in shards.tensors.values()}) == 3


def test_configuration_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").unlink()
    checkpoint = open_checkpoint(folder, weights=False)
    assert checkpoint.tensors == {} and checkpoint.generation_config == {}


def _fails(folder: Path, *expected: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        _open(folder)
    for text in expected:
        assert text in caught.value.message
    assert caught.value.message.endswith(".") and "\n" not in caught.value.message


def test_no_directory(folder: Path) -> None:
    _fails(folder / "nothing", "does not exist")
    _fails(folder / "config.json", "is a file")


def test_missing_files(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    _fails(folder, "neither model.safetensors nor")
    (folder / "pytorch_model.bin").write_bytes(b"")
    _fails(folder, "pytorch_model.bin", "save_pretrained")
    (folder / "pytorch_model.bin").unlink()
    (folder / "config.json").unlink()
    _fails(folder, "has no config.json")


@pytest.mark.parametrize("content", ["{", "[]", "nonsense", "\udcff", '{"a": ' * 100000])
def test_malformed_configuration(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    _fails(folder, "config.json")


def test_shard_trouble(folder: Path) -> None:
    _shard(folder)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    (folder / "model-00002-of-00003.safetensors").rename(folder / "away")
    _fails(folder, "model-00002-of-00003.safetensors", "is missing")
    (folder / "away").rename(folder / "model-00002-of-00003.safetensors")
    content["weight_map"]["model.norm.weight"] = "../model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    _fails(folder, "own directory")
    content["weight_map"].pop("model.norm.weight")
    content["weight_map"]["invented"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    _fails(folder, "invented", "does not")
    index.write_text("{}")
    _fails(folder, "weight_map")


@pytest.mark.parametrize("keep", [5, 8, 100, -1, -1000])
def test_truncated_file(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    _fails(folder, "model.safetensors", "truncated")


def _header(fields: object, data: bytes = b"\0" * 16) -> bytes:
    header = json.dumps(fields).encode() if not isinstance(fields, bytes) else fields
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize("header", [b"not json", [1]])
def test_malformed_headers(tmp_path: Path, header: object) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(_header(header))
    with pytest.raises(ModelFileError, match=r"model\.safetensors has a malformed safetensors header"):
        read_header(file)


@pytest.mark.parametrize(
    "fields",
    [
        3,
        {"dtype": "F32", "shape": [4]},
        {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]},
        {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]},
        {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4] + [1] * 8, "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]},
        {"dtype": "F9", "shape": [1], "data_offsets": [0, 2**63]},
        {"dtype": "F9", "shape": [1], "data_offsets": [16, 0]},
    ],
)
def test_tensors_that_make_no_sense(tmp_path: Path, fields: object) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(_header({"a": fields}))
    with pytest.raises(ModelFileError, match=r"model\.safetensors describes tensor a in a way that makes no sense"):
        read_header(file)


@pytest.mark.parametrize(
    "content",
    [
        _header({"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}),
        struct.pack("<Q", 2**63) + b"{}",
    ],
)
def test_files_shorter_than_their_headers_say(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"model\.safetensors is truncated"):
        read_header(file)


def _floats(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "fields, trouble",
    [
        ({"a": _floats(0, 16), "b": _floats(8, 16)}, "without gap or overlap"),
        ({"a": _floats(0, 16), "b": _floats(0, 16)}, "without gap or overlap"),
        ({"a": _floats(0, 4), "b": _floats(8, 16)}, "without gap or overlap"),
        ({"a": _floats(4, 16)}, "without gap or overlap"),
        ({"a": _floats(0, 12)}, "bytes that belong to no tensor"),
        ({"__metadata__": {"format": "pt"}}, "bytes that belong to no tensor"),
    ],
)
def test_tensors_cover_the_file(tmp_path: Path, fields: dict[str, object], trouble: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(_header(fields))
    with pytest.raises(ModelFileError, match=trouble):
        read_header(file)


def test_order_in_the_header_and_empty_tensors_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    fields = {"last": _floats(8, 16), "end": _floats(16, 16), "first": _floats(0, 8), "between": _floats(8, 8)}
    file.write_bytes(_header(fields))
    assert set(read_header(file)) == set(fields)


def test_no_product_of_many_dimensions_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of a few megabytes could otherwise ask for a number of millions of digits."""
    longest = 0

    def prod(shape: tuple[int, ...]) -> int:
        nonlocal longest
        longest = max(longest, len(shape))
        return math.prod(shape)

    monkeypatch.setattr(safetensors_headers, "math", SimpleNamespace(prod=prod))
    file = tmp_path / "model.safetensors"
    file.write_bytes(_header({"a": {"dtype": "F32", "shape": [2**62] * 1000, "data_offsets": [0, 16]}}))
    with pytest.raises(ModelFileError, match="makes no sense"):
        read_header(file)
    assert longest <= 8


def test_tensors_that_do_not_fit(folder: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    _change_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:-1].clone()}))
    _fails(folder, name, "[95, 64]", "[96, 64]")
    _change_tensors(folder, lambda tensors: tensors.pop(name))
    _fails(folder, f"lacks tensor {name}")


def test_tensors_of_another_model(folder: Path) -> None:
    _change_tensors(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(24)}))
    _fails(folder, "q_norm", "another model")


def test_weights_of_another_type(folder: Path) -> None:
    name = "model.norm.weight"
    _change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(UnsupportedModel, match=f"{name} is stored as I8"):
        _open(folder)


def test_known_inert_tensors_are_ignored(folder: Path) -> None:
    inert = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(12)}
    _change_tensors(folder, lambda tensors: tensors.update(inert))
    checkpoint = _open(folder)
    assert inert.keys() <= checkpoint.tensors.keys()
    assert not inert.keys() & checkpoint.locate(declare(checkpoint.config)).keys()
