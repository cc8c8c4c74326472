"""Engine options as every command takes them, and other values as people write them."""

import os.path
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.bundled.registry import DEFAULT, bundled_models, find_bundled
from penstock.configuration.options import AUTO, Size
from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError

Model = Annotated[
    str | None,
    typer.Argument(
        help="A directory in Hugging Face's layout, a hub name, or a bundled model (see `penstock models`); without "
        f"one, {DEFAULT}, which is bundled."
    ),
]
Tokenizer = Annotated[str | None, typer.Option(help="Directory to take the tokenizer from, instead of the model's.")]
ChatTemplateFile = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="FILE",
        help="File with the chat template (Jinja), or the name of one in the model's directory; without it, the "
        "model's own.",
    ),
]
Dtype = Annotated[str, typer.Option(help="What the model computes in: auto, bfloat16 or float32.")]
Quantization = Annotated[
    str,
    typer.Option(
        help="Round the weights to int8 or int4 when they are loaded; auto: none, and keep a checkpoint's integers."
    ),
]
QuantizeHead = Annotated[
    str | None, typer.Option(help="int8: keep output head and embedding at 8 bits where all else has fewer.")
]
MaxModelLen = Annotated[int | None, typer.Option(help="Most tokens of prompt and output together.")]
MaxNumSeqs = Annotated[int | None, typer.Option(help="Sequences that run at a time.")]
MaxNumBatchedTokens = Annotated[int | None, typer.Option(help="Positions computed in one step.")]
LongPrefill = Annotated[int | None, typer.Option(help="Most prompt tokens of one request in one step.")]
TargetItl = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Inter-token latency to aim for: about how long a step may take."),
]
KvCacheMemory = Annotated[str | None, typer.Option(help="Size of the KV pool, such as 4GiB or 500MB.")]
KvCacheDtype = Annotated[
    str,
    typer.Option(
        help="What keys and values are kept as: auto (as computed), int8 or fp8 (half the memory), or int4 (a third)."
    ),
]
SwapSpace = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="On a GPU: memory of the processor for the KV of preempted requests; without it they are computed again.",
    ),
]
KvHostMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="On a GPU: memory of the processor for KV blocks of prefixes, beyond the pool.",
        show_default="none",
    ),
]
KvDisk = Annotated[
    str | None,
    typer.Option(
        metavar="DIR[:SIZE]",
        help="Keep KV blocks of prefixes in this folder, beyond the pool and over restarts.",
        show_default="no folder; 10GiB in one",
    ),
]
KvStore = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PENSTOCK_KV_STORE",
        help="Share KV blocks of prefixes with servers on other machines: file:///FOLDER[?size=SIZE] on a network file "
        "system, redis://HOST:PORT/NUMBER, s3://BUCKET/PREFIX, or mooncake://HOST:PORT. With --prefix-secret-file.",
        show_default="none",
    ),
]
PrefixSecretFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="File with a secret of at least 32 bytes. Processes with the same secret and weights have the same keys "
        "of prefixes. Without it, each has keys of its own.",
    ),
]
KvPolicyOption = Annotated[
    str | None,
    typer.Option(
        "--kv-policy",
        metavar="POLICY",
        help="Bound contexts of requests that say nothing else: window:2048, h2o:2048,sinks=64,recent=256, or JSON.",
        show_default="whole contexts",
    ),
]
PrefixCaching = Annotated[
    bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Share the KV of equal prefixes.")
]
LoadFormat = Annotated[str, typer.Option(help="auto, or dummy: random weights from config.json alone.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto, the first GPU that can: what computes.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="On a GPU, sums have one order, whatever is in a batch.")
]
Threads = Annotated[int | None, typer.Option(help="Threads of the computation.")]
InstructionSet = Annotated[
    str, typer.Option(help="Of the native kernels: auto, amx, avx512, avx512_vnni, avx2 or portable.")
]
TensorParallelSize = Annotated[
    str,
    typer.Option(
        metavar="N|auto", help="Processes that compute the model together, each a part of every layer; auto: by plan."
    ),
]
ExpertParallelSize = Annotated[
    str, typer.Option(metavar="N|auto", help="Groups of these processes that have whole experts, each others.")
]
PipelineParallelSize = Annotated[
    str,
    typer.Option(metavar="N|auto", help="Stages of layers that steps go through, each with processes of its own."),
]
Machines = Annotated[
    int, typer.Option(metavar="N", help="Machines on which these stages are; the others run `penstock join`.")
]
MachinesAt = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where this machine listens for the others; 127.0.0.1:7400 without."),
]
MachinesSecretFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="File with a secret that all machines have in common.")
]
ExpertCopies = Annotated[
    int, typer.Option(metavar="K", help="Experts of a layer that each group may have beside its own: the most chosen.")
]
ExpertCounts = Annotated[
    str | None, typer.Option(metavar="FILE", help="Counts of chosen experts; it is written where there is none.")
]
ContextParallelSize = Annotated[
    str, typer.Option(metavar="N|auto", help="Processes with the whole model that each keep a part of every context.")
]
PackedCache = Annotated[
    str | None, typer.Option(metavar="DIR|off", help="Folder that keeps packed weights between starts; off keeps none.")
]
Reranker = Annotated[
    str | None, typer.Option(help="qwen3: the model is Qwen3-Reranker, or trained like it, which its files do not say.")
]
Speculative = Annotated[
    str,
    typer.Option(
        help="Source of drafts that steps verify: off, auto, ngram, draft, chain, self, medusa or eagle. "
        "No output changes."
    ),
]
DraftModel = Annotated[
    str | None, typer.Option(help="The model that drafts, or a directory with Medusa or EAGLE heads.")
]
ChainModel = Annotated[
    str | None, typer.Option(help="The model that drafts for the draft model; without it, the text itself does.")
]
DraftQuantization = Annotated[
    str, typer.Option(help="Round the weights of those that draft: none, int8 or int4; auto: models to int8.")
]
SpeculativeLayers = Annotated[
    int | None, typer.Option(help="How many of the model's own layers draft, with --speculative self; by default half.")
]
SpeculativeAcceptance = Annotated[
    str,
    typer.Option(
        help="coupled changes no token; rejection keeps more drafts of sampled outputs, and their distribution only."
    ),
]
SpeculativeDepth = Annotated[
    int | None, typer.Option(help="Tokens drafted at a time, always; without it, the number that pays.")
]
SpeculativeWidth = Annotated[
    int | None, typer.Option(help="Tokens drafted beside those, in other branches of a tree; with --speculative-depth.")
]
SpeculativeMemory = Annotated[
    int, typer.Option(help="Tokens of finished answers to draft from, too, within a tenant (a cache salt).")
]
LONGEST_SECONDS = 24 * 3600.0
LONGEST_SHOWN = 60


