"""How much was computed, so that a long step can be told from one that hangs."""

from penstock.kernels.cpu.native import OBSTACLE, native

_passed = 0


def pass_operation() -> None:
    """An operation that Python calls was computed; to be told by one thread only."""
    global _passed
    _passed += 1


def operations_done() -> int:
    """Operations that this process has computed so far; only ever rises. May be asked on any thread."""
    return _passed + (0 if OBSTACLE is not None else native.operations_done())
