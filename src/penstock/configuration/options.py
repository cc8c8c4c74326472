"""Engine options as a user gives them, in groups by what they are of. None means: choose, and say why."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, Self

import msgspec

from penstock.core.config import LoadFormat
from penstock.core.kv_policy import AskedPolicy, KVPolicy

# Text that comes in pieces ten times a second can be read as it comes. In this time, weights are read for many tokens
# at once.
DEFAULT_TARGET_ITL = 0.1
LONGEST_TARGET_ITL = 3600.0
AUTO: Final = "auto"
Size = int | Literal["auto"]
"""A number of processes, or that it is left to the plan."""


class LoadingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's files are read, and what its weights are kept as.

    Attributes:
        tokenizer: a directory to take the tokenizer from instead of the model's.
        dtype: what the model computes in: "auto" (the checkpoint's own), "bfloat16" or "float32".
        quantization: what the weights are kept as: "int8" and "int4" round them when they are loaded, "none" makes
            numbers of them; "auto" rounds nothing, and keeps the files' integers where the kernels take them ("own").
        quantize_head: the same for output head and embedding; None: as the others.
        load_format: "dummy" makes random weights from the configuration alone.
        packed_cache: the folder that keeps packed weights between starts; "off" keeps none.
        reranker: "qwen3": it is Qwen3-Reranker, or trained like it, which its files do not say.
    """

    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str = "auto"
    quantize_head: str | None = None
    load_format: LoadFormat = "auto"
    packed_cache: str | None = None
    reranker: str | None = None


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is computed together, and for how long.

    Attributes:
        max_model_len: most tokens of prompt and output together.
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: positions computed in one step.
        long_prefill_token_threshold: most prompt tokens of one request in one step; None leaves it to the budget.
        target_itl: seconds between two tokens of a stream to aim for, which bound how long a step may take.
        static_batching: the baseline that continuous batching is compared with.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    target_itl: float | None = None
    static_batching: bool = False


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool.

    Attributes:
        kv_cache_memory: its bytes.
        kv_cache_dtype: what keys and values are kept as: "auto" (numbers, as the model computes in), "int8" or "fp8"
            (bytes with a scale for each head of each token), or "int4" (half bytes, see `kernels.kv_bytes`).
        swap_space: bytes of the processor's memory to which a GPU's KV blocks are swapped when a sequence is preempted;
            None or 0: it is computed again.
        kv_host_memory: bytes of the processor's memory for KV blocks of prefixes that a GPU's pool has lost; None or 0:
            they are computed again.
        kv_disk: a folder in which KV blocks of prefixes are kept beyond the pool, and over restarts.
        kv_disk_size: bytes that they may take there; None: 10 GiB.
        kv_store: URL of a store where they are kept for servers on other machines, too.
        role: "prefill" computes prompts and offers their blocks, "decode" goes on with them, "both" is one by itself.
        kv_offer_at: host and port at which blocks are offered; None: any port of this machine's loopback.
        kv_offer_memory: bytes that they may take; None: 1 GiB.
        kv_transport: what blocks are pulled by: "tcp", "nixl", "mooncake"; None: "tcp".
        enable_prefix_caching: share the KV of equal prefixes between requests.
        prefix_secret_file: has a secret, so that processes with the same one have the same keys of prefixes.
        kv_policy: how requests bound their contexts that do not say it themselves, such as "h2o:2048"; see
            `core.kv_policy.policy_option`.
    """

    kv_cache_memory: int | None = None
    kv_cache_dtype: str = "auto"
    swap_space: int | None = None
    kv_host_memory: int | None = None
    kv_disk: str | None = None
    kv_disk_size: int | None = None
    kv_store: str | None = None
    role: str = "both"
    kv_offer_at: str | None = None
    kv_offer_memory: int | None = None
    kv_transport: str | None = None
    enable_prefix_caching: bool = True
    prefix_secret_file: str | None = None
    kv_policy: AskedPolicy | KVPolicy | Mapping[str, Any] | str | None = None


class DeviceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What computes.

    Attributes:
        device: "cpu", "cuda" or "cuda:1" a GPU, "auto" the first GPU that can, else the CPU. The default is the CPU,
            since most kinds of GPUs have not run the kernels.
        deterministic: on a GPU, sums have the same order whatever else is in the batch; on the CPU they always have.
        threads: threads of the computation.
        instruction_set: of the native kernels: "auto" is the fastest that the processor has.
        tensor_parallel_size: processes that compute the model together, each a part of every layer. This and the other
            sizes may be left to the plan (`AUTO`).
        expert_parallel_size: groups of these that each have whole experts of their own; of 1, all have a part of each.
        pipeline_parallel_size: stages of layers, each with processes of its own.
        machines: on which these stages are; the others run `penstock join`.
        machines_at: HOST:PORT where this one listens for them; None: 127.0.0.1:7400.
        machines_secret_file: what they have in common.
        expert_copies: how many experts of a layer each of these groups may have beside its own: those that are chosen
            most.
        expert_counts: file that says how often each is chosen; where there is none, it is written.
        context_parallel_size: processes that each have the whole model, and keep a part of each context.
        simulate: devices that are not there, such as "8x h100": nothing is computed, tokens are made up, and each step
            takes the time that planning estimates for them.
        simulate_output_len: tokens of a simulated answer, in the mean.
    """

    device: str = "cpu"
    deterministic: bool = False
    threads: int | None = None
    instruction_set: str = "auto"
    tensor_parallel_size: Size = 1
    expert_parallel_size: Size = 1
    pipeline_parallel_size: Size = 1
    machines: int = 1
    machines_at: str | None = None
    machines_secret_file: str | None = None
    expert_copies: int = 0
    expert_counts: str | None = None
    context_parallel_size: Size = 1
    simulate: str | None = None
    simulate_output_len: int = 256


