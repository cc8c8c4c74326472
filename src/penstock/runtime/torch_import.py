"""What is left out of the import of torch."""

import sys
from types import ModuleType

_META_KERNELS = "torch._meta_registrations"


def leave_out_meta_kernels() -> None:
    """Let torch be imported without its meta kernels in Python, which take a third of the import.

    They say what shapes operations have on tensors without data, for torch.compile and torch.export. Nothing here uses
    these. Called where a process of Penstock's own starts, before it imports torch; afterwards it changes nothing.
    """
    if "torch" not in sys.modules:
        sys.modules[_META_KERNELS] = ModuleType(_META_KERNELS)
