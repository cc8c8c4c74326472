"""Writes a model with smaller weights: block by block, so that memory stays near one block's size.

Each block is a file of its own; so an interrupted run goes on behind the last block that was finished. Later blocks are
calibrated on what those before them have become.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.compression.block import Watch, grid_of, matrices, quantized_block
from penstock.compression.calibration import BlockRunner
from penstock.compression.files import Output
from penstock.compression.gguf_output import check_file, describe, parts_of, write_file
from penstock.compression.sensitivity import sensitivities
from penstock.core.errors import ConfigurationError
from penstock.kernels.packing import Weight
from penstock.kernels.processor import ProcessorKernels
from penstock.layers.attention import SelfAttention
from penstock.layers.decoder import DecoderBlock
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import LayerNorm
from penstock.layers.weights import WeightSpec
from penstock.loading.checkpoint import Checkpoint, read_bytes
from penstock.loading.packing import IN_OWN_PRECISION
from penstock.loading.quantized import Entry, combined
from penstock.loading.safetensors import TensorEntry, read_header
from penstock.loading.tensors import read_tensor
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.layouts import LAYOUTS, byte_config
from penstock.quantization.recipe import BYTES, Recipe
from penstock.quantization.rtn import Grid
from penstock.quantization.widths import Sensitivity, allocate


@dataclass(frozen=True, slots=True)
class Measured:
    """How much is lost by a projection's rounding alone.

    Attributes:
        name: of the projection's weight.
        sensitivity: by width, in nats a token.
    """

    name: str
    sensitivity: Sensitivity


@dataclass(frozen=True, slots=True)
class Done:
    """A block that is finished.

    Attributes:
        block: its number.
        error: by projection, what its outputs (its weights, where nothing is calibrated) have changed, of their own
            mean square.
        stored: by projection, its bits or type of blocks, where that is not the same for all.
        resumed: whether an earlier run had written it.
    """

    block: int
    error: dict[str, float]
    stored: dict[str, str]
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
    recipe.check()
    checkpoint.locate(declaration)
    if any(not isinstance(block.mlp, GatedMlp) for block in declaration.decoder.blocks):
        raise ConfigurationError(
            f"{declaration.architecture} has experts, or an MLP without a gate, which penstock quantize does not round "
            "yet; serve the model with --quantization int8 or int4."
        )
    if any(isinstance(block.before_attention, LayerNorm) for block in declaration.decoder.blocks):
        raise ConfigurationError(
            f"{declaration.architecture} has layer norms, which penstock quantize does not calibrate yet; serve the "
            "model with --quantization int8 or int4."
        )
    if any(isinstance(block.attention, LatentAttention) for block in declaration.decoder.blocks):
        raise ConfigurationError(
            f"{declaration.architecture} has latent attention, which penstock quantize does not round yet; serve the "
            "model with --quantization int8 or int4."
        )
    if any(part.rows is not None for spec in declaration.weights for part in spec.parts):
        raise ConfigurationError(
            f"{declaration.architecture} turns a part of each head, or neighbouring columns, which penstock quantize "
            "does not write yet; serve the model with --quantization int8 or int4."
        )
    if any(block.scalar is not None for block in declaration.decoder.blocks):
        raise ConfigurationError(
            f"{declaration.architecture} multiplies the residual stream in each block, which penstock quantize does "
            "not calibrate yet; serve the model with --quantization int8 or int4."
        )
    if any(block.before_mlp is None for block in declaration.decoder.blocks):
        raise ConfigurationError(
            f"{declaration.architecture} has norms behind attention and MLP only, which penstock quantize cannot "
            "calibrate yet; serve the model with --quantization int8 or int4."
        )
    if any(map(_is_fused, declaration.decoder.blocks)):
        raise ConfigurationError(
            f"{declaration.architecture} has projections that are one tensor in the files, which penstock quantize "
            "does not write yet; serve the model with --quantization int8 or int4."
        )
    if declaration.unused_tensors:
        raise ConfigurationError(
            "The checkpoint also reads images, and only its text model could be written; give a checkpoint of the text "
            "model alone."
        )
    if recipe.method in BYTES:
        return
    for block in declaration.decoder.blocks:
        for spec in matrices(block):
            inputs = spec.shape[1]
            if recipe.grid.group and inputs % recipe.grid.group:
                raise ConfigurationError(
                    f"{spec.name} has {inputs} inputs, which are not in groups of {recipe.grid.group}; give another "
                    "--group-size."
                )
            for part in spec.parts:
                if part.shape[0] % 32 or inputs % 32:
                    raise ConfigurationError(
                        f"{part.tensor} is {part.shape[0]} × {inputs}: both must be multiples of 32."
                    )


def _is_fused(block: DecoderBlock) -> bool:
    """Whether files have projections of it as one tensor that are several."""
    attention, mlp = block.attention, block.mlp
    return (isinstance(attention, SelfAttention) and attention.fused) or (isinstance(mlp, GatedMlp) and mlp.fused)


def quantize_model(
    checkpoint: Checkpoint,
    declaration: ModelDeclaration,
    recipe: Recipe,
    texts: Sequence[list[int]],
    out: Path,
    processor: ProcessorKernels,
) -> Iterator[Measured | Done]:
    """Write the model as the directory or file `out`; yield each projection that is measured and block that is done.

    `texts` are what is calibrated on, by the kernels of `processor`, where the recipe is; else none. Raises
    ConfigurationError where `out` has something else than what an interrupted run with this recipe left there.
    """
    decoder, entries = declaration.decoder, checkpoint.locate(declaration)
    description = None
    if recipe.in_gguf:
        check_file(out)
        description = describe(checkpoint, declaration, recipe.layout)
    output = Output(parts_of(out) if recipe.in_gguf else out, len(decoder.blocks) + 1)
    output.begin(checkpoint, recipe, texts)
    dtype = torch.bfloat16 if declaration.dtype == "bfloat16" else torch.float32

    def loaded(*specs: WeightSpec) -> dict[str, Weight]:
        part = _Part(declaration.architecture, specs, declaration.tensor_prefixes)
        return load_weights(checkpoint, part, dtype, packing=IN_OWN_PRECISION)

    runner, states, widths = None, list[Tensor](), dict[str, int]()
    if texts:
        runner = BlockRunner.for_texts(declaration, processor, max(map(len, texts)), dtype)
        if recipe.average_bits is not None:
            known = output.measured
            if len(known) < sum(len(matrices(block)) for block in decoder.blocks):
                whole = loaded(*decoder.weights)
                for name, found in sensitivities(runner, whole, entries, recipe, texts, known):
                    output.remember(name, found)
                    known[name] = found
                    yield Measured(name, found)
            widths = allocate(known, recipe.average_bits)
        states = runner.embed(loaded(decoder.embedding_weight), texts)
    for index, block in enumerate(decoder.blocks):
        file = output.shard(index)
        weights = {} if runner is None else loaded(*block.weights)
        resumed, errors = file.exists(), dict[str, float]()
        if not resumed:
            watch = Watch()
            if runner is not None:
                runner.observe(block, weights, texts, states, watch.add)
            seen = watch.calibrated()
            tensors, errors = quantized_block(block, entries, recipe, widths, seen)
            output.save(tensors, index)
        if runner is not None and index < len(decoder.blocks) - 1:
            states = list(runner.run(block, _rounded(file, block, recipe, widths, dtype), texts, states))
        yield Done(index, errors, _apart(matrices(block), recipe, widths), resumed)
    rest = (decoder.embedding_weight, decoder.norm.weight, *decoder.output.weights)
    names = sorted({part.tensor for spec in rest for part in spec.parts})
    output.save({name: read_tensor(entries[name]).contiguous().clone() for name in names}, output.count - 1)
    if description is not None:
        write_file(output, description, declaration, recipe, out)
    else:
        output.finish(checkpoint, _declared(decoder.blocks, recipe, widths), tied=decoder.head is None)


def _apart(specs: Sequence[WeightSpec], recipe: Recipe, widths: Mapping[str, int]) -> dict[str, str]:
    """What is stored otherwise than the recipe says of all."""
    found = {spec.name: f"{widths[spec.name]} bits" for spec in specs if spec.name in widths}
    if recipe.in_gguf:
        kinds = ((spec.name, recipe.blocks_of(spec.shape[1])) for spec in specs)
        found |= {name: kind for name, kind in kinds if kind != recipe.layout}
    return found


def _declared(blocks: Sequence[DecoderBlock], recipe: Recipe, widths: Mapping[str, int]) -> dict[str, Any]:
    """What config.json says of these blocks."""
    if recipe.method in BYTES:
        return byte_config(BYTES[recipe.method])
    grids: dict[Grid, list[str]] = {}
    for block in blocks:
        for spec in matrices(block):
            modules = [part.tensor.removesuffix(".weight") for part in spec.parts]
            grids.setdefault(grid_of(spec, recipe, widths), []).extend(modules)
    return LAYOUTS[recipe.layout].config(grids)


def _rounded(
    file: Path, block: DecoderBlock, recipe: Recipe, widths: Mapping[str, int], dtype: torch.dtype
) -> dict[str, Weight]:
    """The block's weights as they are once the file is loaded."""
    entries: Mapping[str, Entry]
    if recipe.in_gguf:
        entries = _as_blocks(read_header(file), block, recipe)
    else:
        declared = _declared([block], recipe, widths)
        entries = combined(read_header(file), declared["quant_method"], declared, read_bytes)
    found: dict[str, Weight] = {}
    for spec in block.weights:
        numbers = torch.cat([read_tensor(entries[part.name]) for part in spec.parts])
        found[spec.name] = IN_OWN_PRECISION(spec, numbers.to(dtype))
    return found


def _as_blocks(header: Mapping[str, TensorEntry], block: DecoderBlock, recipe: Recipe) -> dict[str, TensorEntry]:
    """The same with projections, which are stored as bytes, as the blocks that these are."""
    parts = {part.tensor: part.shape for spec in matrices(block) for part in spec.parts}
    return {
        name: replace(entry, dtype=recipe.blocks_of(parts[name][1]), shape=parts[name]) if name in parts else entry
        for name, entry in header.items()
    }
