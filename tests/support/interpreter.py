"""What Triton's interpreter does otherwise than any GPU, put right where this is imported, and what it does in vain."""

import os
from importlib.util import find_spec
from typing import Any

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if INTERPRETED and find_spec("triton") is not None:
    from dataclasses import replace
    from functools import cache

    import numpy as np
    import triton.language as tl
    from triton.language import core
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

    # Types and shapes are made anew for every value, which takes longer than what is computed; there are few of them.
    _equal = core.tuple.__eq__
    _init_block_type = core.block_type.__init__
    _convert_float = interpreter._convert_float
    _np_dtype_of = cache(lambda name: _NP_DTYPE(getattr(tl, name)))
    _NP_DTYPE = interpreter._get_np_dtype
    _NAMES = {getattr(tl, name).name: name for name in dir(tl) if isinstance(getattr(tl, name), core.dtype)}
    _POINTER = np.dtype(np.uint64)
    _blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    _shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def same(self: Any, other: Any) -> Any:
        return core.constexpr(True) if self is other else _equal(self, other)

    def np_dtype(kind: Any) -> Any:
        scalar = kind.scalar
        return _POINTER if isinstance(scalar, core.pointer_type) else _np_dtype_of(_NAMES[scalar.name])

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        key = (element_ty.name, getattr(element_ty, "address_space", None), sizes)
        found = _blocks.get(key)
        if found is None:
            _init_block_type(self, element_ty, shape)
            if sizes not in _shapes:
                _shapes[sizes] = core.tuple(list(map(core.constexpr, sizes))), core.constexpr(self.numel)
            _blocks[key] = dict(vars(self))
        else:
            vars(self).update(found)

    _NO_SHAPE = core.tuple([]), core.constexpr(1)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = _shapes[tuple(type.shape)] if type.is_block() else _NO_SHAPE

    def convert_float(values: Any, given: Any, wanted: Any, rounding: Any) -> Any:
        """float32 and bfloat16, which is its upper half; rounded otherwise than to nearest, it is cut off."""
        if given is tl.bfloat16 and wanted is tl.float32:
            return values.view(np.uint16).astype(np.uint32) << np.uint32(16)
        if given is tl.float32 and wanted is tl.bfloat16 and rounding is None:
            return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return _convert_float(values, given, wanted, rounding)

    core.tuple.__eq__ = same  # type: ignore[method-assign]
    core.block_type.__init__ = init_block_type  # type: ignore[method-assign]
    core.tensor.__init__ = init_tensor  # type: ignore[method-assign]
    interpreter._get_np_dtype = np_dtype
    interpreter._convert_float = convert_float