def split_size(text: str | None, option: str) -> tuple[str | None, int | None]:
    """The folder and the size of "DIR:SIZE", or the folder of "DIR". Raises ConfigurationError."""
    folder, colon, size = (text or "").rpartition(":")
    if not colon or "/" in size:
        return text, None
    if not folder:
        raise ConfigurationError(f"{option} {text!r} has no folder before its size.")
    return folder, parse_size(size, option)


def parse_seconds(value: float, option: str, least: float) -> float:
    """A number of seconds; raises ConfigurationError where it is too small, or none."""
    if not least <= value <= LONGEST_SECONDS:
        raise ConfigurationError(
            f"{option} {value:g} is not a number of seconds from {least:g} to {LONGEST_SECONDS:g}."
        )
    return value


def parse_batch_sizes(text: str, option: str = "--batch-size") -> list[int]:
    """Batch sizes of "1,4,16". Raises ConfigurationError."""
    sizes = [int(part) for part in text.split(",") if re.fullmatch(r"\s*[0-9]{1,9}\s*", part)]
    if len(sizes) != len(text.split(",")) or not all(sizes):
        raise ConfigurationError(f"{option} {text!r} is not a list of positive numbers such as 1,4,16.")
    return sizes


def parse_depths(text: str, option: str = "--depth") -> list[tuple[int | None, int]]:
    """Depths of "auto,2,4+2", None for auto, with what is drafted beside each. Raises ConfigurationError."""
    found: list[tuple[int | None, int]] = []
    for part in text.split(","):
        if part.strip() == "auto":
            found.append((None, 0))
            continue
        depth, plus, width = part.partition("+")
        found.append((parse_batch_sizes(depth, option)[0], parse_batch_sizes(width, option)[0] if plus else 0))
    return found


def parse_temperatures(text: str) -> list[float]:
    """Temperatures of "0,0.8". Raises ConfigurationError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", part) for part in parts):
        raise ConfigurationError(f"--temperature {text!r} is not a list of numbers such as 0,0.8.")
    return [float(part) for part in parts]


def model_or_default(model: str | None) -> str:
    """The model that was asked for, or the bundled one, which is announced.

    A folder that has a bundled model's name is announced too: it may have been meant.
    """
    if model is None:
        default = bundled_models()[0]
        typer.echo(
            f"penstock: no model was given, so this is {default.name}, a small model that comes with Penstock: it "
            f"{default.summary}. Give a directory or a hub name to take another.",
            err=True,
        )
        return default.name
    if find_bundled(model) is not None and os.path.isdir(model):
        typer.echo(f"penstock: {model} is the bundled model; write ./{model} for the folder of that name.", err=True)
    return model


def refuse_prompt_as_model(model: str | None, words: Sequence[str]) -> None:
    """Raise ConfigurationError where MODEL can be none, and is likely the beginning of the prompt."""
    if model is None or find_bundled(model) is not None or os.path.exists(os.path.expanduser(model)):
        return
    names_a_place = model.startswith((".", "/", "~")) or ("/" in model and not re.search(r"\s", model))
    if not names_a_place:
        names = " or ".join(bundled.name for bundled in bundled_models())
        raise ConfigurationError(
            f"{_shortened(model)!r} is neither a bundled model ({names}), nor a directory, nor a hub name such as "
            "owner/model; if it is your prompt, write the model before it: "
            f"penstock run {DEFAULT} {shlex.quote(_shortened(' '.join([model, *words])))}"
        )


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SHOWN else f"{line[: LONGEST_SHOWN - 3]}..."


def _parallel_size(text: str, name: str) -> Size:
    """A number of processes, or that it is left to the plan. Raises ConfigurationError."""
    if text == AUTO:
        return AUTO
    try:
        return int(text)
    except ValueError:
        option = name.replace("_", "-")
        raise ConfigurationError(f"--{option} is {text!r}; it must be a number, or auto.") from None


@dataclass(frozen=True, kw_only=True)
class LoadingArguments:
    """How a model's files are read, and what its weights are kept as."""

    tokenizer: Tokenizer = None
    dtype: Dtype = "auto"
    quantization: Quantization = "auto"
    quantize_head: QuantizeHead = None
    load_format: LoadFormat = "auto"
    packed_cache: PackedCache = None
    reranker: Reranker = None


