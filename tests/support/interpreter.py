"""What Triton's interpreter does otherwise than any GPU, put right where this is imported, and what it does in vain."""

import os
from importlib.util import find_spec
from typing import Any

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if INTERPRETED and find_spec("triton") is not None:
    from dataclasses import replace
    from functools import cache

    import numpy as np
    from triton.runtime import interpreter

    _matmul = np.matmul
    _create_dot = interpreter.InterpreterBuilder.create_dot
    _patch_once = cache(interpreter._patch_lang)

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

    def patch_lang(function: Any) -> Any:
        """Triton's language becomes the interpreter's for good, at the first call of each function.

        The interpreter does it at every call, and undoes a part of it behind each launch.
        """
        _patch_once(function)
        return interpreter._LangPatchScope()

    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter._patch_lang = patch_lang
    # Whether sums of integers overflow is computed for assertions, which only `debug` lets it make.
    _builder = interpreter.interpreter_builder
    assert not _builder.options.debug
    _builder.options = replace(_builder.options, sanitize_overflow=False)
