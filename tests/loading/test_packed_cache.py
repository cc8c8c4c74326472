"""Packed weights on disk: mapped bit for bit, made anew whenever anything they depend on changes, never in the way."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from penstock.core.config import ModelConfig
from penstock.core.errors import ModelFileError
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.packing import Weight
from penstock.loading import cache_folder, packed_cache
from penstock.loading.checkpoint import Checkpoint, open_checkpoint
from penstock.loading.packed_cache import LoadedWeights, expected_file, load_cached
from penstock.loading.packing import PackedWeights, packing_of
from penstock.loading.safetensors import read_header
from penstock.loading.weights import load_weights
from penstock.models.registry import declare
from penstock.quantization.rounding import ROUNDING
from support import checkpoints
from support.waiting import PATIENCE

pytestmark = [
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
    pytest.mark.usefixtures("any_disk"),
]

MODES = [("none", "none"), ("int8", "int8"), ("int4", "int4"), ("int4", "int8")]


@pytest.fixture(scope="module", params=["qwen2", "llama"], ids=["tied", "untied"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint that the test may change."""
    return checkpoints.make("qwen3", tmp_path / "model")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packed"


def form(checkpoint: Checkpoint, body: str = "int4", head: str = "int4") -> PackedWeights:
    config = ModelConfig("/model", "/model", "bfloat16", quantization=body, quantize_head=head)
    return packing_of(config, declare(checkpoint.config), native=True)


def load(
    model: Path, folder: Path, body: str = "int4", head: str = "int4", dtype: torch.dtype = torch.bfloat16
) -> LoadedWeights:
    checkpoint = open_checkpoint(model)
    packing = form(checkpoint, body, head)
    return load_cached(folder, checkpoint, declare(checkpoint.config), dtype, packing, lambda done, total: None)


def packed(model: Path, body: str = "int4", head: str = "int4") -> dict[str, Weight]:
    """Without a cache."""
    checkpoint = open_checkpoint(model)
    return load_weights(checkpoint, declare(checkpoint.config), torch.bfloat16, packing=form(checkpoint, body, head))


