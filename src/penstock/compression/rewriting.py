"""A model as `penstock quantize` writes it, where that is not as its files have it."""

from collections.abc import Iterator
from dataclasses import replace

from penstock.layers.decoder import DecoderBlock
from penstock.layers.weights import WeightPart
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.safetensors import TensorEntry
from penstock.models.declaration import ModelDeclaration
from penstock.models.wrappers import TEXT_PARTS, text_alone

# What config.json says of matrices that are [outputs, inputs], in a family whose files have them the other way round.
_ACROSS = "matrices_across"
# transformers knows a model by this. It would load such a checkpoint with random numbers in the place of its matrices.
_KIND = "model_type"


def as_written(checkpoint: Checkpoint, declaration: ModelDeclaration) -> tuple[Checkpoint, ModelDeclaration]:
    """The same model, with the configuration that is written and matrices as [outputs, inputs].

    Of a checkpoint that also reads images, the configuration is that of the text model alone. Tensors stay where they
    are in the files.
    """
    alone = text_alone(declaration.architecture, checkpoint.config)
    if alone is not None:
        return replace(checkpoint, config=alone), declaration
    across = {part.tensor for block in declaration.decoder.blocks for part in _across(block)}
    if not across:
        return checkpoint, declaration
    tensors = dict(checkpoint.tensors)
    for name in across:
        entry = checkpoint.find(name, declaration)
        if isinstance(entry, TensorEntry):
            tensors[entry.name] = replace(entry, shape=entry.shape[::-1], transposed=not entry.transposed)
    config = {key: value for key, value in checkpoint.config.items() if key != _KIND}
    turned = replace(checkpoint, tensors=tensors, config={**config, _ACROSS: False})
    return turned, model_of(turned)


def remarks(declaration: ModelDeclaration) -> list[str]:
    """What users should know of how the model is written, a sentence each."""
    found = []
    if declaration.architecture in TEXT_PARTS:
        found.append("Written is the text model alone, which reads no images and no sounds.")
    if any(True for block in declaration.decoder.blocks for _ in _across(block)):
        found.append(
            f"Matrices are written as [outputs, inputs], and config.json says {_ACROSS} = false. Penstock reads that. "
            f"transformers does not, since compressed-tensors has no place for matrices of {declaration.architecture}. "
            f"config.json has no {_KIND}, so that it refuses them. Other programs are not tested."
        )
    return found


def _across(block: DecoderBlock) -> Iterator[WeightPart]:
    """The parts of weights that are whole tensors of the files, as [inputs, outputs]."""
    cuts = ((part, part.cut) for spec in block.weights for part in spec.parts)
    return (part for part, cut in cuts if cut is not None and cut.across and cut.count == cut.size)
