"""Where the values of a list of calls are kept: values that are never needed at the same time share a register."""

from collections.abc import Collection, Sequence
from typing import Protocol

from penstock.kernels.tape import Value


class Call(Protocol):
    """Something that reads values and makes others; each value is made once."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the call reads."""

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that the call makes."""


Reuses = tuple[int | None, ...]
"""For each output of a call the input whose register it may take, or None."""


def last_uses(calls: Sequence[Call], wanted: Collection[Value]) -> list[tuple[Value, ...]]:
    """For each call, the values that nothing after it reads; those `wanted` in the end are never among them."""
    dying: list[tuple[Value, ...]] = []
    later = set(wanted)
    for call in reversed(calls):
        touched = dict.fromkeys((*call.inputs, *call.outputs))
        dying.append(tuple(value for value in touched if value not in later))
        later.update(touched)
    dying.reverse()
    return dying


def assign_registers(
    calls: Sequence[Call], reuses: Sequence[Reuses], given: Sequence[Value], wanted: Sequence[Value]
) -> dict[Value, int]:
    """The register of each value: those `wanted` have one for themselves, those `given` one from the start."""
    registers = {value: index for index, value in enumerate((*wanted, *given))}
    count = len(registers)
    free: list[int] = []
    for call, allowed, dying in zip(calls, reuses, last_uses(calls, wanted), strict=True):
        left = list(dying)
        for value, index in zip(call.outputs, allowed, strict=True):
            if value in registers:
                continue
            source = None if index is None else call.inputs[index]
            if source in left:
                left.remove(source)
                registers[value] = registers[source]
                continue
            if not free:
                free.append(count)
                count += 1
            registers[value] = free.pop()
        free.extend(registers[value] for value in left)
    return registers
