"""What options mean for a model on a machine, with a reason for every value."""

from collections.abc import Sequence
from typing import Any, get_args

from msgspec.structs import replace

from penstock.configuration.bounding import resolve_policies
from penstock.configuration.computing import note_computing
from penstock.configuration.devices import resolve_device
from penstock.configuration.encoding import encoding_options, least_step
from penstock.configuration.facts import KeptIntegers, MachineFacts, ModelFacts
from penstock.configuration.geometry import bytes_of, resolve_geometry, weight_bytes
from penstock.configuration.handover import resolve_handover, without_offers
from penstock.configuration.options import (
    DEFAULT_TARGET_ITL,
    LONGEST_TARGET_ITL,
    BatchOptions,
    DeviceOptions,
    EngineOptions,
    LoadingOptions,
    SpeculationOptions,
)
from penstock.configuration.pool_size import estimate_pool, gib
from penstock.configuration.ranks import check_ranks
from penstock.configuration.reasons import Reasons
from penstock.configuration.sharing import resolve_sharing
from penstock.configuration.sources import longest_source, sourced_options
from penstock.configuration.speculation import HEADS, resolve_speculation
from penstock.configuration.stores import resolve_store
from penstock.configuration.swapping import resolve_disk, resolve_host_memory, resolve_swap_space
from penstock.core.config import (
    BACKGROUND_TOKENS,
    DEFAULT_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    QUANTIZED_BYTES,
    CacheConfig,
    EngineConfig,
    LoadFormat,
    ModelConfig,
    RanksConfig,
    Reason,
    RerankerName,
    SchedulerConfig,
)
from penstock.core.devices import FP8_CAPABILITY, Gpu, dotted
from penstock.core.errors import ConfigurationError
from penstock.core.kv import DTYPE_BYTES, KVSpec, beside
from penstock.core.speculation import DraftModelConfig, blocks_of_branches

COMPUTE_DTYPES = ("bfloat16", "float32")
QUANTIZATIONS = ("none", *QUANTIZED_BYTES)
INSTRUCTION_SETS = ("auto", "amx", "avx512", "avx512_vnni", "avx2", "portable")
LARGEST_VALUE = 2**63 - 1


def resolve(
    options: EngineOptions, model: ModelFacts, machine: MachineFacts, drafts: Sequence[ModelFacts] = ()
) -> tuple[EngineConfig, list[Reason]]:
    """The configuration that `options` mean for this model on this machine, with a reason for every value.

    `drafts` are the model that drafts and the one that drafts for it, if there are any. Pure: the same arguments give
    the same answer. Raises ConfigurationError where options contradict each other or the model, InsufficientMemory
    where weights and the smallest useful pool do not fit.
    """
    out = Reasons()
    gpu = resolve_device(options.device.device, machine.gpus, out.note)
    host_memory = None if gpu is None else machine.available_memory
    options, machine = _fitted(sourced_options(encoding_options(options, model, gpu), model, gpu), machine, gpu)
    device, loading, cache = options.device, options.loading, options.cache
    note_computing(device, gpu, machine, out.note)
    tokenizer = _resolve_model(options, model, out)
    dtype = _resolve_dtype(loading, model, out)
    machine = without_offers(options, model, machine, gpu)
    quantization = _resolve_quantization(loading, model, dtype, gpu, out)
    _check_rounding("--quantization", quantization[0] if gpu is None else "none", machine)
    threads = _resolve_threads(device, machine, out)
    _check_sizes(options)
    max_num_seqs, batched = _resolve_batch(options.batch, least_step(options, model), out)
    target_itl = _resolve_target_itl(options.batch, machine, out)
    geometry = spec, ranks = resolve_geometry(options, model, machine, gpu, dtype, out)
    drafting = _draft_models(options.speculation, model, machine, drafts, spec, dtype)
    speculation, depth, width = resolve_speculation(
        options.speculation, drafting, model.blocks or len(model.kv_layers), out.note, exact=machine.exact
    )
    loaded = () if speculation is None or speculation.draft is None else tuple(zip(drafts, drafting, strict=True))
    packed_cache = _resolve_packed_cache(loading, machine, out)
    weights, block_bytes = bytes_of(model, dtype, quantization, geometry, loaded, gpu, mapped=packed_cache is not None)
    weights += blocks_of_branches(depth, spec.block_size, spec.num_tables) * spec.block_bytes if width else 0
    num_blocks, max_model_len, wish = estimate_pool(
        options, model, machine, (spec, block_bytes), weights, (max_num_seqs, batched), out.limit
    )
    beside = _resolve_beside(options, geometry, block_bytes, host_memory, out)
    kv_policies, kv_policy = resolve_policies(options, model, machine, spec, max_model_len, out.note)
    config = EngineConfig(
        model=ModelConfig(
            model.path, tokenizer, dtype, loading.load_format, *quantization, packed_cache, reranker_of(loading)
        ),
        cache=CacheConfig(spec, num_blocks, *resolve_sharing(cache, out.note), wish=wish, **beside),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=batched,
            max_chunk=options.batch.long_prefill_token_threshold,
            max_model_len=max_model_len,
            **_resolve_steps(gpu, ranks, drafts=speculation is not None, width=width, out=out),
            static_batching=options.batch.static_batching,
            target_itl=target_itl,
            bound_batch=options.batch.target_itl is not None,
            draft_depth=depth,
            draft_width=width,
            fixed_depth=options.speculation.depth is not None,
            text_drafts=speculation is not None and speculation.proposer in ("ngram", "either"),
            model_drafts=speculation is not None and speculation.proposer != "ngram",
            kv_policies=kv_policies,
            generates=not model.encodes,
            max_source=None if model.max_source is None else longest_source(options, model),
        ),
        threads=threads,
        instruction_set=_resolve_instruction_set(device, out),
        speculation=speculation,
        device="cpu" if gpu is None else gpu.device,
        deterministic=device.deterministic,
        kv_policy=kv_policy,
        ranks=ranks,
    )
    return replace(config, weight_bytes=weights), out.found


