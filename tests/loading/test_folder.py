"""Folders as people have them: stale indexes, other programs' files, pointers. Each is loaded, or told."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ModelFileError, StartupError
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.hub import resolve_model
from support import checkpoints
from support.gguf_files import write_gguf
from support.stepping import all_logits, make_stepper

PROMPT = [5, 9, 200, 31, 7, 7, 300, 12] * 3
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
GONE = "model-00001-of-00009.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 3087467144\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.make("qwen3", tmp_path / "model")


def logits(path: Path) -> Tensor:
    return all_logits(make_stepper(path), [PROMPT], None)[0]


def told(folder: Path) -> dict[str, str]:
    return {reason.setting: f"{reason.value}: {reason.why}" for reason in open_checkpoint(folder).found}


def refused(path: Path | str, *parts: str) -> None:
    """A start fails in one sentence that has all of the parts."""
    with pytest.raises(StartupError) as caught:
        prepare(EngineOptions.of(model=str(path), threads=1), api_beside=False).load_tokenizer()
    message = caught.value.message
    assert message.endswith(".") and "\n" not in message
    for part in parts:
        assert part in message


def shard(folder: Path, *, stem: str = "model", index: bool = True, keep_whole: bool = False) -> list[str]:
    tensors = load_file(folder / WHOLE)
    names = sorted(tensors)
    files = {name: f"{stem}-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    if index:
        (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    if not keep_whole:
        (folder / WHOLE).unlink()
    return sorted(set(files.values()))


def test_a_whole_file_beside_the_index_of_shards_that_are_gone(folder: Path) -> None:
    expected = logits(folder)
    for name in shard(folder, keep_whole=True):
        (folder / name).unlink()
    assert torch.equal(logits(folder), expected) and told(folder) == {}


def test_a_whole_file_is_taken_before_shards_and_they_are_named(folder: Path) -> None:
    expected = logits(folder)
    first, _ = shard(folder, keep_whole=True)
    save_file({name: tensor * 2 for name, tensor in load_file(folder / first).items()}, folder / first)
    assert torch.equal(logits(folder), expected), "as transformers takes it"
    reference = checkpoints.reference_logits(checkpoints.load_reference(folder), PROMPT)
    assert (expected - reference).abs().max() <= 1e-4
    assert first in told(folder)["weight files"] and "not read" in told(folder)["weight files"]


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("stem", ["model", "gptq_model-4bit-128g"])
def test_shards_without_an_index_of_them(folder: Path, stem: str, stale: bool) -> None:
    expected = logits(folder)
    first, second = shard(folder, stem=stem, index=False)
    if stale:
        (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": GONE}}))
    assert torch.equal(logits(folder), expected)
    assert ("names is there" if stale else "no index") in told(folder)["weight files"]
    (folder / second).unlink()
    if not stale:
        refused(folder, first, f"{second} is missing")


def test_a_single_file_of_another_name(folder: Path) -> None:
    expected = logits(folder)
    (folder / WHOLE).rename(folder / "gptq_model-4bit-128g.safetensors")
    assert torch.equal(logits(folder), expected)
    assert "gptq_model-4bit-128g.safetensors" in told(folder)["weight files"]


def test_files_of_two_models_in_one_folder(folder: Path) -> None:
    (folder / WHOLE).rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    refused(folder, "a.safetensors", "b.safetensors", "one model")


def test_a_shard_that_is_missing_beside_others(folder: Path) -> None:
    first, second = shard(folder)
    (folder / first).unlink()
    refused(folder, f"The shard {first}", "missing")
    (folder / second).unlink()
    refused(folder, f"The shard {first}", "missing")


def test_an_index_names_its_own_trouble(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": 3}}))
    refused(folder, INDEX, "has 3 for model.norm.weight", "a file's name")
    (folder / INDEX).write_text(json.dumps({"weight_map": [1]}))
    refused(folder, INDEX, "no weight_map")


def test_an_adapter_beside_a_model_is_told(folder: Path) -> None:
    expected = logits(folder)
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
    assert torch.equal(logits(folder), expected)
    assert "adapter_model.safetensors" in told(folder)["adapter"] and "merged" in told(folder)["adapter"]


def empty_of_weights(folder: Path) -> Path:
    (folder / WHOLE).unlink()
    return folder


def adapter(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/base"}))
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")


def named(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).parent.mkdir(exist_ok=True) or (folder / name).write_bytes(b"some")


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (adapter, ("LoRA adapter for owner/base", "merge_and_unload")),
        (named("pytorch_model.bin"), ("pytorch_model.bin", "pickles", "save_pretrained")),
        (named("pytorch_model-00001-of-00002.bin"), ("pytorch_model-00001-of-00002.bin", "pickles")),
        (named("consolidated.00.pth"), ("consolidated.00.pth", "pickles")),
        (named("consolidated.safetensors"), ("Mistral's own layout", "model.safetensors")),
        (named("tf_model.h5"), ("tf_model.h5", "safetensors")),
        (named("weights.npz"), ("weights.npz", "safetensors")),
        (named("checkpoint-500/config.json"), ("folders with models (checkpoint-500)", "pass the path of one")),
        (named("training_args.bin"), ("neither model.safetensors nor",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_weights_that_are_not_read(folder: Path, make: Callable[[Path], None], parts: tuple[str, ...]) -> None:
    make(empty_of_weights(folder))
    refused(folder, *parts)


def test_weights_without_a_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, WHOLE, "no config.json", "download")
    empty_of_weights(folder)
    refused(folder, "has no config.json")


@pytest.mark.parametrize(
    "name", [WHOLE, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize(
    ("content", "says"),
    [(POINTER, "Git LFS"), (b"", "is empty"), (b"<!DOCTYPE html>\n<html><body>Log in</body></html>", "web page")],
    ids=["pointer", "empty", "page"],
)
def test_what_is_another_file_than_its_name_says(folder: Path, name: str, content: bytes, says: str) -> None:
    (folder / name).write_bytes(content)
    refused(folder, name, says)


def test_shards_and_indexes_that_are_pointers(folder: Path) -> None:
    first, _ = shard(folder)
    (folder / first).write_bytes(POINTER)
    refused(folder, first, "Git LFS", "git lfs pull")
    (folder / INDEX).write_bytes(POINTER)
    refused(folder, INDEX, "Git LFS")


@pytest.fixture
def file(folder: Path, tmp_path: Path) -> Path:
    return write_gguf(folder, tmp_path / "a.gguf")


def test_a_gguf_file_that_is_a_pointer(file: Path) -> None:
    file.write_bytes(POINTER)
    refused(file, "a.gguf", "Git LFS")
    file.write_bytes(b"")
    refused(file, "a.gguf", "empty")


def test_a_folder_with_a_gguf_model_alone(file: Path, tmp_path: Path) -> None:
    """Which is how downloads of one file end up; a second model in it makes the choice the user's."""
    holder = tmp_path / "holder"
    holder.mkdir()
    own = file.rename(holder / "a.gguf")
    (holder / "mmproj-a.gguf").write_bytes(b"GGUF")
    assert resolve_model(str(holder)) == own
    prepared = prepare(EngineOptions.of(model=str(holder), threads=1), api_beside=False)
    assert prepared.checkpoint.path == own and prepared.load_tokenizer() is not None
    assert prepared.served_names() == ("holder",)
    (holder / "config.json").write_text("{}")
    assert resolve_model(str(holder)) == own
    (holder / "b.gguf").write_bytes(own.read_bytes())
    refused(holder, "a.gguf, b.gguf", "pass the path of one")


