"""What computes: kernels, weights and a KV pool that belong together, on the CPU or on a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from penstock.assembly.load import DUMMY_SEED, load
from penstock.assembly.rehearsal import Memory
from penstock.assembly.storage import layout_for, storage_for
from penstock.core.config import EngineConfig
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import KVSpec
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.cuda.memory import memory_ended
from penstock.kernels.dispatch import Implementation
from penstock.kernels.torch.operations import IMPLEMENTATIONS
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.device_packing import DevicePacking
from penstock.loading.packed_cache import LoadedWeights
from penstock.loading.weights import Progress, dummy_weights, load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.runtime.storage import TORCH_DTYPES, KVStorage
from penstock.sampling.sampler import ChooseOnDevice

Storage = KVStorage | DeviceKVStorage


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """Everything that depends on the device.

    Attributes:
        implementations: of operations, the fastest first.
        load: (checkpoint, declaration, progress) → the model's weights. Raises StartupError.
        storage: (geometry, blocks, blocks in the processor's memory to swap with) → the KV pool. Raises
            InsufficientMemory.
        choose: chooses tokens where logits are; None where that is this process's memory.
        memory: of the device, by which the pool is sized; None where the configuration says its size.
        graph_sizes: numbers of rows whose decode steps become graphs.
        notes: what users should know of it.
    """

    implementations: Sequence[Implementation]
    load: Callable[[Checkpoint, ModelDeclaration, Progress], LoadedWeights]
    storage: Callable[[KVSpec, int, int], Storage]
    choose: ChooseOnDevice | None = None
    memory: Memory | None = None
    graph_sizes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def backend_of(config: EngineConfig) -> Backend:
    """The backend of a configuration, its threads and instructions in use. Raises ConfigurationError."""
    return _cpu(config) if config.device == "cpu" else _gpu(config)


def use_processor(config: EngineConfig) -> None:
    """Have this process compute with the threads and instructions of a configuration.

    Raises ConfigurationError where the processor, or this build, has no such instructions.
    """
    torch.set_num_threads(config.threads)
    if OBSTACLE is None:
        native.set_threads(config.threads)
        _use_instruction_set(config.instruction_set)


def _cpu(config: EngineConfig) -> Backend:
    use_processor(config)
    dtype = TORCH_DTYPES[config.model.dtype]
    # Before anything is loaded: it may not be possible.
    layout_for(config.cache.spec, dtype)

    def loaded(checkpoint: Checkpoint, declaration: ModelDeclaration, progress: Progress) -> LoadedWeights:
        found = load(config.model, checkpoint, declaration, progress)
        if OBSTACLE is None:
            # What is left to torch is too little to share out, and its threads would take cores from the native ones.
            torch.set_num_threads(1)
        return found

    slow = () if OBSTACLE is None else (f"This is the slow path: {OBSTACLE}.",)
    return Backend(IMPLEMENTATIONS, loaded, lambda spec, blocks, _swapped: storage_for(spec, blocks, dtype), notes=slow)


def _use_instruction_set(name: str) -> None:
    there = native.instruction_sets()
    if name != "auto" and name not in there:
        raise ConfigurationError(f"--instruction-set {name} is not possible here; there are {', '.join(there)}.")
    native.use_instruction_set(there[0] if name == "auto" else name)


def _gpu(config: EngineConfig) -> Backend:
    # Triton takes a second to import; an engine on the CPU does not need it.
    from penstock.kernels.cuda.choosing import chooser
    from penstock.kernels.cuda.graphs import sizes_for
    from penstock.kernels.cuda.memory import DeviceMemory
    from penstock.kernels.cuda.operations import implementations
    from penstock.kernels.cuda.place import INTERPRETED, place_on

    # Tokens whose logits are edited are chosen by the native kernels.
    use_processor(config)
    limits = config.scheduler
    place = place_on(
        torch.device(config.device),
        config.longest,
        most_rows=limits.max_num_seqs,
        deterministic=config.deterministic,
    )
    place.use()
    model, dtype = config.model, TORCH_DTYPES[config.model.dtype]
    packing = DevicePacking(model.quantization, model.quantize_head, place.device, place.fp8)

    def loaded(checkpoint: Checkpoint, declaration: ModelDeclaration, progress: Progress) -> LoadedWeights:
        try:
            if model.load_format == "dummy":
                return LoadedWeights(
                    dummy_weights(declaration, dtype, DUMMY_SEED, packing=packing, device=place.device)
                )
            return LoadedWeights(load_weights(checkpoint, declaration, dtype, progress, packing=packing))
        except RuntimeError as error:
            if not memory_ended(error):
                raise
            raise InsufficientMemory(
                f"The weights do not fit into the memory of {place.device}; other programs may have taken some. Free "
                "it, or use a smaller model, or --quantization int8 or int4."
            ) from error

    notes = ("Triton interprets its kernels here, which is for tests of them.",) if INTERPRETED else ()
    return Backend(
        implementations=implementations(place),
        load=loaded,
        storage=lambda spec, blocks, swapped: DeviceKVStorage(spec, blocks, place.device, swapped),
        choose=chooser(place),
        memory=None if config.cache.wish is None else DeviceMemory(place.device),
        graph_sizes=sizes_for(limits.max_num_seqs),
        notes=notes,
    )
