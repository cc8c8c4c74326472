"""Configuration: what a user may set, what it resolves to, and why."""

from typing import Any, Literal, get_args

import msgspec

from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import DTYPE_BYTES, KVSpec, LayerKV, beside, build_kv_spec
from penstock.core.speculation import DraftModelConfig, SpeculationConfig, SpeculationOptions, resolve_speculation

LoadFormat = Literal["auto", "dummy"]
COMPUTE_DTYPES = ("bfloat16", "float32")
# Bytes of a weight; for int4 with its share of the multiples, a byte for 32 weights.
QUANTIZED_BYTES = {"int8": 1.0, "int4": 4.25 / 8}
QUANTIZATIONS = ("none", *QUANTIZED_BYTES)
INSTRUCTION_SETS = ("auto", "avx512", "avx2", "portable")
BLOCK_SIZE = 16
WORKSPACE_BYTES = 512 << 20
KV_SHARE_OF_FREE_MEMORY = 0.8
# Of the pool's blocks, those that clients can have kept; the rest is for whoever comes.
KEPT_SHARE = 0.25
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_BATCHED_TOKENS = 2048
# Text that comes in pieces ten times a second can be read as it comes, and in so much time weights are read for many
# tokens at once.
DEFAULT_TARGET_ITL = 0.1
LONGEST_TARGET_ITL = 3600.0
# Whoever comes while a step for batches runs waits for its end: as long as this many more tokens of prompt would take.
BACKGROUND_TOKENS = 8
LARGEST_VALUE = 2**63 - 1


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Engine options as the user gave them; None means: choose, and say why.

    Attributes:
        model: a directory in Hugging Face's layout, a hub name, or a bundled model's name.
        tokenizer: a directory to take the tokenizer from instead of the model's.
        dtype: what the model computes in: "auto" (the checkpoint's own), "bfloat16" or "float32".
        quantization: to what the weights are rounded when they are loaded: "none", "int8" or "int4".
        quantize_head: the same for output head and embedding; None: as the others.
        max_model_len: most tokens of prompt and output together.
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: positions computed in one step.
        long_prefill_token_threshold: most prompt tokens of one request in one step; None leaves it to the budget.
        target_itl: seconds between two tokens of a stream to aim for, which bound how long a step may take.
        kv_cache_memory: bytes of the KV pool.
        enable_prefix_caching: share the KV of equal prefixes between requests.
        static_batching: the baseline that continuous batching is compared with.
        load_format: "dummy" makes random weights from the configuration alone.
        threads: threads of the computation.
        instruction_set: of the native kernels: "auto" is the fastest that the processor has.
        packed_cache: the folder that keeps packed weights between starts; "off" keeps none.
        speculative: who drafts tokens: "ngram" the sequence's own text, "draft" another model, "self" the first layers
            of this one, "medusa" and "eagle" heads on its hidden states, "auto" what costs next to nothing; "off":
            nobody.
        speculative_depth: tokens drafted at a time, always; None: as many as pay.
        draft_model: the model that drafts, like `model`, or a directory with heads that do; draft_quantization: to what
            their weights are rounded.
        speculative_layers: how many layers draft where the model does so itself; None: half of them.
        speculative_acceptance: "coupled" changes no token; "rejection" keeps more drafts where tokens are sampled, and
            only the distribution of what comes out.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str = "none"
    quantize_head: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    target_itl: float | None = None
    kv_cache_memory: int | None = None
    enable_prefix_caching: bool = True
    static_batching: bool = False
    load_format: LoadFormat = "auto"
    threads: int | None = None
    instruction_set: str = "auto"
    packed_cache: str | None = None
    speculative: str = "off"
    speculative_depth: int | None = None
    draft_model: str | None = None
    draft_quantization: str = "none"
    speculative_layers: int | None = None
    speculative_acceptance: str = "coupled"

    @property
    def speculation(self) -> SpeculationOptions:
        """Those of speculative decoding."""
        return SpeculationOptions(
            self.speculative,
            self.speculative_depth,
            self.draft_model,
            self.draft_quantization,
            self.speculative_layers,
            self.speculative_acceptance,
        )


class SchedulerConfig(msgspec.Struct, frozen=True):
    """What bounds a step.

    Attributes:
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: positions computed in one step, over prefill and decode.
        max_chunk: most positions that one sequence computes in one step; None leaves it to the budget.
        max_model_len: most tokens of prompt and output together.
        max_outstanding: plans that may be made before the oldest has committed.
        static_batching: fill a batch, run it until its last sequence ends, then fill the next. For comparison only.
        max_prefix_waits: plans for which a request stands back because its next prompt block is being computed.
        max_background_tokens: positions computed in one step of requests for which nobody waits.
        max_scored_positions: positions of prompts, over all rows of a step, whose logits are computed to score the
            prompts' tokens. It bounds the memory that they take (128 rows of 151,936 logits are 78 MB) and for how long
            others wait for such a step; the head's weights are read for so many rows at a time that more would hardly
            gain anything.
        target_itl: seconds that a step should take at most, which bound its tokens by how fast those before it were;
            None: however long its tokens take.
        bound_batch: whether this was asked for, and bounds how many sequences run at a time too.
        draft_depth: tokens that may be drafted for a sequence in one step; 0: none are.
        fixed_depth: whether as many are drafted always, instead of as many as pay.
    """

    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    max_chunk: int | None = None
    max_model_len: int = 8192
    max_outstanding: int = 1
    static_batching: bool = False
    max_prefix_waits: int = 64
    max_background_tokens: int = BACKGROUND_TOKENS
    max_scored_positions: int = 128
    target_itl: float | None = None
    bound_batch: bool = False
    draft_depth: int = 0
    fixed_depth: bool = False


class CacheConfig(msgspec.Struct, frozen=True):
    """The KV pool: its geometry, its size in blocks, whether prefixes are shared, what share may be kept on request."""

    spec: KVSpec
    num_blocks: int
    prefix_caching: bool = True
    kept_share: float = KEPT_SHARE


class ModelConfig(msgspec.Struct, frozen=True):
    """Which model is loaded, and how.

    Attributes:
        path: its directory.
        tokenizer: the tokenizer's directory.
        dtype: what it computes in.
        load_format, quantization: see EngineOptions.
        quantize_head: what head and embedding are rounded to.
        packed_cache: the folder that keeps packed weights between starts, None where none are kept.
    """

    path: str
    tokenizer: str
    dtype: str
    load_format: LoadFormat = "auto"
    quantization: str = "none"
    quantize_head: str = "none"
    packed_cache: str | None = None


class EngineConfig(msgspec.Struct, frozen=True):
    """Everything an engine needs, with nothing left to choose; `speculation` is None where nobody drafts."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    threads: int
    instruction_set: str = "auto"
    speculation: SpeculationConfig | None = None


class ModelFacts(msgspec.Struct, frozen=True):
    """What a checkpoint says of itself.

    Attributes:
        path: its directory.
        stored_dtype: of most of its weights.
        num_parameters: over all tensors that are loaded; a tied head counts once.
        resident_parameters: over all weights that are kept in memory, where a tied head may be a second copy.
        body_parameters, head_parameters: of projections, and of head and embedding, where a tied one counts once:
            what quantization makes smaller.
        max_position_embeddings: the longest context it was made for.
        kv_layers: what its attention layers store.
        vocab_size: number of logits.
        heads: for heads that each draft one token, how many there are; None for all else.
    """

    path: str
    stored_dtype: str
    num_parameters: int
    resident_parameters: int
    body_parameters: int
    head_parameters: int
    max_position_embeddings: int
    kv_layers: tuple[LayerKV, ...]
    vocab_size: int = 0
    heads: int | None = None


class MachineFacts(msgspec.Struct, frozen=True):
    """What this process may use.

    Attributes:
        available_memory: bytes that are free now.
        cores: processor cores.
        api_beside: whether an API process works beside the engine.
        cache_folder: where packed weights are kept unless asked otherwise; None without kernels to pack them for.
    """

    available_memory: int
    cores: int
    api_beside: bool = False
    cache_folder: str | None = None


class Reason(msgspec.Struct, frozen=True):
    """One resolved setting and why it has its value."""

    setting: str
    value: str
    why: str


class _Resolver:
    """Collects values with their reasons."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def note(self, setting: str, value: object, why: str) -> None:
        self.reasons.append(Reason(setting, str(value), why))


def resolve(
    options: EngineOptions, model: ModelFacts, machine: MachineFacts, draft: ModelFacts | None = None
) -> tuple[EngineConfig, list[Reason]]:
    """The configuration that `options` mean for this model on this machine, with a reason for every value.

    `draft` is the model that drafts, if there is one.

    Pure: the same arguments give the same answer. Raises ConfigurationError where options contradict each other or
    the model, InsufficientMemory where weights and the smallest useful pool do not fit.
    """
    out = _Resolver()
    tokenizer = _resolve_model(options, model, out)
    dtype = _resolve_dtype(options, model, out)
    quantization = _resolve_quantization(options, model, dtype, out)
    threads = _resolve_threads(options, machine, out)
    max_num_seqs, batched = _resolve_batch(options, out)
    target_itl = _resolve_target_itl(options, machine, out)
    out.note("block size", BLOCK_SIZE, "tokens in a KV block; few enough that the last one wastes little")
    spec = build_kv_spec(model.kv_layers, dtype, BLOCK_SIZE)
    speculation, depth = resolve_speculation(
        options.speculation, _draft_model(options, model, draft, spec, dtype), len(model.kv_layers), out.note
    )
    weights, block_bytes = _weight_bytes(model, dtype, *quantization), spec.block_bytes
    if speculation is not None and speculation.draft is not None and draft is not None:
        weights += _weight_bytes(draft, dtype, *[speculation.draft.quantization] * 2)
        block_bytes += 0 if speculation.draft.spec is None else speculation.draft.spec.block_bytes
    num_blocks, max_model_len = _resolve_memory(
        options, model, machine, (spec, block_bytes), weights, (max_num_seqs, batched), out
    )
    sharing = "as asked: every prompt is computed"
    if options.enable_prefix_caching:
        sharing = f"equal prefixes share their KV; up to {KEPT_SHARE:.0%} of the pool is kept where clients ask for it"
    out.note("enable prefix caching", options.enable_prefix_caching, sharing)
    config = EngineConfig(
        model=ModelConfig(
            model.path,
            tokenizer,
            dtype,
            options.load_format,
            *quantization,
            _resolve_packed_cache(options, machine, out),
        ),
        cache=CacheConfig(spec, num_blocks, options.enable_prefix_caching),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=batched,
            max_chunk=options.long_prefill_token_threshold,
            max_model_len=max_model_len,
            static_batching=options.static_batching,
            target_itl=target_itl,
            bound_batch=options.target_itl is not None,
            draft_depth=depth,
            fixed_depth=options.speculative_depth is not None,
        ),
        threads=threads,
        instruction_set=_resolve_instruction_set(options, out),
        speculation=speculation,
    )
    return config, out.reasons


