"""What Triton's interpreter does otherwise than any GPU, put right where this is imported."""

import os
from typing import Any

if os.environ.get("TRITON_INTERPRET") == "1":
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    _matmul = np.matmul
    _create_dot = InterpreterBuilder.create_dot

    def _by_rows(left: Any, right: Any, **options: Any) -> Any:
        """Each row by a product of its own: some libraries add up those at a tile's end in another order."""
        if left.ndim != 2:
            return _matmul(left, right, **options)
        return _matmul(left[:, None, :], right[None], **options)[:, 0, :]

    def create_dot(self: Any, *operands: Any) -> Any:
        """`tl.dot`, in which a row's bits do not depend on where in its tile it stands."""
        np.matmul = _by_rows  # type: ignore[assignment]
        try:
            return _create_dot(self, *operands)
        finally:
            np.matmul = _matmul  # type: ignore[assignment]

    InterpreterBuilder.create_dot = create_dot
