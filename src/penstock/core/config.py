"""The configuration of an engine: what its options resolve to (in `configuration.resolve`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from penstock.core.faults import Fault
from penstock.core.handover import HandoverRole, Transport
from penstock.core.kv import KVSpec
from penstock.core.kv_policy import AskedPolicy, PolicyLimits
from penstock.core.shares import ExpertPlaces, Stripe, TensorRank
from penstock.core.speculation import SpeculationConfig, blocks_of_branches
from penstock.core.stages import Stage, stages_of
from penstock.core.text_files import shown

LoadFormat = Literal["auto", "dummy"]
# Bytes of a weight; for int4 with its share of the multiples, a byte for 32 weights.
QUANTIZED_BYTES: Mapping[str, float] = MappingProxyType({"int8": 1.0, "int4": 4.25 / 8})
BLOCK_SIZE = 16
# The share of the pool's blocks that clients can have kept; the rest is for all requests.
KEPT_SHARE = 0.25
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_BATCHED_TOKENS = 2048
# Positions of a step for batches. A request that comes meanwhile waits for its end, which comes later by the time of
# this many tokens of a prompt.
BACKGROUND_TOKENS = 8


class SchedulerConfig(msgspec.Struct, frozen=True):
    """What bounds a step.

    Attributes:
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: positions computed in one step, over prefill and decode.
        max_chunk: most positions that one sequence computes in one step; None leaves it to the budget.
        max_model_len: most tokens of prompt and output together.
        max_outstanding: plans that may be made before the oldest has committed.
        stages: of a pipeline that plans go through, each with tokens that are known; 1: there is none.
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
        kv_policies: how requests can bound what they hold of their contexts.
        generates: whether requests can ask for tokens; else they ask for vectors.
        max_source: most tokens of a source, which an encoder reads; None where the model has none.
    """

    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    max_chunk: int | None = None
    max_model_len: int = 8192
    max_outstanding: int = 1
    stages: int = 1
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
    kv_policies: PolicyLimits = PolicyLimits()
    generates: bool = True
    max_source: int | None = None

    @property
    def longest_chunk(self) -> int:
        """Positions that one sequence computes in one step at most."""
        return self.max_chunk or self.max_num_batched_tokens


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


class MooncakeAccess(msgspec.Struct, frozen=True):
    """What a client of Mooncake Store is set up with, beside the address of its master.

    Attributes:
        metrics_port: of the master's HTTP server, which lists the keys.
        metadata: "P2PHANDSHAKE", or the URL of the cluster's metadata server.
        protocol: what values are carried by: "tcp" or "rdma".
        devices: of RDMA, with commas between them; "": Mooncake chooses.
        segment_bytes: of this machine's memory that the store may use.
    """

    metrics_port: int
    metadata: str
    protocol: str
    devices: str = ""
    segment_bytes: int = 0


class SharedStore(msgspec.Struct, frozen=True):
    """A store for KV blocks that several machines share.

    Attributes:
        address: the folder; the URL, as the client of Valkey takes it; the bucket; HOST:PORT of Mooncake's master.
        shown: what users are told of it, without a secret.
        prefix: of the names of objects.
        endpoint, region: of S3's; None: as the environment has them.
        most_bytes: what may be in the folder at most; other stores have bounds of their own.
        mooncake: what else its client needs; None for other stores.
    """

    kind: Literal["folder", "valkey", "s3", "mooncake"]
    address: str
    shown: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    most_bytes: int = 0
    mooncake: MooncakeAccess | None = None


class HandoverConfig(msgspec.Struct, frozen=True):
    """A replica's part where some compute prompts and others decode.

    Attributes:
        host, port: at which one that computes prompts offers their blocks; port 0: any that is free.
        offer_bytes: of memory, in which it has them.
        transport: what blocks are pulled by, if the other side has it too.
    """

    role: HandoverRole
    host: str = ""
    port: int = 0
    offer_bytes: int = 0
    transport: Transport = "tcp"


class CacheConfig(msgspec.Struct, frozen=True):
    """The KV pool.

    Attributes:
        spec: its geometry.
        num_blocks: its size; where there is a `wish`, an estimate of it.
        prefix_caching: whether prefixes are shared.
        prefix_secret_file: has the secret of their keys; without one, and without the variable, it is this process's.
        kept_share: what share of it may be kept on request.
        events: whether it is told what changes in the prefix cache.
        swap_blocks: how many more there are in the processor's memory, for preempted sequences.
        host_blocks: how many more there, for prefixes that a GPU's pool has lost.
        disk: the folder in which published blocks are kept beyond the pool, and over restarts; None: they are not.
        disk_bytes: what may be there at most.
        store: where they are kept for other machines, too; None: nowhere.
        handover: its part where prompts are computed by some replicas and outputs by others; None: it does both.
        wish: on a GPU, what the engine sizes it by once it has measured a step; so is the longest context.
    """

    spec: KVSpec
    num_blocks: int
    prefix_caching: bool = True
    prefix_secret_file: str | None = None
    kept_share: float = KEPT_SHARE
    events: bool = False
    swap_blocks: int = 0
    host_blocks: int = 0
    disk: str | None = None
    disk_bytes: int = 0
    store: SharedStore | None = None
    handover: HandoverConfig | None = None
    wish: PoolWish | None = None


RerankerName = Literal["qwen3"]


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
        reranker: which reranker it is that its files do not say it is; None: none.
    """

    path: str
    tokenizer: str
    dtype: str
    load_format: LoadFormat = "auto"
    quantization: str = "none"
    quantize_head: str = "none"
    packed_cache: str | None = None
    reranker: RerankerName | None = None


