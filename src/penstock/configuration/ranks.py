"""How many processes compute a model together, and what that excludes."""

from collections.abc import Iterator

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.reasons import Reasons
from penstock.core.config import BLOCK_SIZE, RanksConfig
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError
from penstock.core.kv import build_kv_spec

MOST_RANKS = 64
# Who drafts without weights of the model.
_PROPOSERS = ("auto", "off", "ngram", "draft", "chain")


def check_ranks(options: EngineOptions) -> tuple[int, int]:
    """How many processes were asked for, and how many groups of them are to have whole experts.

    Raises ConfigurationError where there cannot be that number.
    """
    size, experts = options.device.tensor_parallel_size, options.device.expert_parallel_size
    for option, value in (("tensor", size), ("expert", experts)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RANKS:
            raise ConfigurationError(f"--{option}-parallel-size is {value!r}; it must be from 1 to {MOST_RANKS}.")
    # Alone, it says how many processes there are.
    size = experts if size == 1 else size
    if size % experts:
        raise ConfigurationError(
            f"--expert-parallel-size is {experts}, which does not divide the {size} processes of "
            "--tensor-parallel-size."
        )
    return size, experts


def check_alone(options: EngineOptions, what: str) -> None:
    """Raise ConfigurationError where several processes are asked for of what one alone does."""
    size, _ = check_ranks(options)
    if size > 1:
        raise ConfigurationError(
            f"{what} computes in one process: leave --tensor-parallel-size and --expert-parallel-size out."
        )


def resolve_ranks(
    options: EngineOptions, model: ModelFacts, machine: MachineFacts, gpu: Gpu | None, dtype: str, out: Reasons
) -> RanksConfig | None:
    """The processes that compute the model together; None where one does.

    Raises ConfigurationError where what else was asked for does not go together with several.
    """
    size, experts = check_ranks(options)
    if size == 1:
        out.note("tensor parallel size", 1, "one process computes")
        out.note("expert parallel size", 1, "it has all experts there are")
        return None
    for option, why, instead in _obstacles(options, machine, gpu):
        raise ConfigurationError(f"--tensor-parallel-size {size} and {option} do not go together: {why}; {instead}.")
    specs = tuple(
        build_kv_spec(layers, dtype, BLOCK_SIZE, options.cache.kv_cache_dtype) for layers in model.rank_layers
    )
    if len({tuple((group.sees, group.width) for group in spec.groups) for spec in specs}) > 1:
        raise ConfigurationError(
            f"--tensor-parallel-size {size} is not possible with this model: its layers have heads in different "
            "numbers, which ranks would keep in blocks of different kinds; take a size that divides them all."
        )
    why = "as asked: each process has a part of every layer; another number may give other bits"
    if model.lost_integers and options.loading.quantization == "auto":
        why += (
            f"; {model.lost_integers:,} weights of the files' integers become numbers, which take more memory, since a "
            "process's columns are no whole groups of them, or stand in another order"
        )
    out.limit("tensor parallel size", size, why)
    held = "every process has a part of each expert, if there are any"
    if experts > 1:
        held = f"as asked: {experts} groups of {size // experts} have whole experts, each others"
    out.limit("expert parallel size", experts, held)
    return RanksConfig(size, model.unit, specs, experts)


def _obstacles(options: EngineOptions, machine: MachineFacts, gpu: Gpu | None) -> Iterator[tuple[str, str, str]]:
    """What does not go together with ranks: the option, why, and what would work."""
    device, cache, drafts = options.device, options.cache, options.speculation
    if gpu is not None:
        yield f"--device {device.device}", "ranks meet in the processor's memory in this release", "take --device cpu"
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
