"""What weights and a KV pool take, and how a block of it is laid out: in one process, or in several ranks."""

from collections.abc import Sequence

import msgspec

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.pool_size import WORKSPACE_BYTES
from penstock.configuration.ranks import resolve_ranks
from penstock.configuration.reasons import Reasons
from penstock.core.config import BLOCK_SIZE, RanksConfig
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError
from penstock.core.kv import DTYPE_BYTES, KV_BYTES, KVSpec, build_kv_spec
from penstock.core.speculation import DraftModelConfig
from penstock.core.work import kept_bytes


def resolve_geometry(
    options: EngineOptions, model: ModelFacts, machine: MachineFacts, gpu: Gpu | None, dtype: str, out: Reasons
) -> tuple[KVSpec, RanksConfig | None]:
    """The geometry of the pool, or of that of the first of several ranks; and these."""
    spec = _resolve_kv(options.cache.kv_cache_dtype, model, dtype, out)
    ranks = resolve_ranks(options, model, machine, gpu, spec, dtype, out)
    why = "tokens in a KV block; few enough that the last one wastes little"
    if ranks is not None:
        # All have the same blocks. What there is of one in each is a part of the tokens, or of what they keep.
        spec = msgspec.structs.replace(ranks.specs[0], block_size=BLOCK_SIZE * ranks.stripes)
        if ranks.stripes > 1:
            why = f"tokens in a KV block, {BLOCK_SIZE} in each process"
    out.note("block size", spec.block_size, why)
    return spec, ranks


def _resolve_kv(kept: str, model: ModelFacts, dtype: str, out: Reasons) -> KVSpec:
    if kept not in ("auto", *KV_BYTES):
        raise ConfigurationError(f"--kv-cache-dtype {kept} is not one of auto, {', '.join(KV_BYTES)}.")
    spec = build_kv_spec(model.kv_layers, dtype, BLOCK_SIZE, kept)
    if spec.keeps_nothing:
        out.limit("kv cache dtype", "none", "an encoder keeps no keys and values")
        return spec
    if kept == "auto":
        out.limit(
            "kv cache dtype", dtype, "what the model computes in; --kv-cache-dtype int8 makes the pool's tokens smaller"
        )
        return spec
    share = spec.block_bytes / build_kv_spec(model.kv_layers, dtype, BLOCK_SIZE).block_bytes
    out.limit("kv cache dtype", kept, f"as asked: a token takes {share:.0%} of the memory that it takes in {dtype}")
    return spec


def weight_bytes(model: ModelFacts, dtype: str, body: str, head: str) -> int:
    """Bytes of a model's weights, with projections, and head and embedding, rounded as said."""
    size = DTYPE_BYTES[dtype]
    if body == "none":
        return model.resident_parameters * size
    own = model.integers
    if body == head == "own":
        plain = model.resident_parameters - own.body - own.head
        return plain * size + own.body_bytes + own.head_bytes
    rest = model.num_parameters - model.body_parameters - model.head_parameters
    projections = kept_bytes(model.body_parameters, body, size, (own.body, own.body_bytes))
    return int(projections + kept_bytes(model.head_parameters, head, size)) + rest * size


def bytes_of(
    model: ModelFacts,
    dtype: str,
    quantization: tuple[str, str],
    geometry: tuple[KVSpec, RanksConfig | None],
    drafts: Sequence[tuple[ModelFacts, DraftModelConfig]],
    gpu: Gpu | None,
    *,
    mapped: bool,
) -> tuple[int, int]:
    """Bytes of all weights that are loaded here, and of a KV block, in all ranks, with those of what drafts.

    Where each rank has a device, what one has of the weights in the mean, and of a block at the most.

    Of several machines, this one is taken to have its part of the weights. Where packed weights are `mapped`,
    ranks that have the same ones have them in the same memory.
    """
    spec, ranks = geometry
    weights, block = weight_bytes(model, dtype, *quantization), spec.block_bytes
    if ranks is not None and gpu is not None:
        block = max(each.block_bytes for each in ranks.specs)
        weights = -(-(weights + weights * model.copied_parameters // model.num_parameters) // ranks.split)
    elif ranks is not None:
        own = ranks.ranks_of(0)
        # The pools of all machines have as many blocks.
        block = max(
            sum(ranks.specs[rank].block_bytes for rank in ranks.ranks_of(machine))
            for machine in range(ranks.num_machines)
        )
        # Each copied number takes what a weight takes in the mean.
        weights += weights * model.copied_parameters // model.num_parameters
        weights *= 1 if mapped else ranks.stripes
        weights = weights // ranks.num_machines + (len(own) - 1) * WORKSPACE_BYTES
    for facts, draft in drafts:
        weights += weight_bytes(facts, dtype, draft.quantization, draft.quantization)
        block += 0 if draft.spec is None else draft.spec.block_bytes
    return weights, block
