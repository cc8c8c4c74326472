"""Which kernels compute on this machine's processor: the native ones, or torch's where those cannot run."""

from dataclasses import dataclass

import torch

from penstock.core.errors import ConfigurationError
from penstock.core.kv import KV_BYTES, KVSpec
from penstock.kernels.cpu.native import OBSTACLE, native
from penstock.kernels.cpu.operations import NATIVE, kv_layout
from penstock.kernels.dispatch import Implementation, KVLayout
from penstock.kernels.reference import REFERENCE
from penstock.kernels.torch.operations import TORCH


@dataclass(frozen=True, slots=True, eq=False)
class ProcessorKernels:
    """Kernels that belong together, for weights and KV pools in this process's memory.

    Attributes:
        implementations: of operations, the fastest first.
        obstacle: why the native kernels are not among them; None where they are.
    """

    implementations: tuple[Implementation, ...]
    obstacle: str | None = None

    @property
    def native(self) -> bool:
        """Whether the native kernels compute, for which weights are packed and KV pools are laid out."""
        return self.obstacle is None

    @property
    def identity(self) -> str:
        """The kernels and instructions in use: others may give other bits."""
        return f"native, {native.instruction_set()}" if self.native else f"torch {torch.__version__}"

    def kv_layout(self, spec: KVSpec, dtype: torch.dtype) -> KVLayout:
        """How the pool of a model of `dtype` is laid out.

        Raises ConfigurationError where it has bytes, and no kernels take them.
        """
        layout: KVLayout = kv_layout(spec, dtype) if self.native else "slots"
        if layout == "slots" and any(plane.dtype in KV_BYTES.values() for plane in spec.planes[:1]):
            why = self.obstacle or f"the native kernels take heads of an even size, not of {spec.planes[0].shape[-1]}"
            raise ConfigurationError(f"--kv-cache-dtype int8, fp8 and int4 are not possible here: {why}.")
        return layout

    def use(self, threads: int, instruction_set: str = "auto") -> None:
        """Have this process compute with these threads and instructions.

        Raises ConfigurationError where the processor, or this build, has no such instructions.
        """
        torch.set_num_threads(threads)
        if not self.native:
            return
        native.set_threads(threads)
        there = native.instruction_sets()
        if instruction_set != "auto" and instruction_set not in there:
            raise ConfigurationError(
                f"--instruction-set {instruction_set} is not possible here; there are {', '.join(there)}."
            )
        native.use_instruction_set(there[0] if instruction_set == "auto" else instruction_set)

    def use_threads(self, threads: int) -> None:
        """Have what computes use a number of threads from the next operation on."""
        (native.set_threads if self.native else torch.set_num_threads)(threads)


def torch_alone(obstacle: str) -> ProcessorKernels:
    """A processor on which torch computes, and why the native kernels do not."""
    return ProcessorKernels((*TORCH, *REFERENCE), obstacle)


def this_processor() -> ProcessorKernels:
    """The fastest kernels that can run in this installation."""
    return ProcessorKernels((*NATIVE, *TORCH, *REFERENCE)) if OBSTACLE is None else torch_alone(OBSTACLE)
