"""The compiled module, or why there is none."""

import importlib
from typing import TYPE_CHECKING, Any

_MODULE = "penstock.kernels.cpu._native"


class _Absent:
    """Stands in for the module; code that uses it all the same is told why it is not there."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"native.{name} is not there: {self._reason}.")


def _load() -> tuple[Any, str | None]:
    try:
        return importlib.import_module(_MODULE), None
    except ModuleNotFoundError as error:
        if error.name != _MODULE:
            raise
        reason = "the native kernels were not built, for want of a C++ compiler: get one and install Penstock again"
    except ImportError as error:
        reason = f"the native kernels could not be loaded ({error})"
    return _Absent(reason), reason


OBSTACLE: str | None
"""Why the native kernels cannot be used in this installation; None where they can."""

if TYPE_CHECKING:
    from penstock.kernels.cpu import _native as native

    OBSTACLE = None
else:
    native, OBSTACLE = _load()

__all__ = ["OBSTACLE", "native"]