def test_safetensors_are_taken_before_a_gguf_file_beside_them(file: Path, folder: Path) -> None:
    file.rename(folder / "a.gguf")
    assert resolve_model(str(folder)) == folder


def split(file: Path) -> list[Path]:
    """The file as `llama-gguf-split` leaves it."""
    reader = gguf.GGUFReader(file)
    count, most = len(reader.tensors), -(-len(reader.tensors) // 3)
    writer = gguf.GGUFWriter(file.with_name("part.gguf"), "qwen3", split_max_tensors=most)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, inner = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(file.parent.glob("part-*.gguf"))
    assert len(parts) == 3 and count > most
    file.unlink()
    return parts


def test_a_model_in_several_gguf_files(file: Path, folder: Path, tmp_path: Path) -> None:
    expected = logits(file)
    first, second, third = split(file)
    for part in (first, third):
        assert resolve_model(str(part)) == first
        assert torch.equal(logits(part), expected)
    prepared = prepare(EngineOptions.of(model=str(second), threads=1), api_beside=False)
    assert prepared.load_tokenizer() is not None and prepared.checkpoint.path == first
    holder = tmp_path / "holder"
    holder.mkdir()
    for part in (first, second, third):
        part.rename(holder / part.name)
    assert resolve_model(str(holder)) == holder / first.name
    assert model_of(open_checkpoint(holder / first.name)).architecture == "Qwen3ForCausalLM"


def test_parts_that_do_not_belong_together(file: Path) -> None:
    first, second, third = split(file)
    kept = second.read_bytes()
    second.unlink()
    refused(first, second.name, "missing")
    second.write_bytes(third.read_bytes())
    refused(first, f"{second.name} is not part 2 of 3")
    second.write_bytes(kept)
    renamed = first.rename(first.with_name("model.gguf"))
    refused(renamed, "one of 3 parts", "model-00001-of-00003.gguf", "--merge")
    piece = renamed.rename(first.with_name("model.gguf-split-a"))
    refused(piece, "piece of a GGUF file", "cat")


def test_a_folder_that_is_not_a_model(tmp_path: Path) -> None:
    refused(tmp_path, "no config.json")
    with pytest.raises(ModelFileError, match="no config.json"):
        open_checkpoint(tmp_path)