@dataclass(frozen=True, kw_only=True)
class BatchArguments:
    """What is computed together, and for how long."""

    max_model_len: MaxModelLen = None
    max_num_batched_tokens: MaxNumBatchedTokens = None
    long_prefill_token_threshold: LongPrefill = None
    target_itl: TargetItl = None


@dataclass(frozen=True, kw_only=True)
class CacheArguments:
    """The KV pool: its size, its form, and where it is swapped to."""

    kv_cache_memory: KvCacheMemory = None
    kv_cache_dtype: KvCacheDtype = "auto"
    swap_space: SwapSpace = None
    kv_host_memory: KvHostMemory = None
    kv_disk: KvDisk = None
    kv_store: KvStore = None
    prefix_secret_file: PrefixSecretFile = None
    kv_policy: KvPolicyOption = None


@dataclass(frozen=True, kw_only=True)
class DeviceArguments:
    """What computes, and with which instructions."""

    device: Device = "cpu"
    deterministic: Deterministic = False
    threads: Threads = None
    instruction_set: InstructionSet = "auto"
    tensor_parallel_size: TensorParallelSize = "1"
    expert_parallel_size: ExpertParallelSize = "1"
    pipeline_parallel_size: PipelineParallelSize = "1"
    machines: Machines = 1
    machines_at: MachinesAt = None
    machines_secret_file: MachinesSecretFile = None
    expert_copies: ExpertCopies = 0
    expert_counts: ExpertCounts = None
    context_parallel_size: ContextParallelSize = "1"


@dataclass(frozen=True, kw_only=True)
class SimulationArguments:
    """Devices that are not there."""

    simulate: Annotated[
        str | None,
        typer.Option(metavar="DEVICES", help="Compute nothing: made-up tokens at the pace of devices such as 8xh100."),
    ] = None
    simulate_output_len: Annotated[int, typer.Option(help="Tokens of a simulated answer, in the mean.")] = 256


@dataclass(frozen=True, kw_only=True)
class SpeculationArguments:
    """Speculative decoding: what drafts, and how much."""

    speculative: Speculative = "auto"
    speculative_depth: SpeculativeDepth = None
    speculative_width: SpeculativeWidth = None
    draft_model: DraftModel = None
    chain_model: ChainModel = None
    draft_quantization: DraftQuantization = "auto"
    speculative_layers: SpeculativeLayers = None
    speculative_acceptance: SpeculativeAcceptance = "coupled"
    speculative_memory: SpeculativeMemory = 0


@dataclass(frozen=True, kw_only=True)
class EngineArguments:
    """How a model is computed, and with what."""

    loading: LoadingArguments = LoadingArguments()
    batch: BatchArguments = BatchArguments()
    cache: CacheArguments = CacheArguments()
    device: DeviceArguments = DeviceArguments()
    speculation: SpeculationArguments = SpeculationArguments()

    def engine(self, model: str | None, **others: Any) -> dict[str, Any]:
        """Keyword arguments for `EngineOptions.of` and `LLM`. Raises ConfigurationError where a size is none."""
        memory = parse_size(self.cache.kv_cache_memory, "--kv-cache-memory")
        swap = parse_size(self.cache.swap_space, "--swap-space")
        disk, disk_size = split_size(self.cache.kv_disk, "--kv-disk")
        sizes = {
            "kv_cache_memory": memory,
            "swap_space": swap,
            "kv_host_memory": parse_size(self.cache.kv_host_memory, "--kv-host-memory"),
            "kv_disk": disk,
            "kv_disk_size": disk_size,
        }
        given = {name: value for group in vars(self).values() for name, value in vars(group).items()}
        ranks = {name: _parallel_size(given[name], name) for name in given if name.endswith("_parallel_size")}
        return {**given, "model": model_or_default(model), **sizes, **ranks, **others}
