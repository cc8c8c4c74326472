"""How large the KV pool is: estimated before anything is loaded, and on a GPU fitted to a step that was measured."""

from collections.abc import Sequence

import msgspec

from penstock.configuration.bounding import check_option
from penstock.configuration.encoding import longest_text
from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.reasons import Note, Reasons
from penstock.configuration.sources import longest_source
from penstock.configuration.swapping import STAGING_BYTES
from penstock.core.config import BLOCK_SIZE, EngineConfig, PoolWish, Reason
from penstock.core.devices import StepMemory
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import KVSpec
from penstock.core.speculation import blocks_of_branches

WORKSPACE_BYTES = 512 << 20
# With what CUDA and its libraries take for themselves; of a GPU it is an estimate, until a step is measured.
GPU_WORKSPACE_BYTES = 1536 << 20
KV_SHARE_OF_FREE_MEMORY = 0.8
# Where it is known what a step takes; the rest is for what allocators cannot use of what is free.
KV_SHARE_OF_MEASURED_MEMORY = 0.9


def graphs_bytes(decodes: Sequence[int], each: int) -> int:
    """What graphs of some sizes take at most.

    `decodes` are the bytes that a step of each size takes to compute, `each` what CUDA keeps for a graph. Graphs share
    the memory of what they compute, but one that comes later may find none of it large enough.
    """
    return each * len(decodes) + sum(decodes)