def _positive(name: str, value: Any) -> None:
    option = f"--{name.replace('_', '-')}"
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ConfigurationError(f"{option} is {value!r}; it must be a whole number.")
    if value is not None and value < 1:
        raise ConfigurationError(f"{option} is {value}; it must be at least 1.")
    if value is not None and value > LARGEST_VALUE:
        raise ConfigurationError(f"{option} does not fit into 64 bits; it must be at most {LARGEST_VALUE}.")


def _resolve_model(options: EngineOptions, model: ModelFacts, out: _Resolver) -> str:
    """The directory of the tokenizer; what is loaded and how is noted."""
    formats = get_args(LoadFormat)
    if options.load_format not in formats:
        raise ConfigurationError(f"--load-format {options.load_format} is not one of {', '.join(formats)}.")
    out.note("model", model.path, "as asked" if model.path == options.model else f"where {options.model} was found")
    loaded = "random weights, as asked" if options.load_format == "dummy" else "the checkpoint's weights"
    out.note("load format", options.load_format, loaded)
    out.note("tokenizer", options.tokenizer or model.path, "as asked" if options.tokenizer else "the model's own")
    return options.tokenizer or model.path


def _resolve_threads(options: EngineOptions, machine: MachineFacts, out: _Resolver) -> int:
    _positive("threads", options.threads)
    if options.threads is not None:
        out.note("threads", options.threads, "as asked")
        return options.threads
    beside = ", of which the API process has first what it needs" if machine.api_beside else ""
    out.note("threads", machine.cores, f"all {machine.cores} cores this process may use{beside}")
    return machine.cores


