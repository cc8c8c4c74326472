"""GGUF files and quantized safetensors, cut anywhere and with wrong numbers where they count.

Each ends with an error of the tree that names the tensor where one is concerned, in a second and with memory that is
bounded by four times the file. A part of the cuts and changes in `make test`, all of them with `--slow`.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import StartupError
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.gguf import read_gguf
from penstock.loading.packing import PackedWeights
from penstock.loading.weights import load_weights
from penstock.models.registry import declare
from support import checkpoints
from support.file_mutations import bounded
from support.gguf_fields import fields
from support.gguf_files import write_gguf
from support.plain import plain
from support.quantized import LAYOUTS, quantize

MEMORY_PER_BYTE, MEMORY = 4, 16 << 20
SECONDS = 1.0
HEADS = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
# Of each kind in `make test`.
SAMPLES = 60
Case = TypeVar("Case")


def start(path: Path) -> None:
    """What serving reads before a step is computed, weights included."""
    prepared = prepare(EngineOptions.of(model=str(path), threads=1), api_beside=True)
    prepared.load_tokenizer()
    load_weights(prepared.checkpoint, prepared.declaration, torch.float32, packing=plain)


def load(folder: Path) -> None:
    """As numbers, and as the integers that kernels take."""
    checkpoint = open_checkpoint(folder)
    for packing in (plain, PackedWeights("own", "own")):
        load_weights(checkpoint, declare(checkpoint.config), torch.float32, packing=packing)


def refusal(what: Callable[[], None], size: int, label: str) -> str | None:
    """The error's message; None where it succeeds."""
    message = None

    def kept() -> None:
        nonlocal message
        try:
            what()
        except StartupError as error:
            message = error.message
            raise

    bounded(kept, MEMORY + MEMORY_PER_BYTE * size, SECONDS, f"{label}, of {size} bytes")
    return message


def chosen(cases: list[Case], slow: bool) -> list[Case]:
    return cases if slow else random.Random(0).sample(cases, min(SAMPLES, len(cases)))


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    rope = {**checkpoints.LLAMA3_ROPE, "original_max_position_embeddings": 8192}
    sizes = {**HEADS, "hidden_size": 32, "intermediate_size": 32, "head_dim": 16}
    model = checkpoints.make("llama", folder / "model", **sizes, rope_parameters=rope)
    others = {"attn_v": Kind.Q8_0, "ffn_gate": Kind.Q4_1, "ffn_down": Kind.F16}
    return write_gguf(model, folder / "whole.gguf", Kind.Q4_0, others)