def content(weights: Mapping[str, Weight]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = {}
    for name, weight in weights.items():
        assert isinstance(weight, NativeLinear | torch.Tensor)
        memory = weight.memory if isinstance(weight, NativeLinear) else weight.contiguous().view(torch.uint8)
        kind = str(weight.form) if isinstance(weight, NativeLinear) else str(weight.dtype)
        found[name] = (kind, tuple(weight.shape), memory.numpy().tobytes())
    return found


def the_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def overwrite_weights(model: Path) -> None:
    """Other weights behind the same header, at the same time and place: only who reads them can know."""
    file = model / "model.safetensors"
    before = file.stat()
    with file.open("r+b") as stream:
        begin = 8 + int.from_bytes(stream.read(8), "little")
        stream.seek(begin)
        stream.write(bytes(before.st_size - begin))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(("body", "head"), MODES)
def test_what_is_mapped_is_what_was_packed(made: Path, folder: Path, body: str, head: str) -> None:
    expected = content(packed(made, body, head))
    first, second = load(made, folder, body, head), load(made, folder, body, head)
    assert (first.mapped, second.mapped) == (False, True)
    assert content(first.weights) == content(second.weights) == expected
    assert list(second.weights) == [spec.name for spec in declare(open_checkpoint(made).config).weights]
    tied = [
        weights["lm_head.weight"] is weights["model.embed_tokens.weight"] for weights in (packed(made), second.weights)
    ]
    assert tied[0] == tied[1]
    (note,) = first.notes
    assert str(the_file(folder)) in note and "--packed-cache off" in note
    assert second.notes == ()


def test_a_hit_computes_the_same_and_reads_no_weight_of_the_checkpoint(model: Path, folder: Path) -> None:
    expected = content(load(model, folder).weights)
    overwrite_weights(model)
    again = load(model, folder)
    assert again.mapped and content(again.weights) == expected
    assert content(packed(model)) != expected
    x = torch.randn(3, 64)
    for weights in (again.weights, load(model, folder).weights):
        linear = weights["model.layers.0.mlp.gate_up_proj.weight"]
        assert isinstance(linear, NativeLinear) and linear.memory.data_ptr() % 64 == 0
        output = torch.empty(3, linear.shape[0])
        linear.handle.multiply(x, output)
        assert output.isfinite().all() and output.any()


def test_progress_ends_at_the_total(model: Path, folder: Path) -> None:
    checkpoint = open_checkpoint(model)
    for _ in range(2):
        seen: list[tuple[int, int]] = []
        load_cached(
            folder,
            checkpoint,
            declare(checkpoint.config),
            torch.bfloat16,
            form(checkpoint),
            lambda done, total: seen.append((done, total)),  # noqa: B023
        )
        assert seen[-1][0] == seen[-1][1] > 0 and len({total for _, total in seen}) == 1
        assert seen == sorted(seen)


def test_the_file_is_safetensors_and_says_what_it_was_made_from(model: Path, folder: Path) -> None:
    loaded = load(model, folder)
    file = the_file(folder)
    assert file.name.startswith("model-int4-") and file.stat().st_mode & 0o077 == 0
    assert len(read_header(file)) == len({id(weight) for weight in loaded.weights.values()})
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
        norm = opened.get_tensor("model.norm.weight")
    assert torch.equal(norm, loaded.weights["model.norm.weight"])
    assert (metadata["model"], metadata["dtype"], metadata["quantize_head"]) == (str(model), "bfloat16", "int4")
    assert json.loads(metadata["files"])[0]["name"] == "model.safetensors"
    assert json.loads(metadata["packed"])["lm_head.weight"] == "int4 [320, 64]"


def test_whoever_writes_to_weights_does_not_write_to_the_file(model: Path, folder: Path) -> None:
    for loaded in (load(model, folder), load(model, folder)):
        before = the_file(folder).read_bytes()
        for weight in loaded.weights.values():
            assert isinstance(weight, NativeLinear | torch.Tensor)
            (weight.memory if isinstance(weight, NativeLinear) else weight).fill_(3)
        assert the_file(folder).read_bytes() == before


def test_whatever_the_bytes_depend_on_makes_another_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(body: str = "int4", head: str = "int4", dtype: torch.dtype = torch.bfloat16) -> str:
        checkpoint = open_checkpoint(model)
        return expected_file(checkpoint, declare(checkpoint.config), dtype, form(checkpoint, body, head)).name

    names = [name(), name(dtype=torch.float32), name(head="int8"), name("int8", "int8"), name("none", "none")]
    for target in ("PACKED_LAYOUT", "ROUNDING", "_VERSION"):
        with monkeypatch.context() as patch:
            patch.setattr(packed_cache, target, 64)
            names.append(name())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "byteorder", "big")
        names.append(name())
    assert name() == names[0]

    weights = model / "model.safetensors"
    state = weights.stat()
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    names.append(name())
    other = shutil.copy2(weights, model / "copy")
    os.replace(other, weights)
    names.append(name())
    raw = weights.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].replace(b"layers.0.mlp.up_proj", b"layers.9.mlp.up_proj")
    header = header.replace(b"layers.1.mlp.up_proj", b"layers.0.mlp.up_proj")
    header = header.replace(b"layers.9.mlp.up_proj", b"layers.1.mlp.up_proj")
    before = weights.stat()
    with weights.open("r+b") as stream:
        stream.write(raw[:8] + header)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    names.append(name())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    names.append(name())
    os.rename(model, model.with_name("elsewhere"))
    model = model.with_name("elsewhere")
    names.append(name())
    assert len(set(names)) == len(names)