def _resolve_instruction_set(options: EngineOptions, out: _Resolver) -> str:
    chosen = options.instruction_set
    if chosen not in INSTRUCTION_SETS:
        raise ConfigurationError(f"--instruction-set {chosen} is not one of {', '.join(INSTRUCTION_SETS)}.")
    fastest = "the fastest that the processor has; results are the same bits on machines that use the same one"
    out.note("instruction set", chosen, fastest if chosen == "auto" else "as asked")
    return chosen


def _resolve_dtype(options: EngineOptions, model: ModelFacts, out: _Resolver) -> str:
    if options.dtype != "auto":
        if options.dtype not in COMPUTE_DTYPES:
            raise ConfigurationError(f"--dtype {options.dtype} is not one of auto, {', '.join(COMPUTE_DTYPES)}.")
        out.note("dtype", options.dtype, "as asked")
        return options.dtype
    if model.stored_dtype in COMPUTE_DTYPES:
        out.note("dtype", model.stored_dtype, "the checkpoint's own")
        return model.stored_dtype
    out.note(
        "dtype",
        "float32",
        f"the checkpoint is {model.stored_dtype}, which bfloat16 would round; --dtype bfloat16 halves the memory",
    )
    return "float32"


def _resolve_quantization(options: EngineOptions, model: ModelFacts, dtype: str, out: _Resolver) -> tuple[str, str]:
    """What projections, and what head and embedding, are rounded to."""
    body, head = options.quantization, options.quantize_head
    if body not in QUANTIZATIONS:
        raise ConfigurationError(f"--quantization {body} is not one of {', '.join(QUANTIZATIONS)}.")
    if head is not None and head not in (body, "int8"):
        raise ConfigurationError(f"--quantize-head {head} is neither int8 nor what --quantization says ({body}).")
    if body == "none" and head not in (None, "none"):
        raise ConfigurationError(f"--quantize-head {head} needs --quantization: the head is not rounded alone.")
    if body == "none":
        whole = _gib(model.num_parameters * DTYPE_BYTES[dtype])
        smaller = [f"{_gib(_weight_bytes(model, dtype, each, each))} as {each}" for each in QUANTIZED_BYTES]
        out.note(
            "quantization",
            body,
            f"the {whole} of weights would be {' or '.join(smaller)}; few sequences decode as fast as they are read",
        )
    else:
        out.note("quantization", body, "as asked: rounded to the nearest when loaded")
    out.note("quantize head", head or body, "as the other weights" if head in (None, body) else "as asked")
    return body, head or body


