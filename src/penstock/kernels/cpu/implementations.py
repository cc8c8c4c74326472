"""Every operation that has a native kernel."""

from penstock.kernels.cpu.attention import ATTENTION
from penstock.kernels.cpu.linear import LINEAR
from penstock.kernels.cpu.rows import ROWS
from penstock.kernels.dispatch import Implementation

NATIVE: tuple[Implementation, ...] = (*LINEAR, *ROWS, *ATTENTION)
