"""Sines and cosines of positions, as a table."""

import torch
from torch import Tensor

from penstock.kernels.places import Sines

_BASE = 10000.0


def sine_table(sines: Sines) -> Tensor:
    """float32 [count, width]: for each position the sines of its angles, then their cosines."""
    positions = torch.arange(sines.skipped, sines.skipped + sines.count, dtype=torch.float64)
    columns = torch.arange(sines.width // 2, dtype=torch.float64)
    angles = positions[:, None] * _BASE ** (-columns / sines.spread)
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()
