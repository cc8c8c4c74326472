"""What computes: kernels, weights and a KV pool that belong together, on the CPU or on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from penstock.assembly.gain import measure_machine
from penstock.assembly.rehearsal import Memory
from penstock.core.ceilings import Ceilings
from penstock.core.config import EngineConfig, ModelConfig
from penstock.core.errors import InsufficientMemory
from penstock.core.kv import KVSpec
from penstock.kernels.cuda.memory import DeviceMemory, memory_ended
from penstock.kernels.dispatch import Implementation
from penstock.kernels.packing import Weight
from penstock.kernels.processor import ProcessorKernels, this_processor
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.device_packing import DevicePacking
from penstock.loading.packed_cache import LoadedWeights, load_cached
from penstock.loading.packing import packing_of
from penstock.loading.weights import Progress, dummy_weights, load_weights
from penstock.models.declaration import ModelDeclaration
from penstock.runtime.device_storage import DeviceKVStorage
from penstock.runtime.storage import TORCH_DTYPES, KVStorage
from penstock.sampling.sampler import ChooseOnDevice

Storage = KVStorage | DeviceKVStorage
_DUMMY_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """Everything that depends on the device.

    Attributes:
        implementations: of operations, the fastest first.
        load: (model, checkpoint, declaration, progress) → the model's weights. Raises StartupError.
        storage: (geometry, blocks, blocks in the processor's memory to swap with) → a KV pool for values of the
            configuration's type. Raises ConfigurationError where its kernels take none such, InsufficientMemory.
        native: whether the processor's native kernels compute, for which weights of heads are packed.
        choose: chooses tokens where logits are; None where that is this process's memory.
        ceilings: weights → what the machine reaches at most with them; None where that is not measured.
        memory: of the device, by which the pool is sized; None where the configuration says its size.
        graph_sizes: numbers of rows whose decode steps become graphs.
        notes: what users should know of it.
        identity: kernels and instructions that the bits of its results depend on.
    """

    implementations: Sequence[Implementation]
    load: Callable[[ModelConfig, Checkpoint, ModelDeclaration, Progress], LoadedWeights]
    storage: Callable[[KVSpec, int, int], Storage]
    native: bool = False
    choose: ChooseOnDevice | None = None
    ceilings: Callable[[Mapping[str, Weight]], Ceilings | None] = lambda _weights: None
    memory: Memory | None = None
    graph_sizes: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    identity: str = ""


def backend_of(config: EngineConfig) -> Backend:
    """The backend of a configuration, its threads and instructions in use. Raises ConfigurationError."""
    return on_processor(config, this_processor()) if config.device == "cpu" else on_gpu(config)


def on_processor(config: EngineConfig, processor: ProcessorKernels) -> Backend:
    """Computes with a processor's kernels. Raises ConfigurationError where they cannot do as configured."""
    processor.use(config.threads, config.instruction_set)
    dtype = TORCH_DTYPES[config.model.dtype]
    # Before anything is loaded: it may not be possible.
    processor.kv_layout(config.cache.spec, dtype)

    def loaded(
        model: ModelConfig, checkpoint: Checkpoint, declaration: ModelDeclaration, progress: Progress
    ) -> LoadedWeights:
        found = _load(processor, model, checkpoint, declaration, progress)
        if processor.native:
            # What is left to torch is too little to share out, and its threads would take cores from the native ones.
            torch.set_num_threads(1)
        return found

    def storage(spec: KVSpec, blocks: int, _swapped: int) -> KVStorage:
        return KVStorage(spec, blocks, processor.kv_layout(spec, dtype))

    slow = () if processor.obstacle is None else (f"This is the slow path: {processor.obstacle}.",)
    backend = Backend(
        implementations=processor.implementations,
        load=loaded,
        storage=storage,
        native=processor.native,
        notes=slow,
        identity=processor.identity,
    )
    if not processor.native:
        return backend
    return replace(backend, ceilings=partial(measure_machine, threads=config.threads))


def _load(
    processor: ProcessorKernels,
    model: ModelConfig,
    checkpoint: Checkpoint,
    declaration: ModelDeclaration,
    progress: Progress,
) -> LoadedWeights:
    """The model's packed weights: mapped where an earlier start has left them."""
    dtype = TORCH_DTYPES[model.dtype]
    packing = packing_of(model, declaration, native=processor.native)
    if model.load_format == "dummy":
        return LoadedWeights(dummy_weights(declaration, dtype, _DUMMY_SEED, packing=packing))
    if model.packed_cache is None:
        return LoadedWeights(load_weights(checkpoint, declaration, dtype, progress, packing=packing))
    folder = Path(model.packed_cache).expanduser()
    return load_cached(folder, checkpoint, declaration, dtype, packing, progress)


def on_gpu(config: EngineConfig, memory: Memory | None = None) -> Backend:
    """Computes with the kernels for GPUs; `memory` reads the GPU's, instead of what its driver says."""
    # Triton takes a second to import; an engine on the CPU does not need it.
    from penstock.kernels.cuda.choosing import chooser
    from penstock.kernels.cuda.graphs import sizes_for
    from penstock.kernels.cuda.operations import implementations
    from penstock.kernels.cuda.place import INTERPRETED, place_on

    # Tokens whose logits are edited are chosen by the native kernels.
    this_processor().use(config.threads, config.instruction_set)
    limits = config.scheduler
    place = place_on(
        torch.device(config.device),
        config.longest,
        most_rows=limits.max_num_seqs,
        deterministic=config.deterministic,
    )
    place.use()

    def loaded(
        model: ModelConfig, checkpoint: Checkpoint, declaration: ModelDeclaration, progress: Progress
    ) -> LoadedWeights:
        dtype = TORCH_DTYPES[model.dtype]
        packing = DevicePacking(model.quantization, model.quantize_head, place.device, place.fp8)
        try:
            if model.load_format == "dummy":
                return LoadedWeights(
                    dummy_weights(declaration, dtype, _DUMMY_SEED, packing=packing, device=place.device)
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
    if config.cache.wish is not None and memory is None:
        memory = DeviceMemory(place.device)
    return Backend(
        implementations=implementations(place),
        load=loaded,
        storage=lambda spec, blocks, swapped: DeviceKVStorage(spec, blocks, place.device, swapped),
        choose=chooser(place),
        memory=memory,
        graph_sizes=sizes_for(limits.max_num_seqs),
        notes=notes,
        identity=_computed_by(place.device, deterministic=config.deterministic),
    )


def _computed_by(device: torch.device, *, deterministic: bool) -> str:
    """The GPU, what has compiled its kernels and multiplies matrices, and the order of sums."""
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreted"
    order = "one order" if deterministic else "any order"
    return f"{name}, torch {torch.__version__}, triton {triton.__version__}, {order}"
