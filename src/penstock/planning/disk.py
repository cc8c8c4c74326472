"""What a disk beside the KV pool holds of a model's prefixes, and from which length on reading them is faster."""

from collections.abc import Sequence

import msgspec

from penstock.planning.efficiency import Efficiency
from penstock.planning.latency import Deployment, prefill_step

# Tokens of a block, since only whole ones are kept; and of a step, in which prompts are computed.
_BLOCK, _STEP = 16, 2048
_LENGTHS = (256, 1024, 4096, 16384, 65536)
# The longest prefix that is looked at, where a model does not say what it was made for.
_LONGEST = 65536


class Disk(msgspec.Struct, frozen=True):
    """A disk that keeps prefixes.

    Attributes:
        size: bytes that they may take.
        read, write: bytes a second.
    """

    size: float
    read: float
    write: float


class PrefixTimes(msgspec.Struct, frozen=True):
    """Milliseconds until a prompt of `tokens` tokens and a block more is computed: all of it, or with those read."""

    tokens: int
    computed_ms: float
    read_ms: float


class DiskTold(msgspec.Struct, frozen=True):
    """What a plan tells of a disk.

    Attributes:
        token_bytes: that a token takes there while no window is full; `record_bytes` that a sequence takes beside,
            whatever its length.
        tokens: that fit, if none takes more than that.
        written_per_second: tokens that can be written in a second; what is computed faster is not all kept.
        prefixes: how long it takes to read prefixes of several lengths, and to compute them.
        pays_from: tokens of the shortest prefix that is read faster than computed; None: none is.
    """

    token_bytes: int
    record_bytes: int
    tokens: int
    written_per_second: float
    prefixes: list[PrefixTimes]
    pays_from: int | None


def disk_told(deployment: Deployment, efficiency: Efficiency, disk: Disk) -> DiskTold:
    """What a disk would be to one replica."""
    # Each device has a part of a token's state, or a copy where heads are few.
    token = deployment.shape.kept_values(1, deployment.sharing) * deployment.cache.bytes * deployment.sharing
    longest = deployment.shape.max_context or _LONGEST
    lengths = [length for length in _LENGTHS if length + _BLOCK <= longest]
    return DiskTold(
        token_bytes=round(token),
        record_bytes=round(deployment.state_bytes * deployment.sharing),
        tokens=int(disk.size / token) if token else 0,
        written_per_second=disk.write / token if token else 0.0,
        prefixes=[_times(deployment, efficiency, disk, length) for length in lengths],
        pays_from=_pays_from(deployment, efficiency, disk, range(_BLOCK, longest, _BLOCK)),
    )


def _times(deployment: Deployment, efficiency: Efficiency, disk: Disk, length: int) -> PrefixTimes:
    reading = deployment.cache_bytes(length) * deployment.sharing / disk.read
    last = prefill_step(deployment, efficiency, _BLOCK, length).seconds
    computed = sum(
        prefill_step(deployment, efficiency, min(_STEP, length + _BLOCK - start), start).seconds
        for start in range(0, length + _BLOCK, _STEP)
    )
    return PrefixTimes(length, computed * 1e3, (reading + last) * 1e3)


def _pays_from(deployment: Deployment, efficiency: Efficiency, disk: Disk, lengths: Sequence[int]) -> int | None:
    """The shortest of ascending lengths that is read faster, where each longer one is, too."""
    low, high = 0, len(lengths)
    while low < high:
        middle = (low + high) // 2
        times = _times(deployment, efficiency, disk, lengths[middle])
        low, high = (low, middle) if times.read_ms < times.computed_ms else (middle + 1, high)
    return lengths[low] if low < len(lengths) else None
