"""A rank among those that have parts of the same layers, or of contexts."""

import torch

from penstock.core.config import EngineConfig, RanksConfig
from penstock.parallel.device_ranks import DeviceRanks
from penstock.parallel.shared import SharedRanks


def met_at(descriptor: int, config: EngineConfig, ranks: RanksConfig, rank: int) -> SharedRanks | DeviceRanks:
    """A rank among those that meet where this descriptor says; `config` has its own device."""
    own, size = rank % ranks.together, ranks.together
    if config.device == "cpu":
        return SharedRanks(descriptor, own, size)
    # Triton takes a second to import.
    from penstock.kernels.cuda.place import INTERPRETED

    device = torch.device("cpu" if INTERPRETED else config.device)
    return DeviceRanks(descriptor, own, size, device, deterministic=config.deterministic)
