"""How many processes compute a model together, and what that excludes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.configuration.experts import note_experts
from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.machines import note_machines, resolve_machines
from penstock.configuration.options import AUTO, EngineOptions, Size
from penstock.configuration.reasons import Reasons
from penstock.core.config import BLOCK_SIZE, RanksConfig
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError
from penstock.core.kv import KVSpec, build_kv_spec
from penstock.core.kv_part import part_of

MOST_RANKS = 64
# Who drafts without weights of the model.
_PROPOSERS = ("auto", "off", "ngram", "draft", "chain")


class Layout(NamedTuple):
    """How many processes were asked for.

    Attributes:
        split: over how many of them each layer is split.
        experts: how many groups of these are to have whole experts.
        stages: how many stages of layers there are, each with `split` processes.
        stripes: how many processes have all layers, and keep a part of each context.
    """

    split: int
    experts: int
    stages: int
    stripes: int = 1

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.split * self.stages * self.stripes

    @property
    def asked(self) -> str:
        """The option that says so."""
        if self.stripes > 1:
            return f"--context-parallel-size {self.stripes}"
        return f"--tensor-parallel-size {self.split}" if self.split > 1 else f"--pipeline-parallel-size {self.stages}"


def check_ranks(options: EngineOptions) -> Layout:
    """The processes that were asked for; what was left open is 1.

    Raises ConfigurationError where there cannot be that number.
    """
    device = options.device
    split, experts = _size("tensor", device.tensor_parallel_size), _size("expert", device.expert_parallel_size)
    stages, stripes = _size("pipeline", device.pipeline_parallel_size), _size("context", device.context_parallel_size)
    # Alone, it says over how many processes layers are split.
    split = experts if split == 1 else split
    if split % experts:
        raise ConfigurationError(
            f"--expert-parallel-size is {experts}, which does not divide the {split} processes of "
            "--tensor-parallel-size."
        )
    if stripes > 1 and split * stages > 1:
        raise ConfigurationError(
            f"--context-parallel-size {stripes} has processes with all layers each, and does not go together with "
            "--tensor-parallel-size, --expert-parallel-size or --pipeline-parallel-size in this release; leave it or "
            "these out."
        )
    layout = Layout(split, experts, stages, stripes)
    if layout.size > MOST_RANKS:
        raise ConfigurationError(
            f"--tensor-parallel-size {split} and --pipeline-parallel-size {stages} are {layout.size} processes; there "
            f"can be {MOST_RANKS}."
        )
    return layout


def _size(option: str, value: Size) -> int:
    if value == AUTO:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RANKS:
        raise ConfigurationError(f"--{option}-parallel-size is {value!r}; it must be from 1 to {MOST_RANKS}, or auto.")
    return value


def check_alone(options: EngineOptions, what: str) -> None:
    """Raise ConfigurationError where several processes are, or may be, asked for of what one alone does."""
    device = options.device
    sizes = device.tensor_parallel_size, device.expert_parallel_size, device.pipeline_parallel_size
    if check_ranks(options).size > 1 or AUTO in (*sizes, device.context_parallel_size):
        raise ConfigurationError(
            f"{what} computes in one process: leave --tensor-parallel-size, --expert-parallel-size, "
            "--pipeline-parallel-size and --context-parallel-size out."
        )


def resolve_ranks(
    options: EngineOptions,
    model: ModelFacts,
    machine: MachineFacts,
    gpu: Gpu | None,
    one: KVSpec,
    dtype: str,
    out: Reasons,
) -> RanksConfig | None:
    """The processes that compute the model together; None where one does. `one` is the geometry of one process' pool.

    Raises ConfigurationError where what else was asked for does not go together with several.
    """
    layout = check_ranks(options)
    if gpu is not None:
        _check_devices(options, layout, machine.gpus.gpus, gpu)
    machines = resolve_machines(options, layout.stages)
    note_machines(machines, out)
    if layout.size == 1:
        out.note("tensor parallel size", 1, "one process computes")
        out.note("expert parallel size", 1, "it has all experts there are")
        out.note("pipeline parallel size", 1, "it has all layers")
        out.note("context parallel size", 1, "it keeps whole contexts")
        note_experts(options, (), out)
        return None
    asked = layout.asked
    for option, why, instead in obstacles(options, machine, gpu):
        raise ConfigurationError(f"{asked} and {option} do not go together: {why}; {instead}.")
    whole = [build_kv_spec(layers, dtype, BLOCK_SIZE, options.cache.kv_cache_dtype) for layers in model.rank_layers]
    if len({tuple((group.sees, group.width) for group in spec.groups) for spec in whole}) > 1:
        raise ConfigurationError(
            f"{asked} is not possible with this model: its layers have heads in different "
            "numbers, which ranks would keep in blocks of different kinds; take a size that divides them all."
        )
    # The first ranks have the last layers.
    specs = [part_of(spec, stores) for stores in reversed(model.stage_stores) for spec in whole] or whole
    _note_layout(layout, model, options, out)
    experts = layout.experts, model.places, model.counts
    return RanksConfig(
        layout.split, model.unit, tuple(specs), one, *experts, model.stage_ends, machines, stripes=layout.stripes
    )


def _note_layout(layout: Layout, model: ModelFacts, options: EngineOptions, out: Reasons) -> None:
    """Say which processes there are, and what that means."""
    why = "each process has all of its layers"
    if layout.split > 1:
        why = "as asked: each process has a part of every layer; another number may give other bits"
    if model.lost_integers and options.loading.quantization == "auto":
        why += (
            f"; {model.lost_integers:,} weights of the files' integers become numbers, which take more memory, since a "
            "process's columns are no whole groups of them, or stand in another order"
        )
    out.limit("tensor parallel size", layout.split, why)
    held = "every process has a part of each expert, if there are any" if layout.split > 1 else "experts are whole"
    if layout.experts > 1:
        held = f"as asked: {layout.experts} groups of {layout.split // layout.experts} have whole experts, each others"
    out.limit("expert parallel size", layout.experts, held)
    note_experts(options, model.places, out)
    stages = "every process has all layers"
    if layout.stages > 1:
        firsts = (0, *model.stage_ends)
        spans = ", ".join(f"{first + 1} to {end}" for first, end in zip(firsts, model.stage_ends, strict=False))
        stages = f"as asked: steps go through processes with layers {spans}, and give the bits that one process gives"
    out.limit("pipeline parallel size", layout.stages, stages)
    stripes = "contexts are not divided"
    if layout.stripes > 1:
        stripes = (
            f"as asked: of each {BLOCK_SIZE * layout.stripes} tokens of a context, every process keeps "
            f"{BLOCK_SIZE}; another number may give other bits"
        )
    out.limit("context parallel size", layout.stripes, stripes)


def _check_devices(options: EngineOptions, layout: Layout, gpus: Sequence[Gpu], first: Gpu) -> None:
    """Raise ConfigurationError where there is not a GPU for each rank, or ranks would do what GPUs do not yet."""
    for option, value in (
        ("--pipeline-parallel-size", layout.stages),
        ("--context-parallel-size", layout.stripes),
        ("--expert-parallel-size", layout.experts),
    ):
        if value > 1:
            raise ConfigurationError(
                f"{option} {value} is not possible on {first.device} in this release; take --tensor-parallel-size, or "
                "--device cpu."
            )
    if layout.size == 1 or first.interpreted:
        return
    there = {gpu.index: gpu for gpu in gpus}
    wanted = range(first.index, first.index + layout.size)
    if missing := [index for index in wanted if index not in there]:
        seen = ", ".join(gpu.device for gpu in gpus)
        raise ConfigurationError(
            f"--tensor-parallel-size {layout.size} takes {first.device} and those behind it, and there is no "
            f"cuda:{missing[0]}; this process sees {seen} (CUDA_VISIBLE_DEVICES)."
        )
    if others := [there[index] for index in wanted if there[index].name != first.name]:
        raise ConfigurationError(
            f"--tensor-parallel-size {layout.size} takes devices that are alike, but {first.device} is a {first.name} "
            f"and {others[0].device} a {others[0].name}; choose with CUDA_VISIBLE_DEVICES, or take another --device "
            f"than {first.device}."
        )


def obstacles(options: EngineOptions, machine: MachineFacts, gpu: Gpu | None) -> Iterator[tuple[str, str, str]]:
    """What does not go together with ranks: the option, why, and what would work."""
    device, cache, drafts = options.device, options.cache, options.speculation
    if gpu is not None:
        for option, memory in (("--swap-space", cache.swap_space), ("--kv-host-memory", cache.kv_host_memory)):
            if memory:
                yield option, "each rank has a part of every block, and its own memory", f"leave {option} out"
    if device.simulate is not None:
        yield "--simulate", "simulated devices compute nothing", "say how layers are split with --simulate alone"
    if machine.obstacle is not None:
        yield "this installation", f"ranks need the native kernels ({machine.obstacle})", "leave it out"
    if drafts.proposer not in _PROPOSERS:
        why = "what drafts has weights or states of the model, and no rank has all of these"
        yield f"--speculative {drafts.proposer}", why, "take --speculative ngram, draft or off"
    for option, value in (("--kv-disk", cache.kv_disk), ("--kv-store", cache.kv_store)):
        if value is not None:
            yield option, "each rank has a part of every block, and tiers take whole ones", f"leave {option} out"