def estimate_pool(
    options: EngineOptions,
    model: ModelFacts,
    machine: MachineFacts,
    blocks: tuple[KVSpec, int],
    weights: int,
    batch: tuple[int, int],
    note: Note,
) -> tuple[int, int, PoolWish | None]:
    """Blocks of the pool, the longest context, which must fit into the pool, and what is left to be measured.

    `blocks` are their geometry, and the bytes of one with what a draft model keeps in it; `batch` the sequences and the
    positions of a step, at most. Where a step will be measured, blocks and context are estimates, and only what can fit
    in no case is refused. Raises ConfigurationError and InsufficientMemory.
    """
    spec, block_bytes = blocks
    asked, wanted = options.batch.max_model_len, options.cache.kv_cache_memory
    longest = asked or (longest_text(model) if model.encodes else model.max_position_embeddings)
    if longest > model.max_position_embeddings:
        raise ConfigurationError(
            f"--max-model-len {longest} is beyond the {model.max_position_embeddings} positions that the model was "
            "made for (max_position_embeddings)."
        )
    max_num_seqs, chunk = batch
    if spec.keeps_nothing:
        # A pool has a block, which is never taken.
        _estimate(None, machine, weights, block_bytes, block_bytes)
        note("kv cache memory", "none", "an encoder keeps no keys and values")
        usual = "max_position_embeddings" if longest == model.max_position_embeddings else "what the checkpoint says"
        note("max model len", longest, "as asked" if asked is not None else usual)
        return 1, longest, None
    source = longest_source(options, model)
    smallest = spec.blocks_for(min(longest, BLOCK_SIZE), chunk, source=source) * block_bytes
    largest_use = _largest_use(spec, max_num_seqs, longest, source) * block_bytes
    memory, why = _estimate(wanted, machine, weights, smallest, largest_use)
    of_sources = f" with sources of {source}" if source else ""
    why = why or f"all that {max_num_seqs} sequences of {longest} tokens{of_sources} can fill"
    num_blocks = memory // block_bytes
    pool = _pool(num_blocks, spec, memory)
    if not machine.measures_steps:
        note("kv cache memory", pool, why)
        return (
            num_blocks,
            _fit_context(longest, asked is not None, spec, num_blocks, chunk, note, made_for=longest, source=source),
            None,
        )
    told = "as asked, until" if wanted is not None else f"estimated ({why}) until"
    note("kv cache memory", pool, f"{told} the engine has measured its largest step")
    if asked is not None:
        note("max model len", longest, "as asked")
        return num_blocks, longest, PoolWish(wanted, longest, longest, strict=True)
    fits = max(1, longest_context(spec, num_blocks, longest, chunk))
    note("max model len", fits, "max_position_embeddings" if fits == longest else "estimated: what the KV pool holds")
    # What all memory would not hold need not be prepared for.
    most = longest_context(spec, (machine.available_memory - weights) // block_bytes, longest, chunk)
    return num_blocks, fits, PoolWish(wanted, longest, most)


def _estimate(
    asked: int | None, machine: MachineFacts, weights: int, smallest: int, largest_use: int
) -> tuple[int, str]:
    """Bytes of the pool and why; no reason where the pool is as large as its largest use."""
    available, where, workspace = machine.available_memory, "", WORKSPACE_BYTES
    if machine.gpu is not None:
        where, workspace = f" on {machine.gpu.device} ({machine.gpu.name})", GPU_WORKSPACE_BYTES
    # Where the working space will be measured, only what surely is too much is refused before anything is loaded.
    kept = 0 if machine.measures_steps else workspace
    free = available - weights - kept
    if free < smallest:
        besides = f" and {gib(kept)} are kept for the computation" if kept else ""
        raise InsufficientMemory(
            f"The weights take {gib(weights)}{besides}, but only {gib(available)} of memory are available{where}: "
            "free some, or use a smaller model or dtype, or --quantization int8 or int4."
        )
    if asked is not None:
        if asked > free:
            besides = f" and {gib(kept)} are kept free" if kept else ""
            raise InsufficientMemory(
                f"--kv-cache-memory {gib(asked)} does not fit: of {gib(available)} available{where}, the weights take "
                f"{gib(weights)}{besides}; at most {gib(max(free, 0))} are left."
            )
        return asked, "as asked"
    share = max(smallest, int(KV_SHARE_OF_FREE_MEMORY * (available - weights - workspace)))
    if largest_use <= share:
        return largest_use, ""
    return share, (
        f"{KV_SHARE_OF_FREE_MEMORY:.0%} of what is left of {gib(available)} available{where} after {gib(weights)} of "
        f"weights and {gib(workspace)} of working space"
    )


def fit_pool(config: EngineConfig, measured: StepMemory) -> tuple[EngineConfig, list[Reason]]:
    """The configuration with the pool, and the longest context, that what was measured leaves room for.

    Raises InsufficientMemory, with the numbers and what would fit, where a sequence of the longest context that was
    asked for has no place, or none at all; ConfigurationError, where a policy for contexts bounds none of those.
    """
    cache, limits = config.cache, config.scheduler
    wish, spec = cache.wish, cache.spec
    if wish is None:
        raise ValueError("the pool of this configuration is not sized by what was measured")
    out = Reasons()
    told = (
        f"of {gib(measured.free)} that are free on {config.device} behind the weights, the largest step takes "
        f"{gib(measured.step)} and graphs of decode steps {gib(measured.graphs)}"
    )
    # What the program has been made for, whatever has become free since.
    longest, chunk = min(wish.longest, wish.bound), limits.max_num_batched_tokens
    largest_use = _largest_use(spec, limits.max_num_seqs, longest) * spec.block_bytes
    branches = blocks_of_branches(limits.draft_depth, spec.block_size, spec.num_tables) if limits.draft_width else 0
    # Blocks are on their way to the processor's memory, and to a disk or store, in memory of their own.
    ways = (cache.swap_blocks or cache.host_blocks, cache.disk or cache.store or cache.handover)
    left = measured.left - branches * spec.block_bytes - STAGING_BYTES * sum(map(bool, ways))
    if wish.memory is not None:
        memory, why = wish.memory, f"as asked; {told}"
        if memory > left:
            raise InsufficientMemory(
                f"--kv-cache-memory {gib(memory)} does not fit: {told}; at most {gib(max(left, 0))} are left. Lower "
                "it, or --max-num-batched-tokens or --max-num-seqs, which make steps smaller."
            )
    elif largest_use <= KV_SHARE_OF_MEASURED_MEMORY * left:
        memory, why = largest_use, f"all that {limits.max_num_seqs} sequences of {longest} tokens can fill; {told}"
    else:
        memory, why = int(KV_SHARE_OF_MEASURED_MEMORY * left), f"{KV_SHARE_OF_MEASURED_MEMORY:.0%} of the rest: {told}"
    num_blocks = max(0, memory) // spec.block_bytes
    if spec.blocks_for(min(longest, spec.block_size), chunk) > num_blocks:
        raise InsufficientMemory(
            f"There is no room for a KV pool: {told}. Lower --max-num-batched-tokens or --max-num-seqs, which make "
            "steps smaller, or use a smaller model, or --quantization int8 or int4."
        )
    out.limit("kv cache memory", _pool(num_blocks, spec, memory), why)
    if longest < wish.longest and longest_context(spec, num_blocks, longest, chunk) == longest:
        out.limit(
            "max model len", longest, f"what was free before the weights came; the model was made for {wish.longest}"
        )
    else:
        longest = _fit_context(longest, wish.strict, spec, num_blocks, chunk, out.limit, made_for=wish.longest)
    if config.kv_policy is not None:
        check_option(config.kv_policy, limits.kv_policies, spec, longest)
    return (
        msgspec.structs.replace(
            config,
            cache=msgspec.structs.replace(cache, num_blocks=num_blocks, wish=None),
            scheduler=msgspec.structs.replace(limits, max_model_len=longest),
        ),
        out.found,
    )


def longest_context(spec: KVSpec, num_blocks: int, longest: int, chunk: int, source: int = 0) -> int:
    """The most tokens, up to `longest`, of a sequence that `num_blocks` blocks hold; 0 where they hold none.

    They hold a source of `source` tokens beside it.
    """
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        fits = spec.blocks_for(middle, chunk, source=source) <= num_blocks
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _fit_context(
    longest: int, asked: bool, spec: KVSpec, num_blocks: int, chunk: int, note: Note, *, made_for: int, source: int = 0
) -> int:
    """The longest context, up to `longest`, that fits into the pool at least once, beside a source."""
    fits = longest_context(spec, num_blocks, longest, chunk, source)
    if fits == longest:
        note("max model len", longest, "as asked" if asked else "max_position_embeddings")
        return longest
    if fits < 2 or asked:
        raise InsufficientMemory(
            f"The KV pool has {num_blocks} blocks and one sequence of {longest} tokens needs "
            f"{spec.blocks_for(longest, chunk, source=source)}: raise --kv-cache-memory"
            + (f" or lower --max-model-len to at most {fits}." if fits >= 2 else ".")
        )
    note("max model len", fits, f"what the KV pool holds; the model was made for {made_for}")
    return fits


def _largest_use(spec: KVSpec, sequences: int, longest: int, source: int = 0) -> int:
    """Blocks that `sequences` sequences can fill; those that a window has passed are still worth keeping, for hits."""
    own, of_source = spec.growth, spec.num_tables - spec.growth
    return sequences * (own * -(-longest // spec.block_size) + of_source * -(-source // spec.block_size))


def _pool(num_blocks: int, spec: KVSpec, memory: int) -> str:
    return f"{gib(memory)} ({num_blocks} blocks of {spec.block_size} tokens)"


def gib(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
