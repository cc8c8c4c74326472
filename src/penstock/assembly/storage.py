"""The KV pool, laid out for the kernels that will work on it."""

import torch

from penstock.core.errors import ConfigurationError
from penstock.core.kv import KV_BYTES, KVSpec
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.operations import kv_layout
from penstock.kernels.dispatch import KVLayout
from penstock.runtime.storage import KVStorage


def layout_for(spec: KVSpec, dtype: torch.dtype) -> KVLayout:
    """The pool's layout. Raises ConfigurationError where it has bytes, and no kernels take them."""
    layout = kv_layout(spec, dtype)
    if spec.planes[0].dtype in KV_BYTES.values() and layout == "slots":
        why = OBSTACLE or f"the native kernels take heads of an even size, not of {spec.planes[0].shape[-1]}"
        raise ConfigurationError(f"--kv-cache-dtype int8, fp8 and int4 are not possible here: {why}.")
    return layout


def storage_for(spec: KVSpec, num_blocks: int, dtype: torch.dtype) -> KVStorage:
    """A pool for a model of `dtype`. Raises ConfigurationError as `layout_for` does."""
    return KVStorage(spec, num_blocks, layout_for(spec, dtype))