def test_a_gguf_file_cut_anywhere(gguf_file: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    content = gguf_file.read_bytes()
    file = tmp_path / "a.gguf"
    file.write_bytes(content)
    assert refusal(lambda: start(file), len(content), "as it is") is None
    found = read_gguf(file)
    names, described = list(found.tensors), min(entry.offset for entry in found.tensors.values())
    last = max(found.tensors.values(), key=lambda entry: entry.offset)
    # Behind the last tensor there may be padding.
    lengths = chosen(list(range(last.offset + last.nbytes)), pytestconfig.getoption("slow"))
    for length in (*lengths, described, last.offset):
        file.write_bytes(content[:length])
        message = refusal(lambda: start(file), len(content), f"the first {length} bytes")
        assert message is not None, length
        if length >= described:
            assert any(name in message for name in names), message


def test_a_gguf_file_with_wrong_numbers(gguf_file: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Counts, lengths, types, shapes and offsets, one at a time."""
    content = gguf_file.read_bytes()
    file = tmp_path / "a.gguf"
    # As the file calls them, and as a checkpoint does.
    names = [*read_gguf(gguf_file).tensors, *open_checkpoint(gguf_file).tensors]
    cases = [(field, number) for field in fields(content) for number in field.numbers(content)]
    described = [case for case in cases if case[0].tensor]
    assert {"dimensions", "side", "block", "offset"} <= {field.kind for field, _ in described}
    slow = pytestconfig.getoption("slow")
    refused = 0
    for field, number in chosen(cases, slow) + ([] if slow else chosen(described, slow)):
        file.write_bytes(field.with_number(content, number))
        message = refusal(lambda: start(file), len(content), f"{field} = {number}")
        refused += message is not None
        if message is not None and field.tensor and field.kind != "length":
            # Whose rows the vocabulary is, is told as that.
            shown = [*names, "tensor 1 of", *(["vocabulary"] if field.tensor.startswith("token_embd") else [])]
            assert any(name in message for name in shown), (field, number, message)
    assert refused > SAMPLES // 2


WRONG_LAYOUTS = ["gptq act-order", "awq", "packed 3", "fp8 blocks", "nf4 nested", "LLM.int8", "mlx 3"]


def tiny(layout: str, tmp_path: Path) -> Path:
    sizes = {**HEADS, "hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "vocab_size": 8}
    return quantize(checkpoints.make("llama", tmp_path / "plain", **sizes), *LAYOUTS[layout], tmp_path / "model")


@pytest.mark.parametrize("layout", WRONG_LAYOUTS)
def test_quantized_checkpoints_cut_anywhere(tmp_path: Path, layout: str, pytestconfig: pytest.Config) -> None:
    folder = tiny(layout, tmp_path)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    names = list(load_file(file))
    lengths = chosen(list(range(len(content))), pytestconfig.getoption("slow"))
    for length in (*lengths, header, len(content) - 1):
        file.write_bytes(content[:length])
        message = refusal(lambda: load(folder), len(content), f"the first {length} bytes")
        assert message is not None, length
        if length >= header:
            assert any(name in message for name in names), message


def damaged(name: str, tensor: torch.Tensor) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """What may stand in its place, by what is wrong."""
    ways = {
        "gone": {},
        "longer": {name: torch.cat([tensor, tensor])} if tensor.ndim else {},
        "shorter": {name: tensor[: len(tensor) // 2]} if tensor.ndim else {},
        "empty": {name: tensor[:0]} if tensor.ndim else {},
        "flat": {name: tensor.flatten()},
        "float64": {name: tensor.double() if tensor.is_floating_point() else tensor.to(torch.float32).double()},
        "uneven": {name: torch.cat([tensor, tensor[:1]])} if tensor.ndim else {},
    }
    if name.endswith(("g_idx", "group_of")):
        ways |= {"beyond": {name: torch.full_like(tensor, 2**31 - 1)}, "below": {name: torch.full_like(tensor, -1)}}
    return [(way, instead) for way, instead in ways.items() if way == "gone" or instead]


@pytest.mark.parametrize("layout", WRONG_LAYOUTS)
def test_quantized_checkpoints_with_wrong_parts(tmp_path: Path, layout: str, pytestconfig: pytest.Config) -> None:
    """Missing scales, groups that do not divide, orders out of range: each is told by the tensor's or weight's name."""
    folder = tiny(layout, tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    cases = [(name, way, instead) for name, tensor in tensors.items() for way, instead in damaged(name, tensor)]
    refused = 0
    for name, way, instead in chosen(cases, pytestconfig.getoption("slow")):
        changed = {other: tensor for other, tensor in tensors.items() if other != name} | instead
        save_file({each: tensor.contiguous().clone() for each, tensor in changed.items()}, file, {"format": "pt"})
        message = refusal(lambda: load(folder), file.stat().st_size, f"{name}, {way}")
        refused += message is not None
        if message is not None:
            module = name.rpartition(".")[0]
            assert module in message, (name, way, message)
    assert refused > SAMPLES // 3


def mutated_tensors(rng: random.Random, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One to three of them gone, of another name, type or shape, or with other bytes."""
    found = dict(tensors)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(found))
        tensor = found.pop(name)
        kind = rng.choice(["gone", "renamed", "dtype", "shape", "cut", "bytes"])
        if kind == "renamed":
            found[name.rpartition(".")[0] + rng.choice([".qweight", ".weight", ".g_idx", ".weight_scale"])] = tensor
        elif kind == "dtype":
            found[name] = tensor.to(rng.choice([torch.int32, torch.float16, torch.uint8, torch.int64]))
        elif kind == "shape":
            found[name] = rng.choice([tensor.flatten(), tensor[None], tensor.T if tensor.ndim == 2 else tensor])
        elif kind == "cut":
            found[name] = tensor.flatten()[: rng.randrange(tensor.numel() + 1)]
        elif kind == "bytes":
            raw = bytearray(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            for _ in range(rng.randint(1, 4) if raw else 0):
                raw[rng.randrange(len(raw))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            found[name] = torch.frombuffer(raw, dtype=tensor.dtype).view(tensor.shape) if raw else tensor
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


@pytest.mark.parametrize("layout", WRONG_LAYOUTS)
def test_quantized_checkpoints_with_parts_changed_by_chance(
    tmp_path: Path, layout: str, pytestconfig: pytest.Config
) -> None:
    plain_model = checkpoints.make("llama", tmp_path / "plain", num_hidden_layers=1)
    folder = quantize(plain_model, *LAYOUTS[layout], tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    assert refusal(lambda: load(folder), file.stat().st_size, "as it is") is None
    sound, count = 0, max(20, pytestconfig.getoption("files") // 10)
    for seed in range(count):
        save_file(mutated_tensors(random.Random(seed), tensors), file, metadata={"format": "pt"})
        sound += refusal(lambda: load(folder), file.stat().st_size, f"seed {seed}") is None
    assert sound < count


def test_a_config_that_does_not_say_what_the_tensors_are(tmp_path: Path) -> None:
    folder = tiny("gptq act-order", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for wrong in (None, [], "gptq", {}, {"quant_method": "magic"}, {"quant_method": "awq"}, {"quant_method": 7}):
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": wrong}))
        assert refusal(lambda: load(folder), (folder / "model.safetensors").stat().st_size, str(wrong)) is not None
