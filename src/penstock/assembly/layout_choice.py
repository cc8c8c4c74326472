"""How many processes compute a model where options leave it to the plan."""

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.configuration.facts import MachineFacts
from penstock.configuration.options import AUTO, EngineOptions
from penstock.configuration.ranks import check_ranks, obstacles
from penstock.core.config import Reason
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError
from penstock.loading.cache_folder import hardware_file
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.gguf import is_gguf
from penstock.loading.json_file import read_json
from penstock.planning.calibration import Basis, prior_basis
from penstock.planning.choosing import Choice, Open, choose
from penstock.planning.deploying import deploy
from penstock.planning.hardware import Device, Machine, device_of
from penstock.planning.latency import Deployment
from penstock.planning.memory import memory_of
from penstock.planning.own import OwnMachine, read_machine

_SIZES = {
    "split": "tensor_parallel_size",
    "experts": "expert_parallel_size",
    "stages": "pipeline_parallel_size",
    "stripes": "context_parallel_size",
}
# Where a machine was not calibrated, as many cores of this processor are taken as it has threads.
_LIKE, _LIKE_CORES = "Xeon 8480+", 56
_ROUNDED = ("int8", "int4")
# Tokens of a sequence that has to fit.
_CONTEXT = 1024


def with_layout(
    options: EngineOptions, path: Path, checkpoint: Checkpoint, machine: MachineFacts, gpu: Gpu | None
) -> tuple[EngineOptions, tuple[Reason, ...]]:
    """Options without an `auto` in the numbers of processes, and why these are what they are.

    Raises ConfigurationError where no number can be beside what was asked for.
    """
    asked = {field: getattr(options.device, name) for field, name in _SIZES.items()}
    if AUTO not in asked.values():
        return options, ()
    # What was said of the others has to be possible; alone, experts say over how many processes layers are split.
    layout = check_ranks(options)
    asked |= {field: getattr(layout, field) for field, size in asked.items() if size != AUTO}
    choice = _chosen(options, asked, path, checkpoint, machine, gpu)
    sizes = {name: getattr(choice, field) for field, name in _SIZES.items()}
    value = ", ".join(f"{name.split('_')[0]} {size}" for name, size in sizes.items())
    reason = Reason("parallel sizes", value, f"auto: {choice.why}", at_start=True)
    return replace(options, device=replace(options.device, **sizes)), (reason,)


def _chosen(
    options: EngineOptions,
    asked: Mapping[str, Any],
    path: Path,
    checkpoint: Checkpoint,
    machine: MachineFacts,
    gpu: Gpu | None,
) -> Choice:
    device = options.device
    sizes = {field: None if size == AUTO else size for field, size in asked.items()}
    least = {field: size or 1 for field, size in sizes.items()}
    if device.machines > 1 and sizes["stages"] is None:
        least["stages"] = device.machines
    for option, why, _ in obstacles(options, machine, gpu):
        return Choice(**least, why=f"with {option} there are no others: {why}")
    threads = device.threads or machine.cores
    try:
        own = _measured() if gpu is None else None
        if gpu is not None:
            return _on_gpus(options, path, checkpoint, machine, gpu, least, is_open=sizes["split"] is None)
        whole = _in_one_process(options, path, checkpoint, _device(own, machine, threads))
    except ConfigurationError as error:
        return Choice(**least, why=f"the fewest, since plans do not know this model: {error.message}")
    # What ranks were measured to take holds for as many threads.
    ranks = own.ranks if own is not None and own.threads == threads else ()
    return choose(whole, _basis(own, whole, threads), Open(**sizes, machines=device.machines), threads, ranks)


def _on_gpus(
    options: EngineOptions,
    path: Path,
    checkpoint: Checkpoint,
    machine: MachineFacts,
    gpu: Gpu,
    least: dict[str, int],
    *,
    is_open: bool,
) -> Choice:
    """As few GPUs as hold the model, of those like the first one that follow it: what several take was not measured."""
    behind = [each for each in machine.gpus.gpus if each.index >= gpu.index]
    alike = list(takewhile(lambda each: each.name == gpu.name, sorted(behind, key=lambda each: each.index))) or [gpu]
    most = len(alike)
    sizes = range(1, most + 1) if is_open else [least["split"]]
    # Of their figures, memory alone is looked at.
    free = float(min(each.free_memory for each in alike))
    device = Device(gpu.name, "gpu", free, 1.0, {"bf16": 1.0}, 1.0, 0.0, "its driver")
    whole = _in_one_process(options, path, checkpoint, device)
    split = next((size for size in sizes if memory_of(replace(whole, split=size), _CONTEXT).fits), sizes[-1])
    memory = memory_of(replace(whole, split=split), _CONTEXT)
    weights, usable = memory.device_weights_bytes / 1e9, memory.usable_bytes / 1e9
    why = (
        f"{split} of {most} GPUs {'hold' if split > 1 else 'holds'} the model, each {weights:.1f} GB of weights in "
        f"{usable:.1f} GB; as few as do, since what several take beside one was not measured"
    )
    if not is_open:
        why = f"{split} as asked, and no other numbers, since what several GPUs take beside one was not measured"
    elif not memory.fits:
        why = f"{most} GPUs, all that are alike, do not hold the model by the plan"
    return Choice(**{**least, "split": split}, why=why)


def _measured() -> OwnMachine | None:
    """What `penstock calibrate` has written of this machine; None where it did not run."""
    file = hardware_file()
    return read_machine(file.read_bytes(), str(file)) if file.is_file() else None


def _device(own: OwnMachine | None, machine: MachineFacts, threads: int) -> Device:
    if own is not None:
        return own.device
    like = device_of(_LIKE)
    part = threads / _LIKE_CORES
    rates = {rate: value * part for rate, value in like.rates.items()}
    return replace(like, memory=float(machine.available_memory), bandwidth=like.bandwidth * part, rates=rates, link=0.0)


def _basis(own: OwnMachine | None, whole: Deployment, threads: int) -> Basis:
    if own is not None:
        return own.basis(whole)
    basis = prior_basis(whole)
    return replace(basis, said=f"{threads} cores of a {_LIKE}, since this machine was not calibrated")


def _in_one_process(options: EngineOptions, path: Path, checkpoint: Checkpoint, device: Device) -> Deployment:
    """The model as one process has it. Raises ConfigurationError where plans do not know it."""
    loading, kept = options.loading, options.cache.kv_cache_dtype
    dtype = loading.quantization if loading.quantization in _ROUNDED else None
    computed = "float32" if loading.dtype == "float32" else "bfloat16"
    config: Mapping[str, Any] = checkpoint.config
    if is_gguf(path):
        # Its tensors have formats of their own, which a GPU has as numbers; of ways that are compared on a processor,
        # all read the same.
        dtype = dtype or (computed if device.kind == "gpu" else "q4_k_m")
    else:
        # As it is in the file, it has the format of the weights.
        config = read_json(path / "config.json")
        if loading.dtype != "auto" and "quantization_config" not in config:
            dtype = dtype or computed
    cache = computed if kept == "auto" else kept
    return deploy(config, Machine(device), 1, dtype=dtype, kv_cache_dtype=cache)
