"""How several models share a machine's memory."""

from collections.abc import Sequence

import msgspec

from penstock.configuration.pool_size import WORKSPACE_BYTES, gib
from penstock.core.config import Reason
from penstock.core.errors import InsufficientMemory


class Need(msgspec.Struct, frozen=True):
    """What a model takes of the processor's memory, in bytes.

    Attributes:
        name: of the model.
        weights: those that draft for it among them.
        smallest: the least pool for keys and values; 0: it keeps none.
        most: of what is left for pools, what it has use for.
        asked: the pool that was asked for; None: a share of what is left.
    """

    name: str
    weights: int
    smallest: int = 0
    most: int = 2**63
    asked: int | None = None

    @property
    def least(self) -> int:
        """What it cannot do without."""
        return self.weights + WORKSPACE_BYTES + (self.smallest if self.asked is None else self.asked)

    def __str__(self) -> str:
        pool = self.least - self.weights - WORKSPACE_BYTES
        parts = [f"{gib(self.weights)} of weights", f"{gib(WORKSPACE_BYTES)} of working space"]
        parts += [f"{gib(pool)} of KV pool{' at least' if self.asked is None else ''}"] if pool else []
        return f"{self.name!r} needs {gib(self.least)} ({', '.join(parts)})"


def share_memory(available: int, needs: Sequence[Need]) -> list[int]:
    """Bytes that each model may use.

    Weights, working space and pools that were asked for are taken off first. What is left goes in equal parts to the
    models whose pools have no size yet; what one of them has no use for goes to the others. Raises InsufficientMemory
    where that does not fit.
    """
    sharing = [number for number, need in enumerate(needs) if need.smallest and need.asked is None]
    left = available - sum(need.least for need in needs) + sum(needs[number].smallest for number in sharing)
    parts, fits = dict.fromkeys(sharing, 0), left >= 0
    # Those that can use least come first, so that what they leave is shared by all others.
    for done, number in enumerate(sorted(sharing, key=lambda number: needs[number].most)):
        parts[number] = min(left // (len(sharing) - done), needs[number].most)
        fits = fits and parts[number] >= needs[number].smallest
        left -= parts[number]
    if not fits:
        raise InsufficientMemory(
            f"The models do not fit into the {gib(max(available, 0))} of memory that are available: "
            f"{'; '.join(map(str, needs))}. Serve fewer of them, or take smaller ones, or --quantization int8 or int4."
        )
    return [
        need.least if number not in parts else need.least - need.smallest + parts[number]
        for number, need in enumerate(needs)
    ]


def told_memory(available: int, taken: Sequence[tuple[str, int]]) -> Reason:
    """What models take at most, by name, of what is available."""
    value = " + ".join(f"{name} {gib(size)}" for name, size in taken)
    why = f"weights, {gib(WORKSPACE_BYTES)} of working space each, and KV pools, of {gib(available)} available"
    return Reason("memory", value, why)
