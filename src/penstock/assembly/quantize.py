"""Writes a model with smaller weights: block by block, so that memory stays near one block's size.

Each block is a file of its own, which is written under another name first; so an interrupted run goes on behind the
last block that was finished. Later blocks are calibrated on what those before them have become.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from penstock.assembly.calibration import BlockRunner
from penstock.core.errors import ConfigurationError, ModelFileError
from penstock.kernels.packing import Weight
from penstock.layers.decoder import DecoderBlock
from penstock.layers.weights import WeightSpec
from penstock.loading.checkpoint import CONFIG, INDEX, Checkpoint, read_bytes
from penstock.loading.packing import IN_OWN_PRECISION
from penstock.loading.quantized import CONFIG_KEY, Entry, combined
from penstock.loading.safetensors import TensorEntry, read_header
from penstock.loading.tensors import read_tensor
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.gptq import Hessian, output_error, quantize_gptq
from penstock.quantization.grouped import Grouped
from penstock.quantization.layouts import LAYOUTS
from penstock.quantization.rtn import Grid, quantize_rtn

METHODS = ("rtn", "gptq")
STATE = "quantize.json"
_PARTIAL = ".partial"
# Of the model's other files, those that a tokenizer and a template are in.
_COPIED = (".json", ".jinja", ".model", ".txt")
_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is made.

    Attributes:
        method: "rtn" rounds to the nearest, "gptq" by what calibration texts show.
        grid: what weights are rounded to.
        layout: one of `quantization.layouts.LAYOUTS`.
        damping, act_order: see `quantize_gptq`.
    """

    method: str
    grid: Grid
    layout: str
    damping: float = 0.01
    act_order: bool = True


@dataclass(frozen=True, slots=True)
class Done:
    """A block that is finished.

    Attributes:
        block: its number.
        error: by projection, what its outputs (gptq) or its weights (rtn) have changed, of their own mean square.
        resumed: whether an earlier run had written it.
    """

    block: int
    error: dict[str, float]
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """Some weights of a model, for `load_weights`."""

    architecture: str
    weights: tuple[WeightSpec, ...]
    tensor_prefixes: tuple[tuple[str, str], ...]
    inert_tensors: tuple[str, ...] = ("*",)


def check(checkpoint: Checkpoint, declaration: ModelDeclaration, recipe: Recipe) -> None:
    """Raise ConfigurationError where the recipe cannot be followed for this model."""
    layout, grid = LAYOUTS[recipe.layout], recipe.grid
    if not (0 < recipe.damping < math.inf):
        raise ConfigurationError(f"--damping is {recipe.damping}; it must be above 0.")
    for name, entry in checkpoint.locate(declaration).items():
        if isinstance(entry, TensorEntry) and entry.name != name:
            raise ConfigurationError(
                f"The checkpoint has {name} as {entry.name}, as a part of a larger model, of which only this part "
                "could be written; give a checkpoint of the text model alone."
            )
    if grid.bits not in layout.bits:
        raise ConfigurationError(
            f"--format {recipe.layout} has integers of {', '.join(map(str, layout.bits))} bits, not of {grid.bits}."
        )
    for block in declaration.decoder.blocks:
        for spec in _matrices(block):
            inputs = spec.shape[1]
            if grid.group and inputs % grid.group:
                raise ConfigurationError(
                    f"{spec.name} has {inputs} inputs, which are not in groups of {grid.group}; give another "
                    "--group-size."
                )
            for part in spec.parts:
                if part.shape[0] % 32 or inputs % 32:
                    raise ConfigurationError(
                        f"{part.tensor} is {part.shape[0]} × {inputs}: both must be multiples of 32."
                    )


def quantize_model(
    checkpoint: Checkpoint, declaration: ModelDeclaration, recipe: Recipe, texts: Sequence[list[int]], out: Path
) -> Iterator[Done]:
    """Write the model into the directory `out`, and yield each block when it is finished.

    Without `texts` nothing is calibrated, as "rtn" needs it. Raises ConfigurationError where `out` has something else
    than what an interrupted run with this recipe left there.
    """
    _begin(checkpoint, recipe, texts, out)
    decoder, entries = declaration.decoder, checkpoint.locate(declaration)
    dtype = torch.bfloat16 if declaration.dtype == "bfloat16" else torch.float32
    count = len(decoder.blocks) + 1

    def loaded(*specs: WeightSpec) -> dict[str, Weight]:
        part = _Part(declaration.architecture, specs, declaration.tensor_prefixes)
        return load_weights(checkpoint, part, dtype, packing=IN_OWN_PRECISION)

    runner, states = None, list[Tensor]()
    if texts:
        runner = BlockRunner.for_texts(declaration, max(map(len, texts)), dtype)
        states = runner.embed(loaded(decoder.embedding_weight), texts)
    for index, block in enumerate(decoder.blocks):
        file = out / _shard(index, count)
        weights = {} if runner is None else loaded(*block.weights)
        resumed, errors = file.exists(), dict[str, float]()
        if not resumed:
            hessians = {} if runner is None else _watched(runner, block, weights, texts, states)
            tensors = _plain(entries, [spec for spec in block.weights if spec.role != "linear"])
            for spec in _matrices(block):
                stored, errors[spec.name] = _quantized(spec, entries, recipe, hessians[spec.name] if texts else None)
                tensors |= stored
            _save(tensors, file)
        if runner is not None and index < len(decoder.blocks) - 1:
            weights |= _rounded(file, block, recipe, dtype)
            states = list(runner.run(block, weights, texts, states))
        yield Done(index, errors, resumed)
    rest = (decoder.embedding_weight, decoder.norm.weight, *decoder.output.weights)
    _save(_plain(entries, rest), out / _shard(count - 1, count))
    _finish(out, checkpoint, recipe, count)