def _resolve_packed_cache(options: EngineOptions, machine: MachineFacts, out: _Resolver) -> str | None:
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
        folder, why = None, "there are no native kernels to pack weights for"
    out.note("packed cache", folder or "off", why)
    return folder


def _weight_bytes(model: ModelFacts, dtype: str, body: str, head: str) -> int:
    size = DTYPE_BYTES[dtype]
    if body == "none":
        return model.resident_parameters * size
    rest = model.num_parameters - model.body_parameters - model.head_parameters
    rounded = model.body_parameters * QUANTIZED_BYTES[body] + model.head_parameters * QUANTIZED_BYTES[head]
    return int(rounded) + rest * size


def _resolve_batch(options: EngineOptions, out: _Resolver) -> tuple[int, int]:
    _positive("max_num_seqs", options.max_num_seqs)
    _positive("max_num_batched_tokens", options.max_num_batched_tokens)
    batched = options.max_num_batched_tokens
    max_num_seqs = options.max_num_seqs or min(DEFAULT_MAX_NUM_SEQS, batched or DEFAULT_BATCHED_TOKENS)
    out.note("max num seqs", max_num_seqs, "as asked" if options.max_num_seqs else "sequences that run at a time")
    if batched is None:
        batched = max(DEFAULT_BATCHED_TOKENS, max_num_seqs)
        out.note("max num batched tokens", batched, "bounds a step's memory, and what it computes where nobody waits")
    else:
        out.note("max num batched tokens", batched, "as asked")
    if batched < max_num_seqs:
        raise ConfigurationError(
            f"--max-num-batched-tokens {batched} is less than --max-num-seqs {max_num_seqs}: every running sequence "
            "needs one token of each step; raise the first or lower the second."
        )
    _note_order(options, batched, out)
    return max_num_seqs, batched


def _note_order(options: EngineOptions, batched: int, out: _Resolver) -> None:
    _positive("long_prefill_token_threshold", options.long_prefill_token_threshold)
    if options.long_prefill_token_threshold is None:
        out.note("long prefill token threshold", "none", f"one prompt may fill a step's {batched} tokens")
    else:
        out.note("long prefill token threshold", options.long_prefill_token_threshold, "as asked")
    waiting = "as asked: the next batch starts when the last sequence of one has ended"
    filling = "a sequence that ends makes room for the next one at once"
    out.note("static batching", options.static_batching, waiting if options.static_batching else filling)
    brief = "positions in a step for batches, which has no other requests in it; whoever comes waits for one at most"
    out.note("background tokens", BACKGROUND_TOKENS, brief)


def _resolve_target_itl(options: EngineOptions, machine: MachineFacts, out: _Resolver) -> float | None:
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
        out.note("target itl", "none", "prompts are computed together here, and nobody waits for a step's end")
        return None
    why = "seconds of a step with prompts in it, for whose end running streams and whoever comes wait"
    out.note("target itl", f"{DEFAULT_TARGET_ITL:g}", why)
    return DEFAULT_TARGET_ITL