def damage(file: Path, kind: str) -> None:
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    broken = {
        "empty": b"",
        "truncated": raw[:-1],
        "longer": raw + b"\0",
        "header": raw[:20] + b"?" + raw[21:],
        "version": raw[: 8 + length].replace(f'"rounding": "{ROUNDING}"'.encode(), b'"rounding": "0"')
        + raw[8 + length :],
        "foreign": b"\x7fELF" * (len(raw) // 4),
    }
    file.write_bytes(broken[kind])


@pytest.mark.parametrize("kind", ["empty", "truncated", "longer", "header", "version", "foreign"])
def test_a_file_that_is_not_what_was_written_is_packed_anew_and_told(model: Path, folder: Path, kind: str) -> None:
    expected = content(load(model, folder).weights)
    damage(the_file(folder), kind)
    again = load(model, folder)
    assert not again.mapped and content(again.weights) == expected
    assert str(the_file(folder)) in again.notes[0] and "packed anew" in again.notes[0]
    third = load(model, folder)
    assert third.mapped and third.notes == () and content(third.weights) == expected


def test_a_folder_that_cannot_be_written_is_told_and_does_not_stop_the_start(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "packed", Path("/proc/penstock")):
        loaded = load(model, place)
        (note,) = loaded.notes
        assert not loaded.mapped and str(place) in note and "--packed-cache" in note
        assert content(loaded.weights) == content(packed(model))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_serves_what_is_in_it(model: Path, folder: Path) -> None:
    load(model, folder)
    folder.chmod(0o500)
    try:
        assert load(model, folder).mapped
        (note,) = load(model, folder, "int8", "int8").notes
        assert "Permission denied" in note
    finally:
        folder.chmod(0o700)


def test_a_full_disk_leaves_nothing_behind(model: Path, folder: Path) -> None:
    """A limit on the size of files stands for it: the same calls fail in the same way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        loaded = load(model, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (note,) = loaded.notes
    assert "could not be kept" in note and "too large" in note and content(loaded.weights) == content(packed(model))
    assert list(folder.iterdir()) == []
    assert load(model, folder).notes and load(model, folder).mapped


def test_what_breaks_while_packing_leaves_nothing_behind(model: Path, folder: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.2.mlp.down_proj.weight"].fill_(torch.inf)
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(ModelFileError, match="--quantization"):
        load(model, folder)
    assert list(folder.iterdir()) == []


def test_two_starts_at_once_both_serve(model: Path, folder: Path) -> None:
    """Each waits for a line before it loads, so that they do it together."""
    program = (
        "import sys; from penstock import LLM, SamplingParams\n"
        "from penstock.loading import cache_folder; cache_folder.SHARE_KEPT_FREE = 0.0\n"
        "print('there', flush=True); input()\n"
        "llm = LLM(sys.argv[1], quantization='int4', packed_cache=sys.argv[2], threads=1, kv_cache_memory=1 << 20,\n"
        "          max_model_len=64, max_num_seqs=1)\n"
        "print(llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8, temperature=0, logprobs=2))[0].logprobs)"
    )
    command = [sys.executable, "-c", program, str(model), str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
    outputs = [process.communicate("\n", timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1] != ""
    assert the_file(folder).suffix == ".packed" and load(model, folder, dtype=torch.float32).mapped


def test_room_is_made_by_removing_what_was_not_used_for_longest(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, folder)
    used = the_file(folder)
    load(model, folder, "int4", "int8")
    (unused,) = set(folder.iterdir()) - {used}
    os.utime(used, (1, 1))
    os.utime(unused, (2, 2))
    assert load(model, folder).mapped  # Which makes it the newest.
    foreign = [folder / "mine.safetensors", folder / "mine.packed"]
    for file in foreign:
        file.write_bytes(bytes(10_000_000))
    monkeypatch.setattr(cache_folder, "MOST_BYTES", 3 * used.stat().st_size)
    loaded = load(model, folder, "int8", "int8")
    assert {used, *foreign} < set(folder.iterdir()) and len(list(folder.iterdir())) == 4 and not unused.exists()
    assert any(unused.name in note and "removed" in note for note in loaded.notes)


def test_what_is_too_large_to_keep_is_served_all_the_same(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, folder, "int8", "int8")
    for name, value in (("MOST_BYTES", 10_000), ("SHARE_KEPT_FREE", 1.0)):
        with monkeypatch.context() as patch:
            patch.setattr(cache_folder, name, value)
            loaded = load(model, folder)
        (note,) = loaded.notes
        assert "could not be kept" in note and not loaded.mapped
        assert content(loaded.weights) == content(packed(model))
    # What would not have been enough was not removed either.
    assert load(model, folder, "int8", "int8").mapped


def test_what_a_dead_process_left_is_removed(model: Path, folder: Path) -> None:
    folder.mkdir()
    dead, alive = folder / "a.packed.partial", folder / "b.packed.partial"
    for mapped in (False, True):
        for file in (dead, alive):
            file.write_bytes(b"half")
        os.utime(dead, (0, 0))
        assert load(model, folder).mapped == mapped
        assert not dead.exists() and alive.exists()


def test_the_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", "/somewhere")
    assert cache_folder.default_folder() == Path("/somewhere/packed")
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder.default_folder() == Path("/caches/penstock/packed")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder.default_folder() == Path.home() / ".cache/penstock/packed"