def _fitted(options: EngineOptions, machine: MachineFacts, gpu: Gpu | None) -> tuple[EngineOptions, MachineFacts]:
    """Options and machine for what computes. Raises ConfigurationError where one asks a GPU for what only CPUs have."""
    if gpu is None:
        return options, machine
    if options.cache.kv_cache_dtype == "int4":
        raise ConfigurationError(
            f"--kv-cache-dtype int4 is not possible on {gpu.device}: its kernels take auto, int8 and fp8; --device cpu "
            "takes int4 too."
        )
    drafts = options.speculation
    asked = drafts.draft_model is not None or drafts.chain_model is not None
    if drafts.proposer not in ("auto", "off", "ngram") or asked:
        who = "--draft-model" if asked else f"--speculative {drafts.proposer}"
        raise ConfigurationError(
            f"{who} is not possible on {gpu.device}, where no model drafts; take --speculative ngram or off, or "
            "--device cpu."
        )
    if drafts.proposer == "auto":
        # A default, not a wish.
        options = replace(options, speculation=replace(drafts, proposer="off"))
    # Those that a model is shared out to have pools of one size.
    last = gpu.index + check_ranks(options).size
    beside = [each.free_memory for each in machine.gpus.gpus if gpu.index <= each.index < last]
    facts = replace(
        machine,
        available_memory=min(beside, default=gpu.free_memory),
        exact=options.device.deterministic,
        cache_folder=None,
        gpu=gpu,
        # An interpreter in this process has no memory of its own to measure.
        measures_steps=not gpu.interpreted,
    )
    return options, facts


def _resolve_beside(
    options: EngineOptions,
    geometry: tuple[KVSpec, RanksConfig | None],
    block_bytes: int,
    host_memory: int | None,
    out: Reasons,
) -> dict[str, Any]:
    """What there is beside the pool, as fields of `CacheConfig`.

    `host_memory` is free beside a GPU; None where none computes.
    """
    cache, (spec, ranks) = options.cache, geometry
    _positive("swap_space", cache.swap_space or None)
    _positive("kv_disk_size", cache.kv_disk_size)
    _positive("kv_host_memory", cache.kv_host_memory or None)
    _positive("kv_offer_memory", cache.kv_offer_memory)
    swap_blocks = resolve_swap_space(cache.swap_space, block_bytes, host_memory, out.note)
    left = None if host_memory is None else host_memory - (cache.swap_space or 0)
    caches = cache.enable_prefix_caching
    host_blocks = resolve_host_memory(cache.kv_host_memory, spec, left, caches=caches, note=out.note)
    why_not = None
    if not cache.enable_prefix_caching:
        why_not = "--no-enable-prefix-caching keeps no prefix"
    elif options.device.simulate is not None:
        why_not = "simulated devices have no keys and values"
    slots = spec if ranks is None else ranks.whole
    slot_bytes = slots.num_tables * slots.block_bytes
    disk, size = resolve_disk(cache.kv_disk, cache.kv_disk_size, slot_bytes, why_not, out.note)
    store = resolve_store(cache.kv_store, slot_bytes, why_not, out.note)
    handover = resolve_handover(cache, slot_bytes, out.note)
    beside = {"swap_blocks": swap_blocks, "host_blocks": host_blocks, "handover": handover}
    return {**beside, "disk": disk, "disk_bytes": size, "store": store}


