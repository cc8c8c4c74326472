"""Ranks on GPUs, which meet by torch.distributed: NCCL carries values, or gloo where kernels are interpreted."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.errors import EngineError

# What is told by gloo stays on this machine, whatever its name is to others.
_LOOPBACK = "lo"
# For how long a rank waits for another one. What ends or stops is seen long before, by those that started it.
PATIENCE = timedelta(minutes=10)


def create_meeting() -> int:
    """A file in memory by which ranks find each other; returns its descriptor, which their processes inherit."""
    return os.memfd_create("penstock-meeting")


class DeviceRanks:
    """This rank among those whose devices compute a model (`kernels.ranks.Ranks`).

    A process is part of one such group at a time: when it joins one, that of an engine before ends.
    """

    def __init__(
        self,
        descriptor: int,
        rank: int,
        size: int,
        device: torch.device,
        *,
        deterministic: bool = False,
        choices: Callable[[str, int], NDArray[np.int64] | None] = lambda _layer, _experts: None,
    ) -> None:
        """`descriptor` is of `create_meeting`'s file, and stays the caller's.

        With `deterministic`, sums are in the order of ranks and in float32, so that a row's bits do not depend on the
        number of rows, by which libraries choose how to add up.
        """
        self.choices = choices
        self._rank, self._size, self._deterministic = rank, size, deterministic
        self._at_meeting: Callable[[], None] = _nothing
        self._device = device
        self._file = os.dup(descriptor)

    def join(self) -> None:
        """Wait until all ranks are there; before, none can be met. Raises EngineError where they do not come."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self._device)
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
        if dist.is_initialized():
            dist.destroy_process_group()
        try:
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                # All have the same file, by whatever number. It is opened anew each time that it is read.
                store=dist.FileStore(f"/proc/self/fd/{self._file}", self._size),  # type: ignore[attr-defined]
                rank=self._rank,
                world_size=self._size,
                timeout=PATIENCE,
                device_id=self._device if on_gpu else None,
            )
        except (dist.DistError, RuntimeError) as error:
            raise EngineError(f"The devices of {self._size} ranks did not find each other: {error}") from error

    @property
    def handle(self) -> None:
        """Native programs do not compute on devices."""

    def sum(self, x: Tensor) -> Tensor:
        """What all ranks have, added up, in the type of x."""
        self._at_meeting()
        if not self._deterministic:
            total = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total
        first, *others = self._all(x)
        wide = first.float()
        for other in others:
            wide = wide + other
        return wide.to(x.dtype)

    def gather(self, x: Tensor, widths: Sequence[int], *, everywhere: bool) -> Tensor:
        """The columns of all ranks beside each other; not `everywhere`, other ranks than the first have anything."""
        self._at_meeting()
        # What is told has one size.
        alike = F.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        if everywhere:
            parts: Sequence[Tensor] = self._all(alike)
        elif self._rank == 0:
            parts = [torch.empty_like(alike) for _ in widths]
            dist.gather(alike, list(parts), dst=0)
        else:
            dist.gather(alike, dst=0)
            return x.new_empty((len(x), sum(widths)))
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def share(self, x: Tensor) -> None:
        """Have the first rank's x in all of them, in its place."""
        dist.broadcast(x, src=0)

    def _all(self, x: Tensor) -> list[Tensor]:
        """What each rank has, in their order."""
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self._size)]
        dist.all_gather(parts, x.contiguous())
        return parts

    def at_meeting(self, action: Callable[[], None] | None) -> None:
        """Have this done each time a meeting is launched, or nothing any more; graphs launch theirs without it."""
        self._at_meeting = action or _nothing

    def part(self) -> None:
        """Nothing: where a rank is lost, the engine's process ends, whatever its device waits for."""


def _nothing() -> None:
    pass
