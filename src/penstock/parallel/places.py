"""Where ranks of a machine meet, as descriptors that their processes inherit.

Nothing here imports torch, which takes a while: ranks are started before.
"""

import os

from penstock.parallel.beating import memory_bytes


def create_memory(size: int) -> int:
    """Memory in which `size` ranks meet, all zero; returns its descriptor."""
    descriptor = os.memfd_create("penstock-ranks")
    os.ftruncate(descriptor, memory_bytes(size))
    return descriptor


def create_meeting() -> int:
    """A file in memory by which ranks on GPUs find each other; returns its descriptor."""
    return os.memfd_create("penstock-meeting")