def _check_sizes(options: EngineOptions) -> None:
    _positive("max_model_len", options.batch.max_model_len)
    _positive("kv_cache_memory", options.cache.kv_cache_memory)


def _positive(name: str, value: Any) -> None:
    option = f"--{name.replace('_', '-')}"
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ConfigurationError(f"{option} is {value!r}; it must be a whole number.")
    if value is not None and value < 1:
        raise ConfigurationError(f"{option} is {value}; it must be at least 1.")
    if value is not None and value > LARGEST_VALUE:
        raise ConfigurationError(f"{option} does not fit into 64 bits; it must be at most {LARGEST_VALUE}.")


def _resolve_model(options: EngineOptions, model: ModelFacts, out: Reasons) -> str:
    """The directory of the tokenizer; what is loaded and how is noted."""
    formats = get_args(LoadFormat)
    if options.loading.load_format not in formats:
        raise ConfigurationError(f"--load-format {options.loading.load_format} is not one of {', '.join(formats)}.")
    out.note("model", model.path, "as asked" if model.path == options.model else f"where {options.model} was found")
    loaded = "random weights, as asked" if options.loading.load_format == "dummy" else "the checkpoint's weights"
    out.note("load format", options.loading.load_format, loaded)
    tokenizer = options.loading.tokenizer
    out.note("tokenizer", tokenizer or model.path, "as asked" if tokenizer else "the model's own")
    reranker = reranker_of(options.loading)
    out.note("reranker", reranker or "as its files say", "as asked" if reranker else "--reranker says what they do not")
    return tokenizer or model.path


def reranker_of(options: LoadingOptions) -> RerankerName | None:
    """Which reranker the model is by its options. Raises ConfigurationError for one that is not known."""
    names = get_args(RerankerName)
    if options.reranker is None:
        return None
    if options.reranker not in names:
        raise ConfigurationError(f"--reranker {options.reranker} is not one of {', '.join(names)}.")
    return "qwen3"


def _resolve_threads(options: DeviceOptions, machine: MachineFacts, out: Reasons) -> int:
    _positive("threads", options.threads)
    if options.threads is not None:
        out.limit("threads", options.threads, "as asked")
        return options.threads
    beside = "; the API process comes first" if machine.api_beside else ""
    out.limit("threads", machine.cores, f"all {machine.cores} cores this process may use{beside}")
    return machine.cores


def _resolve_instruction_set(options: DeviceOptions, out: Reasons) -> str:
    chosen = options.instruction_set
    if chosen not in INSTRUCTION_SETS:
        raise ConfigurationError(f"--instruction-set {chosen} is not one of {', '.join(INSTRUCTION_SETS)}.")
    fastest = "the fastest that the processor has; results are the same bits on machines that use the same one"
    out.note("instruction set", chosen, fastest if chosen == "auto" else "as asked")
    return chosen


def _resolve_dtype(options: LoadingOptions, model: ModelFacts, out: Reasons) -> str:
    if options.dtype != "auto":
        if options.dtype not in COMPUTE_DTYPES:
            raise ConfigurationError(f"--dtype {options.dtype} is not one of auto, {', '.join(COMPUTE_DTYPES)}.")
        out.limit("dtype", options.dtype, "as asked")
        return options.dtype
    if model.whole and model.stored_dtype != "bfloat16" and options.quantization in QUANTIZED_BYTES:
        why = f"beside weights rounded to {options.quantization}, what it rounds is little; float32 rounds only them"
        out.limit("dtype", "bfloat16", why)
        return "bfloat16"
    if model.stored_dtype in COMPUTE_DTYPES:
        out.limit("dtype", model.stored_dtype, "the checkpoint's own")
        return model.stored_dtype
    out.limit(
        "dtype",
        "float32",
        f"the checkpoint is {model.stored_dtype}, which bfloat16 would round; --dtype bfloat16 halves the memory",
    )
    return "float32"