def _matrices(block: DecoderBlock) -> list[WeightSpec]:
    return [spec for spec in block.weights if spec.role == "linear"]


def _shard(index: int, count: int) -> str:
    return f"model-{index + 1:05d}-of-{count:05d}.safetensors"


def _watched(
    runner: BlockRunner,
    block: DecoderBlock,
    weights: dict[str, Weight],
    texts: Sequence[list[int]],
    states: Sequence[Tensor],
) -> dict[str, Hessian]:
    """By projection, what its inputs are like."""
    found: dict[str, Hessian] = {}

    def observe(name: str, x: Tensor) -> None:
        if name not in found:
            found[name] = Hessian(x.shape[1])
        found[name].add(x)

    for _ in runner.run(block, weights, texts, states, observe):
        pass
    return found


def _plain(entries: Mapping[str, Entry], specs: Sequence[WeightSpec]) -> dict[str, Tensor]:
    parts = {part.tensor for spec in specs for part in spec.parts}
    return {name: read_tensor(entries[name]).contiguous().clone() for name in sorted(parts)}


def _quantized(
    spec: WeightSpec, entries: Mapping[str, Entry], recipe: Recipe, hessian: Hessian | None
) -> tuple[dict[str, Tensor], float]:
    """The tensors of all parts of a weight, and how much it has changed."""
    weight = torch.cat([read_tensor(entries[part.tensor]).float() for part in spec.parts])
    if not bool(weight.isfinite().all()):
        raise ModelFileError(f"{spec.name} has values that are not finite; there is nothing to round them to.")
    if hessian is None:
        found = quantize_rtn(weight, recipe.grid)
        change = float((found.numbers() - weight).square().sum() / weight.square().sum())
    else:
        inputs = hessian.mean()
        try:
            found = quantize_gptq(weight, inputs, recipe.grid, damping=recipe.damping, act_order=recipe.act_order)
        except ValueError as error:
            raise ConfigurationError(f"{spec.name} cannot be rounded by GPTQ: {error}") from None
        change = output_error(weight, found.numbers(), inputs)
    tensors: dict[str, Tensor] = {}
    first = 0
    for part in spec.parts:
        rows = slice(first, first + part.shape[0])
        zeros = None if found.zeros is None else found.zeros[rows]
        matrix = Grouped(found.integers[rows], found.scales[rows].contiguous(), zeros)
        module = part.tensor.removesuffix(".weight")
        tensors |= LAYOUTS[recipe.layout].tensors(module, matrix, recipe.grid)
        first = rows.stop
    return tensors, change


def _rounded(file: Path, block: DecoderBlock, recipe: Recipe, dtype: torch.dtype) -> dict[str, Weight]:
    """The block's projections as whoever loads the file has them."""
    said = LAYOUTS[recipe.layout].config(recipe.grid)
    entries = combined(read_header(file), said["quant_method"], said, read_bytes)
    found: dict[str, Weight] = {}
    for spec in _matrices(block):
        numbers = torch.cat([read_tensor(entries[part.tensor]) for part in spec.parts])
        found[spec.name] = IN_OWN_PRECISION(spec, numbers.to(dtype))
    return found


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    partial = file.with_name(file.name + _PARTIAL)
    try:
        save_file(tensors, partial, metadata={"format": "pt"})
        # The library lets nobody else read what it writes.
        shutil.copymode(file.parent / STATE, partial)
        _replace(partial, file)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error}. What is finished stays for another try."
        ) from None


def _replace(partial: Path, file: Path) -> None:
    """Give a file its name when all of it is on the disk."""
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(partial, file)


def _begin(checkpoint: Checkpoint, recipe: Recipe, texts: Sequence[list[int]], out: Path) -> None:
    """Make the directory, or find in it what an interrupted run left."""
    digest = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
    files = sorted({entry.file for entry in checkpoint.stored})
    identity = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    state = {"model": str(checkpoint.path.resolve()), "files": identity, "recipe": asdict(recipe), "texts": digest}
    file = out / STATE
    if file.exists():
        if json.loads(file.read_text()) != state:
            raise ConfigurationError(f"{out} has another run's blocks; give an empty directory, or its own settings.")
        return
    if out.exists() and (not out.is_dir() or any(each.name != STATE + _PARTIAL for each in out.iterdir())):
        raise ConfigurationError(f"{out} is there already, and not empty; give a directory that can be made.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(STATE + _PARTIAL)
        partial.write_text(json.dumps(state, indent=1))
        _replace(partial, file)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written to: {error.strerror}.") from None


def _finish(out: Path, checkpoint: Checkpoint, recipe: Recipe, count: int) -> None:
    """What makes files of tensors a checkpoint; the note on an interrupted run goes last."""
    places = {name: _shard(index, count) for index in range(count) for name in read_header(out / _shard(index, count))}
    size = sum(entry.nbytes for index in range(count) for entry in read_header(out / _shard(index, count)).values())
    (out / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=1))
    for file in checkpoint.path.iterdir():
        if file.is_file() and file.suffix in _COPIED and file.name not in (CONFIG, INDEX):
            shutil.copyfile(file, out / file.name)
    if (checkpoint.path / _TEMPLATES).is_dir():
        shutil.copytree(checkpoint.path / _TEMPLATES, out / _TEMPLATES, dirs_exist_ok=True)
    config = {**checkpoint.config, CONFIG_KEY: LAYOUTS[recipe.layout].config(recipe.grid)}
    (out / CONFIG).write_text(json.dumps(config, indent=1))
    (out / STATE).unlink()
