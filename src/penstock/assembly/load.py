"""Loads the weights of a model as its configuration says."""

from pathlib import Path

from penstock.core.config import ModelConfig
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.packed_cache import LoadedWeights, load_cached
from penstock.loading.packing import packing_of
from penstock.loading.weights import Progress, dummy_weights, load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.storage import TORCH_DTYPES

DUMMY_SEED = 0


def load(
    model: ModelConfig, checkpoint: Checkpoint, declaration: ModelDeclaration, progress: Progress
) -> LoadedWeights:
    """The model's packed weights: mapped where an earlier start has left them. Raises StartupError."""
    dtype = TORCH_DTYPES[model.dtype]
    packing = packing_of(model, declaration)
    if model.load_format == "dummy":
        return LoadedWeights(dummy_weights(declaration, dtype, DUMMY_SEED, packing=packing))
    if model.packed_cache is None or OBSTACLE is not None:
        return LoadedWeights(load_weights(checkpoint, declaration, dtype, progress, packing=packing))
    folder = Path(model.packed_cache).expanduser()
    return load_cached(folder, checkpoint, declaration, dtype, packing, progress)
