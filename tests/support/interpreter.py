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
    from triton.language import core, semantic
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
    _to_ir = core.block_type.to_ir
    _equal_type = core.dtype.__eq__
    _unwrapped = core._unwrap_if_constexpr
    _convert_float = interpreter._convert_float
    _np_dtype_of = cache(lambda name: _NP_DTYPE(getattr(tl, name)))
    _NP_DTYPE = interpreter._get_np_dtype
    _NAMES = {getattr(tl, name).name: name for name in dir(tl) if isinstance(getattr(tl, name), core.dtype)}
    _POINTER = np.dtype(np.uint64)
    _blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    _shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def same(self: Any, other: Any) -> Any:
        return core.constexpr(True) if self is other else _equal(self, other)

    def same_type(self: Any, other: Any) -> Any:
        return self is other or _equal_type(self, other)

    def unwrapped(value: Any) -> Any:
        return value if type(value) is core.tensor or type(value) is int else _unwrapped(value)

    def np_dtype(kind: Any) -> Any:
        scalar = kind.scalar
        return _POINTER if isinstance(scalar, core.pointer_type) else _np_dtype_of(_NAMES[scalar.name])

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        key = (element_ty.name, getattr(element_ty, "address_space", None), sizes)
        found = _blocks.get(key)
        if found is None:
            _init_block_type(self, element_ty, list(sizes))
            if sizes not in _shapes:
                _shapes[sizes] = core.tuple(list(map(core.constexpr, sizes))), core.constexpr(self.numel)
            # What a value of the type has, and this shape of other elements: all types that are equal share them.
            self.sizes, self.of_value, self.others = sizes, (element_ty, *_shapes[sizes]), {}
            _blocks[key] = dict(vars(self))
        else:
            vars(self).update(found)

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        key = (scalar_ty.name, getattr(scalar_ty, "address_space", None))
        if key not in self.others:
            self.others[key] = core.block_type(scalar_ty, self.shape)
        return self.others[key]

    def to_ir(self: Any, builder: Any) -> Any:
        if None not in self.others:
            self.others[None] = _to_ir(self, builder)
        return self.others[None]

    _NO_SHAPE = core.tuple([]), core.constexpr(1)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type = handle, type
        self.dtype, self.shape, self.numel = type.of_value if type.is_block() else (type.scalar, *_NO_SHAPE)

    def convert_float(values: Any, given: Any, wanted: Any, rounding: Any) -> Any:
        """float32 and bfloat16, which is its upper half; rounded otherwise than to nearest, it is cut off."""
        if given is tl.bfloat16 and wanted is tl.float32:
            return values.view(np.uint16).astype(np.uint32) << np.uint32(16)
        if given is tl.float32 and wanted is tl.bfloat16 and rounding is None:
            return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return _convert_float(values, given, wanted, rounding)

    def fits(values: Any, kind: Any) -> bool:
        """Whether no value has more bits than its type."""
        return isinstance(kind, core.pointer_type) or values.itemsize <= (kind.itemsize or 1)

    # An operation's operands are brought to one type and shape. Mostly they have one, or one of them is a number.
    _checked = semantic.TritonSemantic.binary_op_type_checking_impl
    _scalar_constant = semantic.TritonSemantic.scalar_constant
    _broadcast = semantic.TritonSemantic.broadcast_impl_value
    _constants: dict[tuple[Any, str], Any] = {}

    def scalar_constant(self: Any, value: Any, dtype: Any) -> Any:
        if value != value or dtype is None or dtype.name not in _NAMES:
            return _scalar_constant(self, value, dtype)
        found = _constants.get((value, dtype.name))
        if found is None:
            found = _constants[value, dtype.name] = _scalar_constant(self, value, dtype).handle.data
        return core.tensor(interpreter.TensorHandle(found, dtype), dtype)

    @cache
    def common(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape that both are brought to; None where Triton adds an axis, or refuses."""
        if len(left) != len(right) or any(
            one != two and 1 not in (one, two) for one, two in zip(left, right, strict=True)
        ):
            return None
        return tuple(map(max, left, right))

    def spread(value: Any, type: Any) -> Any:
        scalar = value.handle.dtype.scalar
        return core.tensor(interpreter.TensorHandle(np.broadcast_to(value.handle.data, type.sizes), scalar), type)

    def same_shape(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block() and right.is_block():
            if left.sizes == right.sizes:
                return lhs, rhs
            sizes = common(left.sizes, right.sizes)
            if sizes is not None:
                if left.sizes != sizes:
                    lhs = spread(lhs, core.block_type(left.scalar, sizes))
                return lhs, rhs if right.sizes == sizes else spread(rhs, core.block_type(right.scalar, sizes))
        return _broadcast(self, lhs, rhs)

    def checked(self: Any, lhs: Any, rhs: Any, *pointers: bool, **options: bool) -> Any:
        """Numbers take the type of a value of their kind, and two values of one type keep it."""
        division = len(pointers) > 2 or options
        if not division and isinstance(lhs, core.tensor):
            mine, other = lhs.dtype, type(rhs)
            if other is core.tensor and mine is rhs.dtype and not mine.is_ptr():
                return same_shape(self, lhs, rhs)
            if (other is int and mine is tl.int32 and -(2**31) <= rhs < 2**31) or (
                other is float and mine is tl.float32
            ):
                return same_shape(self, lhs, scalar_constant(self, rhs, mine))
            if other is core.tensor and mine.is_ptr() and pointers[:1] == (True,) and rhs.dtype.is_int():
                return same_shape(self, lhs, rhs)
        return _checked(self, lhs, rhs, *pointers, **options)

    def patch_attr(owner: Any, name: str, member: Any, _builder: Any, scope: Any) -> None:
        """A function of the language for whatever calls it; it is not asked whether a compiler does."""
        plain, own = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

        def called(*operands: Any, _semantic: Any = None, **options: Any) -> Any:
            return plain(*operands, **options, _semantic=own)

        scope.set_attr(owner, name, called)

    core.tuple.__eq__ = same  # type: ignore[method-assign]
    core.block_type.__init__ = init_block_type  # type: ignore[method-assign]
    core.block_type.with_element_ty = with_element_ty  # type: ignore[method-assign]
    core.block_type.to_ir = to_ir  # type: ignore[method-assign]
    core.dtype.__eq__ = same_type  # type: ignore[method-assign]
    core._unwrap_if_constexpr = unwrapped
    core.tensor.__init__ = init_tensor  # type: ignore[method-assign]
    interpreter._get_np_dtype = np_dtype
    interpreter._convert_float = convert_float
    interpreter._validate_np_data_size = fits
    interpreter._patch_attr = patch_attr
    semantic.TritonSemantic.binary_op_type_checking_impl = checked  # type: ignore[method-assign]
    semantic.TritonSemantic.broadcast_impl_value = same_shape  # type: ignore[method-assign]
    semantic.TritonSemantic.scalar_constant = scalar_constant  # type: ignore[method-assign]
