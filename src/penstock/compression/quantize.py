"""Writes a model with smaller weights: block by block, so that memory stays near one block's size.

Each block is a file of its own; so an interrupted run goes on behind the last block that was finished. Later blocks are
calibrated on what those before them have become.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from penstock.compression.block import grid_of, quantized_block
from penstock.compression.calibration import BlockRunner
from penstock.compression.files import Output
from penstock.compression.gguf_output import check_file, describe, parts_of, write_file
from penstock.compression.inputs import Inputs, Rare, Watch
from penstock.compression.projections import Tensors, kept_modules, matrices, units
from penstock.compression.reach import Reached, mixtures, reach
from penstock.compression.rewriting import as_written
from penstock.compression.sensitivity import sensitivities
from penstock.kernels.packing import Weight
from penstock.kernels.processor import ProcessorKernels
from penstock.layers.decoder import DecoderBlock
from penstock.layers.weights import WeightSpec
from penstock.loading.checkpoint import Checkpoint, read_bytes
from penstock.loading.packing import IN_OWN_PRECISION
from penstock.loading.quantization_config import CONFIG_KEY
from penstock.loading.quantized import Entry, combined
from penstock.loading.safetensors import TensorEntry, read_header
from penstock.loading.tensors import read_tensor
from penstock.loading.vector_weights import head_tensors
from penstock.loading.weights import load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.quantization.layouts import LAYOUTS, byte_config
from penstock.quantization.recipe import BYTES, Recipe
from penstock.quantization.rtn import Grid
from penstock.quantization.widths import Sensitivity, allocate

# What config.json says of layers that predict further tokens, which are not written.
_FURTHER_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers")


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
        rare: experts that too few rows of the texts were for, and that are rounded to the nearest for that.
    """

    block: int
    error: dict[str, float]
    stored: dict[str, str]
    resumed: bool = False
    rare: tuple[Rare, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """Some weights of a model, for `load_weights`."""

    architecture: str
    weights: tuple[WeightSpec, ...]
    tensor_prefixes: tuple[tuple[str, str], ...]
    inert_tensors: tuple[str, ...] = ("*",)


@dataclass(frozen=True, slots=True)
class Texts:
    """What is calibrated on, as token ids.

    Attributes:
        first: where the model has no experts, all that is used.
        further: where it has some, these are taken, too, as many at a time, until each has enough rows, or as many
            texts had none for those that lack them.
    """

    first: Sequence[list[int]] = ()
    further: Sequence[list[int]] = ()

    @property
    def all(self) -> list[list[int]]:
        """The first and the further ones, in this order."""
        return [*self.first, *self.further]


NO_TEXTS = Texts()


def quantize_model(
    checkpoint: Checkpoint,
    declaration: ModelDeclaration,
    recipe: Recipe,
    texts: Texts,
    out: Path,
    processor: ProcessorKernels,
) -> Iterator[Measured | Reached | Done]:
    """Write the model as the directory or file `out`; yield what is measured, and each block that is done.

    `texts` are calibrated on, by the kernels of `processor`, where the recipe is; else there are none. Raises
    ConfigurationError where `out` has something else than what an interrupted run with this recipe left there.
    """
    checkpoint, declaration = as_written(checkpoint, declaration)
    decoder = declaration.decoder
    description = None
    if recipe.in_gguf:
        check_file(out)
        description = describe(checkpoint, declaration, recipe.layout)
    output = Output(parts_of(out) if recipe.in_gguf else out, len(decoder.blocks) + 1)
    output.begin(checkpoint, recipe, texts.all)
    dtype = torch.bfloat16 if declaration.dtype == "bfloat16" else torch.float32
    work = _Work(checkpoint, declaration, recipe, output, dtype)
    if texts.first:
        yield from _calibrated(work, texts, processor)
    else:
        for index in range(len(decoder.blocks)):
            yield work.round(index, None)
    work.finish_rest()
    if description is not None:
        write_file(output, description, declaration, recipe, out)
    else:
        output.finish(checkpoint, work.config())


def _calibrated(work: "_Work", texts: Texts, processor: ProcessorKernels) -> Iterator[Measured | Reached | Done]:
    """Round all blocks, each on what texts have become by those before it."""
    declaration, recipe, output, dtype = work.declaration, work.recipe, work.output, work.dtype
    decoder = declaration.decoder
    runner = BlockRunner.for_texts(declaration, processor, max(map(len, texts.all)), dtype)
    used = list(texts.first)
    if mixtures(decoder.blocks):
        count = output.texts
        if count is None:
            for reached in reach(runner, work.loaded, recipe.rows_for, texts.all, len(used)):
                count = reached.texts
                yield reached
            assert count is not None, "there are texts"
            output.remember_texts(count)
        used = texts.all[:count]
    if recipe.average_bits is not None:
        known = output.measured
        if len(known) < sum(len(matrices(block)) for block in decoder.blocks):
            whole = work.loaded(*decoder.weights)
            for name, found in sensitivities(runner, whole, work.entries, recipe, used, known):
                output.remember(name, found)
                known[name] = found
                yield Measured(name, found)
        work.widths.update(allocate(known, recipe.average_bits))
    states = runner.embed(work.loaded(*decoder.embedding_weights), used)
    beside = work.loaded(*decoder.input_weights)
    for index, block in enumerate(decoder.blocks):
        watch = None
        if not output.shard(index).exists():
            watch = Watch([spec.name for spec in matrices(block)], dtype)
            runner.observe(block, beside | work.loaded(*block.weights), used, states, watch)
        done = work.round(index, watch)
        if index < len(decoder.blocks) - 1:
            states = list(runner.run(block, beside | work.rounded(index), used, states))
        yield done


@dataclass(frozen=True, slots=True)
class _Work:
    """A model that is written, and what it is read from.

    Attributes:
        dtype: what texts are computed in.
        widths: bits of projections whose width is not the recipe's.
    """

    checkpoint: Checkpoint
    declaration: ModelDeclaration
    recipe: Recipe
    output: Output
    dtype: torch.dtype
    widths: dict[str, int] = field(default_factory=dict)

    @property
    def entries(self) -> dict[str, Entry]:
        """Where weights are, by the names of their parts."""
        return self.checkpoint.locate(self.declaration)

    def loaded(self, *specs: WeightSpec) -> dict[str, Weight]:
        """Weights as they are."""
        return self._load(self.checkpoint, specs)

    def rounded(self, index: int) -> dict[str, Weight]:
        """A block's weights as they are once its file is loaded."""
        block, header = self.declaration.decoder.blocks[index], read_header(self.output.shard(index))
        entries: Mapping[str, Entry]
        if self.recipe.in_gguf:
            entries = _as_blocks(header, block, self.recipe)
        else:
            declared = self._declared([block])
            entries = combined(header, declared["quant_method"], declared, read_bytes)
        return self._load(replace(self.checkpoint, tensors=entries), block.weights)

    def round(self, index: int, watch: Watch | None) -> Done:
        """Write a block's file, where there is none yet, by what its projections were given."""
        block, recipe = self.declaration.decoder.blocks[index], self.recipe
        apart = _apart(matrices(block), recipe, self.widths)
        if self.output.shard(index).exists():
            return Done(index, {}, apart, resumed=True, rare=self.output.rare(index))
        entries = self._located(block.weights)
        inputs = Inputs(block, entries, watch, recipe.rows_for)
        rare = inputs.rare(block)
        tensors, errors = quantized_block(block, entries, recipe, self.widths, inputs)
        if rare:
            self.output.remember_rare(index, rare)
        self.output.save(tensors, index)
        return Done(index, errors, apart, rare=rare)

    def finish_rest(self) -> None:
        """Write the file of what is in no block."""
        decoder = self.declaration.decoder
        inputs = () if decoder.layer_inputs is None else decoder.layer_inputs.weights
        norm = () if decoder.norm is None else decoder.norm.weights
        head = decoder.output.weights if decoder.generates else ()
        rest = (*decoder.embedding_weights, *inputs, *norm, *head)
        tensors = Tensors(rest, self._located(rest))
        names = sorted({part.tensor for spec in rest for part in spec.parts})
        found = {name: tensors.kept(name) for name in names}
        if not decoder.generates:
            heads = head_tensors(self.checkpoint, self.declaration)
            found |= {name: read_tensor(entry).contiguous() for name, entry in heads.items()}
        self.output.save(found, self.output.count - 1)

    def config(self) -> dict[str, Any]:
        """What config.json of the written checkpoint says."""
        decoder, said = self.declaration.decoder, dict(self.checkpoint.config)
        said |= {key: 0 for key in _FURTHER_LAYERS if key in said}
        if decoder.generates:
            said["tie_word_embeddings"] = decoder.head is None
        return {**said, CONFIG_KEY: self._declared(decoder.blocks)}

    def _load(self, checkpoint: Checkpoint, specs: Sequence[WeightSpec]) -> dict[str, Weight]:
        part = _Part(self.declaration.architecture, tuple(specs), self.declaration.tensor_prefixes)
        return load_weights(checkpoint, part, self.dtype, packing=IN_OWN_PRECISION)

    def _located(self, specs: Sequence[WeightSpec]) -> dict[str, Entry]:
        part = _Part(self.declaration.architecture, tuple(specs), self.declaration.tensor_prefixes)
        return self.checkpoint.locate(part)

    def _declared(self, blocks: Sequence[DecoderBlock]) -> dict[str, Any]:
        """What config.json says of these blocks."""
        recipe, head = self.recipe, self.declaration.decoder.head or "lm_head"
        inputs = self.declaration.decoder.layer_inputs
        kept = [] if inputs is None else [inputs.projection]
        kept += [module for block in blocks for module in kept_modules(block)]
        if recipe.method in BYTES:
            return byte_config(BYTES[recipe.method], head, kept)
        grids: dict[Grid, list[str]] = {}
        for spec in (spec for block in blocks for spec in matrices(block)):
            modules = [name.removesuffix(".weight") for unit in units(spec) for name in unit.tensors]
            grids.setdefault(grid_of(spec.name, spec.shape[1], recipe, self.widths), []).extend(modules)
        return LAYOUTS[recipe.layout].config(grids, head, kept)


def _apart(specs: Sequence[WeightSpec], recipe: Recipe, widths: Mapping[str, int]) -> dict[str, str]:
    """What is stored otherwise than the recipe says of all."""
    found = {spec.name: f"{widths[spec.name]} bits" for spec in specs if spec.name in widths}
    if recipe.in_gguf:
        kinds = ((spec.name, recipe.blocks_of(spec.shape[1])) for spec in specs)
        found |= {name: kind for name, kind in kinds if kind != recipe.layout}
    return found


def _as_blocks(header: Mapping[str, TensorEntry], block: DecoderBlock, recipe: Recipe) -> dict[str, TensorEntry]:
    """The same with projections, which are stored as bytes, as the blocks that these are."""
    parts = {part.tensor: part.stored for spec in matrices(block) for part in spec.parts}
    return {
        name: replace(entry, dtype=recipe.blocks_of(parts[name][1]), shape=parts[name]) if name in parts else entry
        for name, entry in header.items()
    }