def _draft_model(
    options: EngineOptions, model: ModelFacts, draft: ModelFacts | None, spec: KVSpec, dtype: str
) -> DraftModelConfig | None:
    """How the model that drafts is loaded. Raises ConfigurationError where it cannot draft for this one."""
    if options.draft_quantization not in QUANTIZATIONS:
        raise ConfigurationError(
            f"--draft-quantization {options.draft_quantization} is not one of {', '.join(QUANTIZATIONS)}."
        )
    if draft is None:
        return None
    if draft.vocab_size != model.vocab_size:
        raise ConfigurationError(
            f"The draft model's vocabulary has {draft.vocab_size} tokens and the model's {model.vocab_size}: they have "
            "to be the same; give another --draft-model."
        )
    own = beside(spec, draft.kv_layers, dtype) if draft.kv_layers else None
    return DraftModelConfig(draft.path, options.draft_quantization, own, draft.heads)


def _resolve_memory(
    options: EngineOptions,
    model: ModelFacts,
    machine: MachineFacts,
    blocks: tuple[KVSpec, int],
    weights: int,
    batch: tuple[int, int],
    out: _Resolver,
) -> tuple[int, int]:
    """Blocks of the pool and the longest context, which must fit into the pool.

    `blocks` are their geometry, and the bytes of one with what a draft model keeps in it.
    """
    spec, block_bytes = blocks
    _positive("max_model_len", options.max_model_len)
    _positive("kv_cache_memory", options.kv_cache_memory)
    longest = options.max_model_len or model.max_position_embeddings
    if longest > model.max_position_embeddings:
        raise ConfigurationError(
            f"--max-model-len {longest} is beyond the {model.max_position_embeddings} positions that the model was "
            "made for (max_position_embeddings)."
        )
    max_num_seqs, chunk = batch
    free = machine.available_memory - weights - WORKSPACE_BYTES
    smallest = spec.blocks_for(min(longest, BLOCK_SIZE), chunk) * block_bytes
    if free < smallest:
        raise InsufficientMemory(
            f"The weights take {_gib(weights)} and {_gib(WORKSPACE_BYTES)} are kept for the computation, but only "
            f"{_gib(machine.available_memory)} of memory are available: free some, or use a smaller model or dtype."
        )
    # Blocks that a window has passed are still worth keeping: the prefix cache can hit them.
    largest_use = max_num_seqs * len(spec.groups) * -(-longest // spec.block_size) * block_bytes
    if options.kv_cache_memory is not None:
        memory, why = options.kv_cache_memory, "as asked"
        if memory > free:
            raise InsufficientMemory(
                f"--kv-cache-memory {_gib(memory)} does not fit: of {_gib(machine.available_memory)} available, the "
                f"weights take {_gib(weights)} and {_gib(WORKSPACE_BYTES)} are kept free; at most {_gib(max(free, 0))} "
                "are left."
            )
    elif largest_use <= KV_SHARE_OF_FREE_MEMORY * free:
        memory, why = largest_use, f"all that {max_num_seqs} sequences of {longest} tokens can fill"
    else:
        memory = int(KV_SHARE_OF_FREE_MEMORY * free)
        why = (
            f"{KV_SHARE_OF_FREE_MEMORY:.0%} of what is left of {_gib(machine.available_memory)} available after "
            f"{_gib(weights)} of weights and {_gib(WORKSPACE_BYTES)} of working space"
        )
    num_blocks = memory // block_bytes
    out.note("kv cache memory", f"{_gib(memory)} ({num_blocks} blocks of {spec.block_size} tokens)", why)
    return num_blocks, _fit_context(options, longest, spec, num_blocks, chunk, out)


def _fit_context(
    options: EngineOptions, longest: int, spec: KVSpec, num_blocks: int, chunk: int, out: _Resolver
) -> int:
    """The longest context of which at least one sequence fits into the pool."""
    if spec.blocks_for(longest, chunk) <= num_blocks:
        out.note("max model len", longest, "as asked" if options.max_model_len else "max_position_embeddings")
        return longest
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if spec.blocks_for(middle, chunk) <= num_blocks else (low, middle - 1)
    if low < 2 or options.max_model_len is not None:
        raise InsufficientMemory(
            f"The KV pool has {num_blocks} blocks and one sequence of {longest} tokens needs "
            f"{spec.blocks_for(longest, chunk)}: raise --kv-cache-memory"
            + (f" or lower --max-model-len to at most {low}." if low >= 2 else ".")
        )
    out.note("max model len", low, f"what the KV pool holds; the model was made for {longest}")
    return low


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