def _resolve_quantization(
    options: LoadingOptions, model: ModelFacts, dtype: str, gpu: Gpu | None, out: Reasons
) -> tuple[str, str]:
    """What projections, and what head and embedding, are rounded to."""
    asked, head = options.quantization, options.quantize_head
    if asked not in ("auto", *QUANTIZATIONS):
        raise ConfigurationError(f"--quantization {asked} is not one of auto, {', '.join(QUANTIZATIONS)}.")
    body = asked
    if asked == "auto":
        body = "own" if model.integers != KeptIntegers() else "none"
    if head is not None and head not in (body, "int8"):
        raise ConfigurationError(f"--quantize-head {head} is neither int8 nor what --quantization says ({body}).")
    if body == "none" and head not in (None, body):
        raise ConfigurationError(
            f"--quantize-head {head} needs --quantization, or a checkpoint whose integers the kernels keep: the head "
            f"is not rounded alone{_fp8_becomes_numbers(model, gpu)}."
        )
    if body == "own":
        own = model.integers.body_bytes + (model.integers.head_bytes if head in (None, "own") else 0)
        meeting = "which meet activations of 8 bits; with none they become numbers"
        if gpu is not None:
            meeting = f"of those that the kernels of {gpu.device} take; with none they become numbers"
        kinds = "own integers"
        if model.integers.fp8:
            kinds, meeting = "own integers or FP8", f"{meeting}; FP8 meets activations rounded to it token by token"
        out.limit(
            "quantization", body, f"the checkpoint's {kinds}, {gib(own)}, {meeting}{_fp8_becomes_numbers(model, gpu)}"
        )
    elif body == "none":
        whole = gib(model.num_parameters * DTYPE_BYTES[dtype])
        smaller = [f"{gib(weight_bytes(model, dtype, each, each))} as {each}" for each in QUANTIZED_BYTES]
        out.limit(
            "quantization",
            body,
            f"the {whole} of weights would be {' or '.join(smaller)}; few sequences decode as fast as they are read"
            + (_fp8_becomes_numbers(model, gpu) if asked == "auto" else ""),
        )
    else:
        out.limit("quantization", body, "as asked: rounded to the nearest when loaded")
    out.note("quantize head", head or body, "as the other weights" if head in (None, body) else "as asked")
    return body, head or body


def _check_rounding(option: str, quantization: str, machine: MachineFacts) -> None:
    """Raise ConfigurationError where the processor has no kernels for such weights."""
    if quantization != "none" and machine.obstacle is not None:
        raise ConfigurationError(f"{option} {quantization} is not possible here: {machine.obstacle}.")


def _fp8_becomes_numbers(model: ModelFacts, gpu: Gpu | None) -> str:
    """What to add to a reason where FP8 weights of the checkpoint do not stay what they are, and why."""
    if gpu is None or not model.fp8_numbers:
        return ""
    why = "its kernels take E4M3 with a scale for a tensor, for each output, or for blocks of 128 inputs"
    if not gpu.multiplies_fp8:
        why = f"FP8 products take compute capability {dotted(FP8_CAPABILITY)}, and it has {dotted(gpu.capability)}"
    return f"; {model.fp8_numbers:,} weights in FP8 become numbers on {gpu.device}: {why}"


def _resolve_packed_cache(options: LoadingOptions, machine: MachineFacts, out: Reasons) -> str | None:
    """The folder that keeps packed weights between starts, None where none are kept."""
    asked = options.packed_cache
    if asked is not None and (not isinstance(asked, str) or not asked):
        raise ConfigurationError(f"--packed-cache is {asked!r}; it must be the path of a folder, or off.")
    folder = asked or machine.cache_folder
    why = "a first start leaves packed weights there, and later ones map them" if asked is None else "as asked"
    if asked == "off":
        folder = None
    elif options.load_format == "dummy":
        folder, why = None, "random weights are not kept"
    elif machine.cache_folder is None:
        folder, why = None, "no weights are packed for the native kernels"
    out.note("packed cache", folder or "off", why)
    return folder


def _resolve_batch(options: BatchOptions, least: int, out: Reasons) -> tuple[int, int]:
    """Sequences and positions of a step, at most; of these not less than `least`, those of a text that is not cut."""
    _positive("max_num_seqs", options.max_num_seqs)
    _positive("max_num_batched_tokens", options.max_num_batched_tokens)
    batched = options.max_num_batched_tokens
    max_num_seqs = options.max_num_seqs or min(DEFAULT_MAX_NUM_SEQS, batched or DEFAULT_BATCHED_TOKENS)
    out.note("max num seqs", max_num_seqs, "as asked" if options.max_num_seqs else "sequences that run at a time")
    if batched is None:
        batched = max(DEFAULT_BATCHED_TOKENS, max_num_seqs, least)
        out.note("max num batched tokens", batched, "bounds a step's memory, and its length where no client waits")
    else:
        out.note("max num batched tokens", batched, "as asked")
    if batched < least:
        raise ConfigurationError(
            f"--max-num-batched-tokens {batched} is less than a text of {least} tokens, which this model reads in one "
            f"step; raise it, or give --max-model-len {batched}."
        )
    if batched < max_num_seqs:
        raise ConfigurationError(
            f"--max-num-batched-tokens {batched} is less than --max-num-seqs {max_num_seqs}: every running sequence "
            "needs one token of each step; raise the first or lower the second."
        )
    _note_order(options, batched, out)
    return max_num_seqs, batched


