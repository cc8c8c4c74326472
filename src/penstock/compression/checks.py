"""What `penstock quantize` refuses, before anything is computed."""

from collections.abc import Iterator

from penstock.compression.projections import matrices
from penstock.compression.rewriting import as_written
from penstock.core.errors import ConfigurationError
from penstock.layers.weights import WeightSpec
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.vector_weights import head_tensors
from penstock.models.declaration import ModelDeclaration
from penstock.models.wrappers import TEXT_PARTS
from penstock.quantization.recipe import BYTES, Recipe

# The kernels' panels, which integers of all layouts fill.
_PANEL = 32
# The others change norms by what is behind them, or judge widths by logits.
_OF_ENCODERS = ("gptq", "rtn")


def check(checkpoint: Checkpoint, declaration: ModelDeclaration, recipe: Recipe) -> None:
    """Raise ConfigurationError where the recipe cannot be followed for this model, with all that is in its way."""
    if not declaration.decoder.generates and (recipe.method not in _OF_ENCODERS or recipe.in_gguf):
        raise ConfigurationError(
            f"penstock quantize writes encoders with --method {' or '.join(_OF_ENCODERS)}, and no GGUF files of them."
        )
    if declaration.encoder is not None:
        raise ConfigurationError(
            f"penstock quantize does not write models with an encoder and a decoder, as {declaration.architecture} is; "
            "serve it with --quantization int8."
        )
    recipe.check()
    checkpoint, declaration = as_written(checkpoint, declaration)
    checkpoint.locate(declaration)
    found = list(dict.fromkeys(_obstacles(declaration, recipe)))
    if found:
        raise ConfigurationError(f"penstock quantize cannot write {declaration.architecture}: {'; '.join(found)}.")


def left_out(checkpoint: Checkpoint, declaration: ModelDeclaration) -> list[str]:
    """Tensors of the files that the model's outputs do not depend on, and that are not written."""
    used = {entry.name for entry in checkpoint.locate(declaration).values()}
    if not declaration.decoder.generates:
        used |= {entry.name for entry in head_tensors(checkpoint, declaration).values()}
    return sorted(name for name in checkpoint.tensors if name not in used)


def _obstacles(declaration: ModelDeclaration, recipe: Recipe) -> Iterator[str]:
    part = TEXT_PARTS.get(declaration.architecture)
    if part is not None and part.alone is None:
        yield (
            "it also reads images, and only its text model could be written, so give a checkpoint of the text model "
            "alone"
        )
    specs = [spec for block in declaration.decoder.blocks for spec in matrices(block)]
    if recipe.method not in BYTES:
        yield from _sizes(specs, recipe)


def _sizes(specs: list[WeightSpec], recipe: Recipe) -> Iterator[str]:
    """Of matrices that are not in whole groups or panels, the first of each size."""
    group, seen = recipe.grid.group, set[tuple[int, ...]]()
    for spec in specs:
        inputs = spec.shape[1]
        for part in spec.parts:
            in_panels = part.stored[0] % _PANEL == 0 and inputs % _PANEL == 0
            size = (inputs,) if in_panels else part.stored
            if size in seen:
                continue
            seen.add(size)
            if not in_panels:
                yield f"{part.tensor} is {part.stored[0]} × {inputs}, of which both must be multiples of {_PANEL}"
            elif group and inputs % group:
                yield f"{part.tensor} has {inputs} inputs, which are not in groups of {group} (--group-size)"