class SpeculationOptions(msgspec.Struct, frozen=True):
    """Speculative decoding. Users' names for these are in `OPTIONS`.

    Attributes:
        proposer: who drafts tokens: "ngram" the sequence's own text, "draft" another model, "chain" another model that
            has a proposer of its own, "self" the first layers of this one, "medusa" and "eagle" heads on its hidden
            states, "auto" the text, and the model that belongs to this one; "off": no drafts.
        depth: tokens drafted at a time, one behind the other, always; None: the number that pays.
        draft_model: the model that drafts, like `EngineOptions.model`, or a directory with heads that do.
        draft_quantization: to what the weights of those that draft are rounded; "auto": of models, to int8.
        layers: how many layers draft where the model does so itself; None: half of them.
        acceptance: "coupled" changes no token; "rejection" keeps more drafts where tokens are sampled, and only the
            distribution of what comes out.
        chain_model: the model that drafts for the draft model in a chain; None: the sequence's own text.
        width: tokens drafted beside the depth, in other branches; None: none where the depth is given.
        memory: tokens of finished outputs that drafts may come from, within their cache salt.
    """

    proposer: str = "auto"
    depth: int | None = None
    draft_model: str | None = None
    draft_quantization: str = "auto"
    layers: int | None = None
    acceptance: str = "coupled"
    chain_model: str | None = None
    width: int | None = None
    memory: int = 0

    @property
    def is_asked(self) -> bool:
        """Whether anything was asked for that drafts."""
        return self not in (SpeculationOptions(), SpeculationOptions(proposer="off"))


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be asked of an engine.

    Attributes:
        model: a directory in Hugging Face's layout, a hub name, or a bundled model's name.
    """

    model: str
    loading: LoadingOptions = LoadingOptions()
    batch: BatchOptions = BatchOptions()
    cache: CacheOptions = CacheOptions()
    device: DeviceOptions = DeviceOptions()
    speculation: SpeculationOptions = SpeculationOptions()

    @classmethod
    def of(cls, model: str, **options: Any) -> Self:
        """Of options under users' names, such as `kv_cache_dtype="int8"`. Raises TypeError where there is none such."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in OPTIONS:
                raise TypeError(f"{name!r} is no option of an engine; there are {', '.join(OPTIONS)}.")
            group, field = OPTIONS[name]
            groups.setdefault(group, {})[field] = value
        made: dict[str, Any] = {name: _GROUPS[name](**given) for name, given in groups.items()}
        return cls(model=model, **made)


_GROUPS: Mapping[str, type[msgspec.Struct]] = MappingProxyType(
    {
        "loading": LoadingOptions,
        "batch": BatchOptions,
        "cache": CacheOptions,
        "device": DeviceOptions,
        "speculation": SpeculationOptions,
    }
)
# Of fields whose names say nothing without their group's.
_USERS_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "proposer": "speculative",
        "depth": "speculative_depth",
        "layers": "speculative_layers",
        "acceptance": "speculative_acceptance",
        "width": "speculative_width",
        "memory": "speculative_memory",
    }
)
OPTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        _USERS_NAMES.get(field, field): (group, field)
        for group, kind in _GROUPS.items()
        for field in kind.__struct_fields__
    }
)
"""The group and the field of each option, by its name for users."""
