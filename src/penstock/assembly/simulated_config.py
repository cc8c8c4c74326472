"""What a replica is configured with whose devices are simulated; needs no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.configuration.facts import MachineFacts
from penstock.configuration.options import EngineOptions
from penstock.core.config import EngineConfig, Reason, SimulatedMachine
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.loading.gguf import is_gguf
from penstock.loading.json_file import read_json
from penstock.planning.deploying import deploy, replica_of
from penstock.planning.hardware import machine_of
from penstock.planning.latency import Deployment
from penstock.planning.memory import memory_of

# What `--quantization` is to planning; others have the same name there.
_WEIGHTS = {"auto": None, "none": None, "own": None, "int8": "int8_weights", "int4": "int4"}
_STEP_TOKENS = 2048


def declared_config(path: Path) -> dict[str, Any]:
    """A model's `config.json` as it is, with the format of its weights. Raises ConfigurationError for a GGUF file."""
    if is_gguf(path):
        raise ConfigurationError("Tensors of a GGUF file have formats of their own; --simulate takes a directory.")
    return read_json(path / "config.json")


def deployment_of(simulated: SimulatedMachine, config: Mapping[str, Any]) -> Deployment:
    """The model of a `config.json` on the devices that are simulated. Raises ConfigurationError."""
    machine, split = replica_of(machine_of(simulated.on), simulated.split)
    return deploy(config, machine, split, dtype=simulated.dtype, kv_cache_dtype=simulated.kv_cache_dtype)


def simulated_of(options: EngineOptions) -> SimulatedMachine | None:
    """The devices that options ask to simulate; None where they ask for none. Raises ConfigurationError."""
    device, loading = options.device, options.loading
    if device.simulate is None:
        return None
    if device.device != "cpu":
        raise ConfigurationError("--simulate and --device do not go together: no device computes.")
    drafts = options.speculation
    if drafts.proposer not in ("auto", "off") or drafts.draft_model is not None:
        raise ConfigurationError("--simulate has no drafts: tokens are made up, and nothing can be right of them.")
    if device.simulate_output_len < 1:
        raise ConfigurationError("--simulate-output-len must be at least 1.")
    machine, split = replica_of(machine_of(device.simulate))
    # What is computed in is what weights and cache are kept in, unless something else was asked for.
    computed = "float32" if loading.dtype == "float32" else None
    kept = options.cache.kv_cache_dtype
    return SimulatedMachine(
        on=str(machine),
        split=split,
        dtype=_WEIGHTS.get(loading.quantization, loading.quantization) or computed,
        kv_cache_dtype=(computed or "bfloat16") if kept == "auto" else kept,
        output_tokens=device.simulate_output_len,
    )


def simulated_options(
    options: EngineOptions, machine: MachineFacts, deployment: Deployment
) -> tuple[EngineOptions, MachineFacts]:
    """Options and machine for devices that are simulated: a pool of the size that they would have room for.

    Raises InsufficientMemory where the model does not fit.
    """
    memory = memory_of(deployment, 16, options.batch.max_num_batched_tokens or _STEP_TOKENS)
    if not memory.fits:
        raise InsufficientMemory(
            f"The model does not fit into {deployment.split} x {deployment.device.name}: its weights take "
            f"{memory.device_weights_bytes / 1e9:.1f} GB of each, and {memory.usable_bytes / 1e9:.1f} GB are used."
        )
    shape = deployment.shape
    # The pool has the whole state of a token. Each device keeps a part of it, or a copy where heads are few.
    whole = shape.kept_values(1) / shape.kept_values(1, deployment.split)
    cache = options.cache
    if cache.kv_cache_memory is None:
        cache = replace(cache, kv_cache_memory=int(memory.cache_bytes * whole))
    options = replace(
        options,
        cache=cache,
        loading=replace(
            options.loading,
            # No type is computed in; it says what a token of the pool takes.
            dtype="float32" if options.loading.dtype == "float32" else "bfloat16",
            load_format="dummy",
            quantization="none",
            packed_cache="off",
        ),
        speculation=replace(options.speculation, proposer="off"),
    )
    return options, replace(machine, available_memory=2**62, cache_folder=None)


def simulating(
    config: EngineConfig, reasons: Sequence[Reason], simulated: SimulatedMachine, *, own_pool: bool
) -> tuple[EngineConfig, list[Reason]]:
    """The configuration, and the reasons, of a replica that simulates; `own_pool`: the pool's size was asked for."""
    told = {
        "load format": Reason("load format", "none", "no weights are loaded"),
        "quantization": Reason("quantization", simulated.dtype or "none", "of the weights whose reading is timed"),
        "kv cache memory": Reason("kv cache memory", "", f"what {simulated.on} would have left"),
    }
    found = []
    for reason in reasons:
        other = told.get(reason.setting)
        if other is not None and not (own_pool and reason.setting == "kv cache memory"):
            reason = replace(other, value=other.value or reason.value)
        found.append(reason)
    return replace(config, simulated=simulated), found
