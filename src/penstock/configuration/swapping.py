"""Where keys and values are beside the pool: of preempted sequences in memory, of prefixes on a disk."""

from collections.abc import Callable

from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.kv import KVSpec

# Bytes of the GPU's memory for the blocks that are copied at a time, and with the buffer that they are gathered in.
STAGED_BYTES = 64 << 20
STAGING_BYTES = 2 * STAGED_BYTES


def resolve_swap_space(
    asked: int | None, block_bytes: int, free: int | None, note: Callable[[str, object, str], None]
) -> int:
    """KV blocks in the processor's memory, which has `free` bytes; `free` is None where no GPU computes.

    Raises ConfigurationError where the memory that was `asked` for is of no use, InsufficientMemory where it is not
    there.
    """
    if not asked:
        note("swap space", "none", "a sequence that loses its KV blocks is computed again")
        return 0
    if free is None:
        raise ConfigurationError(
            "--swap-space is of GPUs alone: on the CPU the KV pool is in that memory already; give it to "
            "--kv-cache-memory instead."
        )
    blocks = asked // block_bytes
    if not blocks:
        raise ConfigurationError(
            f"--swap-space of {asked} bytes holds no KV block of this model; it must be at least {block_bytes}."
        )
    if asked > free:
        raise InsufficientMemory(
            f"--swap-space {asked / 2**30:.2f} GiB does not fit: of the processor's memory {free / 2**30:.2f} GiB are "
            "available; lower it."
        )
    why = "of the processor's memory, as asked; KV blocks of preempted sequences are copied there"
    note("swap space", f"{asked / 2**30:.2f} GiB ({blocks} blocks)", why)
    return blocks


def resolve_host_memory(
    asked: int | None,
    spec: KVSpec,
    left: int | None,
    *,
    caches: bool,
    note: Callable[[str, object, str], None],
) -> int:
    """KV blocks in the processor's memory for prefixes; `left` bytes of it are free beside what swapping takes.

    `left` is None where no GPU computes; `caches`: whether prefixes are cached at all. Raises ConfigurationError where
    the memory that was `asked` for is of no use, InsufficientMemory where it is not there.
    """
    if not asked:
        note("kv host memory", "none", "prefixes that the KV pool has given up are not kept in the processor's memory")
        return 0
    if left is None:
        raise ConfigurationError(
            "--kv-host-memory is of GPUs alone: on the CPU the KV pool is in that memory already; give it to "
            "--kv-cache-memory instead."
        )
    if not caches:
        raise ConfigurationError("--kv-host-memory is of no use: --no-enable-prefix-caching keeps no prefix.")
    blocks, least = asked // spec.block_bytes, spec.num_tables
    if blocks < least:
        raise ConfigurationError(
            f"--kv-host-memory of {asked} bytes holds no tokens of this model; it must be at least "
            f"{least * spec.block_bytes}."
        )
    if asked > left:
        raise InsufficientMemory(
            f"--kv-host-memory {asked / 2**30:.2f} GiB does not fit: of the processor's memory {left / 2**30:.2f} GiB "
            "are available beside --swap-space; lower one of them."
        )
    why = "of the processor's memory, as asked; prefixes that the KV pool gives up are kept there"
    note("kv host memory", f"{asked / 2**30:.2f} GiB ({blocks} blocks)", why)
    return blocks


# Of the disk, where nothing else is asked for.
DISK_BYTES = 10 << 30


def resolve_disk(
    folder: str | None, size: int | None, slot_bytes: int, why_not: str | None, note: Callable[[str, object, str], None]
) -> tuple[str | None, int]:
    """The folder for blocks of prefixes, and how many bytes they may take there.

    `slot_bytes` is what a block of tokens takes, `why_not` a reason that forbids a folder. Raises ConfigurationError.
    """
    if folder is None:
        if size is not None:
            raise ConfigurationError("--kv-disk has a size and no folder; give it one, as in --kv-disk DIR:20GiB.")
        note("kv disk", "none", "prefixes are cached in the KV pool, until it needs the room or the server ends")
        note("kv disk size", "none", "nothing is kept on a disk")
        return None, 0
    if why_not is not None:
        raise ConfigurationError(f"--kv-disk {folder} is of no use: {why_not}.")
    most = DISK_BYTES if size is None else size
    if most < slot_bytes:
        raise ConfigurationError(
            f"--kv-disk {folder} may take {most} bytes, and one block of this model takes {slot_bytes}; give it more."
        )
    note("kv disk", folder, "as asked: prefixes are kept there beyond the KV pool, and found again after a restart")
    why = "by default; another size is given with a colon behind the folder" if size is None else "as asked"
    note("kv disk size", f"{most / 2**30:.2f} GiB", why)
    return folder, most