def _note_order(options: BatchOptions, batched: int, out: Reasons) -> None:
    _positive("long_prefill_token_threshold", options.long_prefill_token_threshold)
    if options.long_prefill_token_threshold is None:
        out.note("long prefill token threshold", "none", f"one prompt may fill a step's {batched} tokens")
    else:
        out.note("long prefill token threshold", options.long_prefill_token_threshold, "as asked")
    waiting = "as asked: the next batch starts when the last sequence of one has ended"
    filling = "a sequence that ends makes room for the next one at once"
    out.note("static batching", options.static_batching, waiting if options.static_batching else filling)
    brief = "positions in a step for batches, without other requests; a request that comes waits for one such step"
    out.note("background tokens", BACKGROUND_TOKENS, brief)


def _resolve_target_itl(options: BatchOptions, machine: MachineFacts, out: Reasons) -> float | None:
    """Seconds that a step should take at most; None: as long as it takes."""
    asked = options.target_itl
    if asked is not None:
        if isinstance(asked, bool) or not isinstance(asked, (int, float)) or not 0 < asked <= LONGEST_TARGET_ITL:
            raise ConfigurationError(
                f"--target-itl is {asked!r}; it must be a number of seconds above 0, at most {LONGEST_TARGET_ITL:g}."
            )
        out.note("target itl", f"{asked:g}", "as asked, in seconds; prompts are cut and batches are bounded for it")
        return float(asked)
    if not machine.api_beside:
        out.note("target itl", "none", "prompts are computed together, and no client waits for a step's end")
        return None
    why = "seconds of a step with prompts; running streams and new requests wait for its end"
    out.note("target itl", f"{DEFAULT_TARGET_ITL:g}", why)
    return DEFAULT_TARGET_ITL


def _resolve_steps(
    gpu: Gpu | None, ranks: RanksConfig | None, *, drafts: bool, width: int, out: Reasons
) -> dict[str, int]:
    """Steps that may be planned before the oldest of them is known, as fields of `SchedulerConfig`."""
    stages = 1 if ranks is None else ranks.num_stages
    if stages > 1 and not width:
        out.note("steps at a time", stages, "each stage of the pipeline computes one of them")
        return {"max_outstanding": stages, "stages": stages}
    steps, why = 1, "the processor that would plan the next computes the one before"
    if stages > 1:
        why = "branches of drafts have room for those of one step"
    elif gpu is not None and drafts:
        why = "drafts are made of tokens that are known"
    elif gpu is not None:
        steps, why = 2, f"the next is planned while {gpu.device} computes the one before"
    out.note("steps at a time", steps, why)
    return {"max_outstanding": steps}


def _draft_models(
    options: SpeculationOptions,
    model: ModelFacts,
    machine: MachineFacts,
    drafts: Sequence[ModelFacts],
    spec: KVSpec,
    dtype: str,
) -> list[DraftModelConfig]:
    """How those that draft are loaded. Raises ConfigurationError where one cannot draft for this model."""
    if options.draft_quantization not in ("auto", *QUANTIZATIONS):
        raise ConfigurationError(
            f"--draft-quantization {options.draft_quantization} is not one of auto, {', '.join(QUANTIZATIONS)}."
        )
    found = []
    for draft, option in zip(drafts, ("--draft-model", "--chain-model"), strict=False):
        if draft.vocab_size != model.vocab_size:
            raise ConfigurationError(
                f"The vocabulary of {option} has {draft.vocab_size} tokens and the model's {model.vocab_size}: they "
                "have to be the same; give another."
            )
        own = beside(spec, draft.kv_layers, dtype) if draft.kv_layers else None
        quantization = _draft_quantization(options, draft, machine)
        _check_rounding("--draft-quantization", quantization, machine)
        found.append(DraftModelConfig(draft.path, quantization, own, draft.heads))
    return found


def _draft_quantization(options: SpeculationOptions, draft: ModelFacts, machine: MachineFacts) -> str:
    """What the weights of a model that drafts, or of heads, are rounded to."""
    if options.draft_quantization != "auto":
        return options.draft_quantization
    if draft.integers != KeptIntegers():
        return "own"
    # A draft may be wrong, and of half the bytes it is made sooner.
    return "int8" if machine.exact and options.proposer not in HEADS else "none"
