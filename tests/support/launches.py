"""Which variants of Triton's kernels are launched: what it would compile anew for, seen under its interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

Variant = tuple[str, tuple[object, ...]]
_ALIGNMENT = 16
# What gives token ids.
_CARRIED_OUT = ("scan_kernel", "narrow_kernel", "choose_kernel", "carry_kernel")
_RESULTS = {"output", "y", "normed", "total", "result", "numbers"}


@contextmanager
def launched() -> Iterator[set[Variant]]:
    """The variants that are launched while the block runs, as a set that grows; all but choices give ones.

    What is launched does not depend on what is computed, which the interpreter would take long for.

    A variant is a kernel with its constants, the types of its tensors and whether they begin at multiples of 16 bytes,
    and of whole numbers, but for those that it is told not to, whether they are 1 or multiples of 16.
    """
    found: set[Variant] = set()
    run = InterpretedFunction.run

    def recorded(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        spared = kernel.kwargs["do_not_specialize"] or ()
        given = dict(zip(kernel.arg_names, args, strict=False))
        kinds = tuple((name, _kind(value, name in spared)) for name, value in given.items())
        found.add((kernel.__name__, (*kinds, *((name, str(value)) for name, value in sorted(constants.items())))))
        if kernel.__name__ in _CARRIED_OUT:
            return run(kernel, *args, grid=grid, warmup=warmup, **constants)
        for name in _RESULTS & given.keys():
            given[name].fill_(1)
        return None

    with mock.patch.object(InterpretedFunction, "run", recorded):
        yield found


def _kind(value: object, spared: bool) -> tuple[object, ...]:
    if isinstance(value, Tensor):
        return str(value.dtype), value.data_ptr() % _ALIGNMENT == 0
    if isinstance(value, int):
        return ("whole", value >= 2**31, *(() if spared else (value == 1, value % _ALIGNMENT == 0)))
    return (type(value).__name__,)
