"""How much of the processor's memory takes what preempted sequences have computed."""

from collections.abc import Callable

from penstock.core.errors import ConfigurationError, InsufficientMemory

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
