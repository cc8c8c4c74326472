"""What a GPU's memory is used for, as torch and the driver tell it."""

import gc

import torch

from penstock.core.devices import MemoryReading


class DeviceMemory:
    """Reads the memory of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def settle(self) -> MemoryReading:
        """What is there once all that was launched is done and nothing is kept for later; the peak begins anew."""
        # Programs and their graphs refer to one another.
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        return self.read()

    def read(self) -> MemoryReading:
        """What is there once all that was launched is done, with what is kept for later."""
        torch.cuda.synchronize(self._device)
        free, _ = torch.cuda.mem_get_info(self._device)
        return MemoryReading(
            free, torch.cuda.memory_reserved(self._device), torch.cuda.max_memory_reserved(self._device)
        )


def memory_ended(error: BaseException) -> bool:
    """Whether an error of torch says that a GPU's memory has ended: its allocator's, CUDA's or a library's."""
    told = str(error)
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in told or "ALLOC_FAILED" in told
