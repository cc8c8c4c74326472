"""Configuration: what a user may set, and what it resolves to (in `resolve.py`)."""

from typing import Literal

import msgspec

from penstock.core.devices import GpuFacts
from penstock.core.kv import KVSpec, LayerKV
from penstock.core.speculation import SpeculationConfig, SpeculationOptions
from penstock.core.text_files import shown

LoadFormat = Literal["auto", "dummy"]
# Bytes of a weight; for int4 with its share of the multiples, a byte for 32 weights.
QUANTIZED_BYTES = {"int8": 1.0, "int4": 4.25 / 8}
BLOCK_SIZE = 16
# The share of the pool's blocks that clients can have kept; the rest is for all requests.
KEPT_SHARE = 0.25
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_BATCHED_TOKENS = 2048
# Text that comes in pieces ten times a second can be read as it comes. In this time, weights are read for many tokens
# at once.
DEFAULT_TARGET_ITL = 0.1
LONGEST_TARGET_ITL = 3600.0
# Positions of a step for batches. A request that comes meanwhile waits for its end, which comes later by the time of
# this many tokens of a prompt.
BACKGROUND_TOKENS = 8


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Engine options as the user gave them; None means: choose, and say why.

    Attributes:
        model: a directory in Hugging Face's layout, a hub name, or a bundled model's name.
        tokenizer: a directory to take the tokenizer from instead of the model's.
        dtype: what the model computes in: "auto" (the checkpoint's own), "bfloat16" or "float32".
        quantization: what the weights are kept as: "int8" and "int4" round them when they are loaded, "none" makes
            numbers of them; "auto" rounds nothing, and keeps the files' integers where the kernels take them ("own").
        quantize_head: the same for output head and embedding; None: as the others.
        max_model_len: most tokens of prompt and output together.
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: positions computed in one step.
        long_prefill_token_threshold: most prompt tokens of one request in one step; None leaves it to the budget.
        target_itl: seconds between two tokens of a stream to aim for, which bound how long a step may take.
        kv_cache_memory: bytes of the KV pool.
        kv_cache_dtype: what keys and values are kept as: "auto" (numbers, as the model computes in), "int8" or "fp8"
            (bytes with a scale for each head of each token), or "int4" (half bytes, see `kernels.kv_bytes`).
        swap_space: bytes of the processor's memory to which a GPU's KV blocks are swapped when a sequence is preempted;
            None or 0: it is computed again.
        enable_prefix_caching: share the KV of equal prefixes between requests.
        static_batching: the baseline that continuous batching is compared with.
        load_format: "dummy" makes random weights from the configuration alone.
        device: what computes: "cpu", "cuda" or "cuda:1" a GPU, "auto" the first GPU that can, else the CPU. The
            default is the CPU while the kernels for GPUs have not run on one.
        deterministic: on a GPU, sums have the same order whatever else is in the batch; on the CPU they always have.
        threads: threads of the computation.
        instruction_set: of the native kernels: "auto" is the fastest that the processor has.
        packed_cache: the folder that keeps packed weights between starts; "off" keeps none.
        speculative: who drafts tokens: "ngram" the sequence's own text, "draft" another model, "chain" another model
            that has a proposer of its own, "self" the first layers of this one, "medusa" and "eagle" heads on its
            hidden states, "auto" the text, and the model that belongs to this one; "off": no drafts.
        speculative_depth: tokens drafted at a time, one behind the other, always; None: the number that pays.
        speculative_width: tokens drafted beside these, in other branches; None: none where the depth is given.
        draft_model: the model that drafts, like `model`, or a directory with heads that do; draft_quantization: to what
            their weights are rounded; "auto": of models, to int8.
        chain_model: the model that drafts for the draft model in a chain; None: the sequence's own text.
        speculative_layers: how many layers draft where the model does so itself; None: half of them.
        speculative_acceptance: "coupled" changes no token; "rejection" keeps more drafts where tokens are sampled, and
            only the distribution of what comes out.
        speculative_memory: tokens of finished outputs that drafts may come from, within their cache salt.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str = "auto"
    quantize_head: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    target_itl: float | None = None
    kv_cache_memory: int | None = None
    kv_cache_dtype: str = "auto"
    swap_space: int | None = None
    enable_prefix_caching: bool = True
    static_batching: bool = False
    load_format: LoadFormat = "auto"
    device: str = "cpu"
    deterministic: bool = False
    threads: int | None = None
    instruction_set: str = "auto"
    packed_cache: str | None = None
    speculative: str = "auto"
    speculative_depth: int | None = None
    speculative_width: int | None = None
    draft_model: str | None = None
    draft_quantization: str = "auto"
    speculative_layers: int | None = None
    speculative_acceptance: str = "coupled"
    chain_model: str | None = None
    speculative_memory: int = 0

    @property
    def speculation(self) -> SpeculationOptions:
        """The options of speculative decoding, as one value."""
        return SpeculationOptions(
            proposer=self.speculative,
            depth=self.speculative_depth,
            draft_model=self.draft_model,
            draft_quantization=self.draft_quantization,
            layers=self.speculative_layers,
            acceptance=self.speculative_acceptance,
            chain_model=self.chain_model,
            width=self.speculative_width,
            memory=self.speculative_memory,
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
        max_background_tokens: positions computed in one step of background requests.
        max_scored_positions: positions of prompts, over all rows of a step, whose logits are computed to score the
            prompts' tokens. It bounds the memory that they take (128 rows of 151,936 logits are 78 MB) and for how long
            others wait for such a step. The head's weights are read once for this number of rows; with more rows,
            reading them would hardly be cheaper for each.
        target_itl: seconds that a step should take at most, which bound its tokens by how fast those before it were;
            None: however long its tokens take.
        bound_batch: whether this was asked for, and bounds how many sequences run at a time too.
        draft_depth: tokens that may be drafted for a sequence in one step, one behind the other; 0: none are.
        draft_width: how many more may be beside them, in other branches of a tree.
        fixed_depth: whether this number is drafted always, instead of the number that pays.
        text_drafts: whether sequences' own text drafts and can be asked alone, which costs next to nothing.
        model_drafts: whether anything else drafts.
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
    draft_width: int = 0
    fixed_depth: bool = False
    text_drafts: bool = False
    model_drafts: bool = True


class PoolWish(msgspec.Struct, frozen=True):
    """What a KV pool is to be whose size follows from a measured step (`configuration.pool_size`).

    Attributes:
        memory: bytes that were asked for; None: a share of what is left.
        longest: tokens of the longest sequence that it should hold.
        bound: tokens of the longest sequence that all memory behind the weights could hold, at most `longest`.
        strict: whether `longest` was asked for; else less will do.
    """

    memory: int | None
    longest: int
    bound: int
    strict: bool = False


class CacheConfig(msgspec.Struct, frozen=True):
    """The KV pool.

    Attributes:
        spec: its geometry.
        num_blocks: its size; where there is a `wish`, an estimate of it.
        prefix_caching: whether prefixes are shared.
        kept_share: what share of it may be kept on request.
        swap_blocks: how many more there are in the processor's memory, for preempted sequences.
        wish: on a GPU, what the engine sizes it by once it has measured a step; so is the longest context.
    """

    spec: KVSpec
    num_blocks: int
    prefix_caching: bool = True
    kept_share: float = KEPT_SHARE
    swap_blocks: int = 0
    wish: PoolWish | None = None


class ModelConfig(msgspec.Struct, frozen=True):
    """Which model is loaded, and how.

    Attributes:
        path: its directory.
        tokenizer: the tokenizer's directory.
        dtype: what it computes in.
        load_format: see EngineOptions.
        quantization: "none", "int8", "int4", or "own" for the integers that the files have.
        quantize_head: the same of head and embedding.
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
    """Everything an engine needs, with nothing left to choose.

    Attributes:
        device: "cpu", or a GPU as "cuda:0".
        speculation: who drafts; None where nothing does.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    threads: int
    instruction_set: str = "auto"
    speculation: SpeculationConfig | None = None
    device: str = "cpu"
    deterministic: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that there may be, once the pool has its size."""
        wish = self.cache.wish
        return self.scheduler.max_model_len if wish is None else wish.bound


class KeptIntegers(msgspec.Struct, frozen=True):
    """Weights that files have as integers, or in FP8, which the kernels here take.

    Attributes:
        body, body_bytes: how many of projections, and what these take in memory.
        head, head_bytes: the same of the output head.
        fp8: whether some of them are in FP8.
    """

    body: int = 0
    body_bytes: int = 0
    head: int = 0
    head_bytes: int = 0
    fp8: bool = False


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
        integers: of its weights, those that stay what they are.
        fp8_numbers: how many that it has in FP8 become numbers on the GPU that computes; 0 on the CPU.
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
    integers: KeptIntegers = KeptIntegers()
    fp8_numbers: int = 0


class MachineFacts(msgspec.Struct, frozen=True):
    """What this process may use.

    Attributes:
        available_memory: bytes that are free now.
        cores: processor cores.
        api_beside: whether an API process works beside the engine.
        cache_folder: where packed weights are kept unless asked otherwise; None without kernels to pack them for.
        exact: a row of a step is computed to the same bits whatever else is in the step, as native kernels do.
        gpus: those that this process sees.
        memory_name: whose memory `available_memory` is, where that has to be said.
        measures_steps: the engine measures the memory of a step before it sizes the pool.
    """

    available_memory: int
    cores: int
    api_beside: bool = False
    cache_folder: str | None = None
    exact: bool = True
    gpus: GpuFacts = GpuFacts()
    memory_name: str = ""
    measures_steps: bool = False


class Reason(msgspec.Struct, frozen=True):
    """One resolved setting and why it has its value, as they are shown."""

    setting: str
    value: str
    why: str

    def __post_init__(self) -> None:
        for name in ("value", "why"):
            msgspec.structs.force_setattr(self, name, shown(getattr(self, name)))