class SimulatedMachine(msgspec.Struct, frozen=True):
    """Devices that are not there, whose times an engine keeps.

    Attributes:
        on: their name and number, as planning knows them.
        split: over how many of them each layer is split.
        dtype, kv_cache_dtype: formats of weights, and of keys and values, by planning's names; without a `dtype`, the
            one that the model's configuration has.
        output_tokens: of an answer, in the mean.
    """

    on: str
    split: int
    dtype: str | None
    kv_cache_dtype: str
    output_tokens: int


class MachinesConfig(msgspec.Struct, frozen=True):
    """Machines that compute a model together, each some stages of its layers.

    Attributes:
        count: how many there are; the engine's is the first.
        host, port: where that one listens for the others.
        secret_file: what they have in common; None: nothing.
    """

    count: int
    host: str
    port: int
    secret_file: str | None = None


class RanksConfig(msgspec.Struct, frozen=True):
    """Processes that compute a model together: each has some of its layers, of these all or a part.

    The first ranks have the last layers, so that the first of all has the logits. Or all have all layers, and each
    keeps a part of every context; then a block of the scheduler has the tokens of a block of each of them.

    Attributes:
        split: how many of them each layer is split over.
        unit: what inner columns are shared out in (`core.shares.TensorRank`).
        specs: the geometry of each one's KV pool; all have the same blocks.
        whole: that of one process, which slots have outside of pools.
        experts: how many groups of those with parts of the same layers have whole experts of their own.
        places: where the experts of layers are; of other layers, each group has its share in order.
        counts: the file that choices of experts are counted in; None: they are not kept.
        stage_ends: behind which layers each stage of the pipeline ends; empty: all ranks have all layers.
        machines: on which they are; None: all are on one.
        stripes: how many keep a part of every context each; 1: contexts are not divided.
    """

    split: int
    unit: int
    specs: tuple[KVSpec, ...]
    whole: KVSpec
    experts: int = 1
    places: tuple[ExpertPlaces, ...] = ()
    counts: str | None = None
    stage_ends: tuple[int, ...] = ()
    machines: MachinesConfig | None = None
    stripes: int = 1

    @property
    def num_machines(self) -> int:
        """Machines that they are on, each with as many of them."""
        return 1 if self.machines is None else self.machines.count

    def ranks_of(self, machine: int) -> range:
        """The ranks of a machine; the first machine has the first of them."""
        count = self.size // self.num_machines
        return range(machine * count, (machine + 1) * count)

    @property
    def size(self) -> int:
        """Processes that compute, over all stages."""
        return self.together * self.num_stages

    @property
    def together(self) -> int:
        """Processes that meet in every layer: they have parts of it, or of the contexts that it reads."""
        return self.split * self.stripes

    @property
    def num_stages(self) -> int:
        """Stages that a step goes through; 1: there is no pipeline."""
        return max(1, len(self.stage_ends))

    def part(self, rank: int) -> TensorRank:
        """Which part of its layers a rank has."""
        return TensorRank(rank % self.split, self.split, self.unit, self.experts, self.places)

    def stripe(self, rank: int) -> Stripe | None:
        """What it keeps of each context; None: all."""
        return None if self.stripes == 1 else Stripe(rank, self.stripes)

    def stage(self, rank: int) -> Stage | None:
        """The layers that it has; None: all."""
        if not self.stage_ends:
            return None
        return stages_of(self.stage_ends)[self.num_stages - 1 - rank // self.split]


class EngineConfig(msgspec.Struct, frozen=True):
    """Everything an engine needs, with nothing left to choose.

    Attributes:
        device: "cpu", or a GPU as "cuda:0".
        speculation: who drafts; None where nothing does.
        kv_policy: how requests bound their contexts that do not say it themselves; None: not at all.
        simulated: the devices that it pretends to have; None where it computes.
        weight_bytes: what weights take, those that draft among them.
        gives_way: whether engines beside it come first where there are not cores enough for all.
        ranks: the processes that compute it together, the engine's own being the first; None: it is alone.
        faults: what is to go wrong while it starts.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    threads: int
    instruction_set: str = "auto"
    speculation: SpeculationConfig | None = None
    device: str = "cpu"
    deterministic: bool = False
    kv_policy: AskedPolicy | None = None
    simulated: SimulatedMachine | None = None
    weight_bytes: int = 0
    gives_way: bool = False
    ranks: RanksConfig | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def pool_blocks(self) -> int:
        """Blocks of the pool, with those for branches of trees of drafts behind those of the scheduler."""
        cache, limits = self.cache, self.scheduler
        if not limits.draft_width:
            return cache.num_blocks
        spec = cache.spec
        return cache.num_blocks + blocks_of_branches(limits.draft_depth, spec.block_size, spec.num_tables)

    def device_of(self, rank: int) -> str:
        """What a rank computes on: the first one's device, or a GPU behind it."""
        kind, _, first = self.device.partition(":")
        return f"{kind}:{int(first) + rank}" if first else self.device

    @property
    def slots(self) -> KVSpec:
        """The geometry of slots outside of pools: as one process has them."""
        return self.cache.spec if self.ranks is None else self.ranks.whole

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that there may be, once the pool has its size."""
        wish = self.cache.wish
        return self.scheduler.max_model_len if wish is None else wish.bound


class Reason(msgspec.Struct, frozen=True):
    """One resolved setting and why it has its value, as they are shown.

    Attributes:
        at_start: whether a server tells it when it starts: it limits what can be asked of the server.
    """

    setting: str
    value: str
    why: str
    at_start: bool = False

    def __str__(self) -> str:
        return f"{self.setting}: {self.value} ({self.why})"

    def __post_init__(self) -> None:
        for name in ("value", "why"):
            msgspec.structs.force_setattr(self, name, shown(getattr(self, name)))
