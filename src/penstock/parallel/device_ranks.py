"""Ranks on GPUs, which meet by torch.distributed: NCCL carries values, or gloo where kernels are interpreted."""

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.errors import EngineError

# What gloo carries stays on this machine.
_LOOPBACK = "lo"
# For how long a rank waits for another one. What ends or stops is seen long before, by those that started it.
PATIENCE = timedelta(minutes=10)


class DeviceRanks:
    """This rank among those whose devices compute a model (`kernels.ranks.Ranks`)."""

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
        """`descriptor` is of `places.create_meeting`'s file, and stays the caller's.

        With `deterministic`, sums are in the order of ranks and in float32, so that a row's bits do not depend on the
        number of rows, by which libraries choose how to add up.
        """
        self.choices = choices
        self._rank, self._size, self._deterministic = rank, size, deterministic
        self._at_meeting: Callable[[], None] = _nothing
        self._device = device
        self._file = os.dup(descriptor)
        # A group of its own, beside any that the program has, once it has met; its class depends on the device.
        self._groups: list[Any] = []
        # Its threads have to end before the interpreter does.
        weakref.finalize(self, self._groups.clear)
        self._parted = False

    def join(self) -> None:
        """Wait until all ranks are there; before, none can be met. Raises EngineError where they do not come."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        try:
            # All have the same file, by whatever number. It is opened anew each time that it is read.
            store = dist.FileStore(f"/proc/self/fd/{self._file}", self._size)  # type: ignore[attr-defined]
            store.set_timeout(PATIENCE)
            self._groups.append(_group_on(self._device, store, self._rank, self._size))
        except (dist.DistError, RuntimeError) as error:
            raise EngineError(f"The devices of {self._size} ranks did not find each other: {error}") from error

    @property
    def handle(self) -> None:
        """Native programs do not compute on devices."""

    def sum(self, x: Tensor) -> Tensor:
        """What all ranks have, added up, in the type of x."""
        if not self._deterministic:
            total = x.clone(memory_format=torch.contiguous_format)
            self._met().allreduce([total]).wait()
            return total
        first, *others = self._all(x)
        wide = first.float()
        for other in others:
            wide = wide + other
        return wide.to(x.dtype)

    def gather(self, x: Tensor, widths: Sequence[int], *, everywhere: bool) -> Tensor:
        """The columns of all ranks beside each other; not `everywhere`, other ranks than the first have anything."""
        # What is told has one size.
        alike = F.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        if everywhere:
            parts = self._all(alike)
        else:
            parts = [torch.empty_like(alike) for _ in widths] if self._rank == 0 else []
            options = dist.GatherOptions()
            options.rootRank = 0
            self._met().gather([parts] if parts else [], [alike], options).wait()
        if not parts:
            return x.new_empty((len(x), sum(widths)))
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def share(self, x: Tensor) -> None:
        """Have the first rank's x in all of them, in its place."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._met().broadcast([x], options).wait()

    def _all(self, x: Tensor) -> list[Tensor]:
        """What each rank has, in their order."""
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self._size)]
        self._met().allgather([parts], [x.contiguous()]).wait()
        return parts

    def _met(self) -> Any:
        """The group, in which others are about to be met. Raises EngineError where one of them has ended."""
        self._at_meeting()
        if self._parted or not self._groups:
            raise EngineError("A rank has ended, or has not come, without which nothing can be computed.")
        return self._groups[0]

    def at_meeting(self, action: Callable[[], None] | None) -> None:
        """Have this done each time a meeting is launched, or nothing any more; graphs launch theirs without it."""
        self._at_meeting = action or _nothing

    def part(self) -> None:
        """Let what waits for other ranks end: its results are nothing, and none can be met any more."""
        self._parted = True
        # Gloo sees by itself that a rank has ended; NCCL's kernels wait on the device.
        for group in self._groups if self._device.type == "cuda" else ():
            group.abort()


def _group_on(device: torch.device, store: Any, rank: int, size: int) -> Any:
    """Those who meet by a store, once all are there."""
    if device.type == "cuda":
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = PATIENCE
        group = nccl(store, rank, size, options)
        group.eager_connect_single_device(device)
        return group
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = PATIENCE
    options._devices = [gloo.create_device(interface=_LOOPBACK)]
    return gloo(store, rank, size, options)


def _nothing() -> None:
    pass
