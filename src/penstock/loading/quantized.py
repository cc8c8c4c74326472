"""Quantized weights of Hugging Face checkpoints: which tensors of the files are one weight together.

What a tensor is follows from the names and shapes of its parts, so that each layer may have bits and groups of its own;
of what is declared (`quantization_config.py`) only the method counts, and what shapes do not tell.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import ModelFileError, UnsupportedModel
from penstock.core.shares import Share
from penstock.layers.weights import HeadCut, HeadRows
from penstock.loading.safetensors import TensorEntry

# How the parts of a weight are called, behind the weight's own name or its module's.
_PACKED_BY_METHOD = {"gptq": ".qweight", "awq": ".qweight", "compressed-tensors": ".weight_packed"}
METHODS = (*_PACKED_BY_METHOD, "fp8", "fbgemm_fp8", "bitsandbytes", "mxfp4")
_MXFP4 = ".weight_blocks"
_BYTES = ("I8", "F8_E4M3", "F8_E5M2")
_FLOATS = ("float32", "float16", "bfloat16")
_MOST_BITS = 8
_LARGEST_SIDE = 1 << 31
# What scales of activations and of the KV cache are called, which are kept in more bits here.
INERT = ("*.input_scale", "*.output_scale", "*.k_scale", "*.v_scale", "*.q_scale", "*.input_zero_point")


@dataclass(frozen=True, slots=True)
class QuantizedEntry:
    """A weight that several tensors are.

    Attributes:
        name: what the weight would be called if it was one tensor.
        layout: "gptq", "gptq_v2", "awq", "packed", "scaled", "table", "rows", "affine" or "mxfp4"; `loading.tensors`
            reads each.
        shape: of the weight.
        bits: of a number.
        parts: the tensors, by what they are in the layout.
        block: for "scaled" the rows and columns that share a scale.
        group: how many inputs share a scale of integers that kernels may take; 0 where groups differ in that.
        group_of: the group of each input, in int32, where those of a group do not stand together.
        rows, cut, share, over: as those of `TensorEntry`.
    """

    name: str
    layout: str
    shape: tuple[int, ...]
    bits: int
    parts: Mapping[str, TensorEntry]
    block: tuple[int, int] = (1, 1)
    group: int = 0
    group_of: bytes = b""
    rows: HeadRows | None = None
    cut: HeadCut | None = None
    share: Share | None = None
    over: Share | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that make up the weight."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def dtype(self) -> str:
        """Layout and width of the integers, in words for users."""
        return f"{self.layout} of {self.bits} bits"


Entry = TensorEntry | QuantizedEntry
Reader = Callable[[TensorEntry], bytes]


def combined(
    tensors: Mapping[str, TensorEntry], method: str, declared: Mapping[str, Any], read: Reader
) -> dict[str, Entry]:
    """The tensors of the files with those that are one weight put together.

    Args:
        tensors: by name.
        method, declared: as `read_quantization` gives them.
        read: the bytes of a small tensor.

    Raises ModelFileError for a weight where a part is missing or does not fit the others.
    """
    left: dict[str, Entry] = dict(tensors)
    suffix = _PACKED_BY_METHOD.get(method)
    for name, entry in tensors.items():
        found: QuantizedEntry | None = None
        if suffix is not None and name.endswith(suffix):
            module = name.removesuffix(suffix)
            if method == "gptq":
                found = _gptq(module, tensors, declared, read)
            elif method == "awq":
                found = _awq(module, tensors, read)
            else:
                found = _packed(module, tensors, declared, read)
        elif name.endswith(".weight") and entry.dtype in _BYTES and method != "bitsandbytes":
            found = _scaled(name, tensors, declared)
        elif name.endswith(".weight") and entry.dtype in ("I8", "U8") and method == "bitsandbytes":
            found = _rows(name, tensors) if entry.dtype == "I8" else _table(name, tensors, read)
        elif name.endswith(".weight") and entry.dtype == "U32" and method == "mlx":
            found = _affine(name, tensors, declared)
        elif name.endswith(_MXFP4) and method == "mxfp4":
            found = _mxfp4(name.removesuffix(_MXFP4), tensors)
        if found is not None:
            for part in found.parts.values():
                left.pop(part.name, None)
            if found.name in left:
                raise ModelFileError(
                    f"The checkpoint has {found.name} both as it is and quantized; remove one of them."
                )
            left[found.name] = found
    return left


def _part(tensors: Mapping[str, TensorEntry], name: str, weight: str, *dtypes: str) -> TensorEntry:
    entry = tensors.get(name)
    if entry is None:
        raise _lacks(weight, name)
    if entry.dtype not in dtypes:
        raise ModelFileError(f"Tensor {name} is stored as {entry.dtype}; it must be {' or '.join(dtypes)}.")
    return entry


def _lacks(weight: str, name: str) -> ModelFileError:
    return ModelFileError(f"{weight} is quantized, but the checkpoint lacks {name}; download it again.")


def _said(declared: Mapping[str, Any], key: str, otherwise: Any) -> set[Any]:
    """What compressed-tensors' groups of layers say of their weights, where they say something."""
    groups = declared.get("config_groups")
    found = set()
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        said = weights.get(key, otherwise) if isinstance(weights, dict) else otherwise
        found.add(said if isinstance(said, (int, str, bool)) else otherwise)
    return found or {otherwise}


def _misfit(entry: TensorEntry, other: TensorEntry) -> ModelFileError:
    return ModelFileError(
        f"Tensors {entry.name} of shape {list(entry.shape)} and {other.name} of shape {list(other.shape)} do not "
        "belong to one weight; download the checkpoint again."
    )


def _matrix(entry: TensorEntry) -> tuple[int, int]:
    if len(entry.shape) != 2 or 0 in entry.shape or max(entry.shape) > _LARGEST_SIDE:
        raise ModelFileError(f"Tensor {entry.name} has shape {list(entry.shape)}; it must be a matrix.")
    return entry.shape[0], entry.shape[1]


def _group(scales: TensorEntry, inputs: int, groups: int, order: TensorEntry | None, read: Reader) -> tuple[int, bytes]:
    """How many inputs share a scale, 0 where groups differ in that; each input's group, where they stand apart."""
    if order is None:
        if inputs % groups != 0:
            raise ModelFileError(f"{inputs} inputs cannot be in the {groups} equal groups that {scales.name} is for.")
        return inputs // groups, b""
    group_of, size = read(order), inputs // groups
    # Most files that have an order have the one that goes without saying.
    if group_of == b"".join(group.to_bytes(4, "little") * size for group in range(groups)):
        return size, b""
    counts = Counter(memoryview(group_of).cast("i"))
    equal = set(counts) == set(range(groups)) and set(counts.values()) == {size}
    return (size, group_of) if equal else (0, b"")


def _bits(words: int, count: int) -> int:
    """The bits of each of `count` integers in `words` words; 0 where that cannot be, or cannot be told."""
    # Fewer integers than a word has bits may take the same number of words although they are wider by one bit.
    bits = words * 32 // count if count >= 32 else 0
    return bits if 1 <= bits <= _MOST_BITS and -(-count * bits // 32) == words else 0


def _gptq(module: str, tensors: Mapping[str, TensorEntry], declared: Mapping[str, Any], read: Reader) -> QuantizedEntry:
    name = f"{module}.weight"
    words = _part(tensors, f"{module}.qweight", name, "I32")
    zeros = _part(tensors, f"{module}.qzeros", name, "I32")
    scales = _part(tensors, f"{module}.scales", name, *_FLOATS)
    (rows, outputs), (groups, columns) = _matrix(words), _matrix(scales)
    if columns != outputs:
        raise _misfit(words, scales)
    # The zeros' words alone say how wide integers are, whatever config.json says of most layers.
    bits = _bits(_matrix(zeros)[1], outputs)
    if bits == 0 or zeros.shape[0] != groups or rows * 32 % bits:
        raise _misfit(words, zeros)
    inputs = rows * 32 // bits
    parts = {"weights": words, "zeros": zeros, "scales": scales}
    order = tensors.get(f"{module}.g_idx")
    if order is None and declared.get("desc_act") is True:
        raise _lacks(name, f"{module}.g_idx")
    if order is not None:
        parts["group_of"] = _part(tensors, order.name, name, "I32")
        if order.shape != (inputs,):
            raise _misfit(words, order)
    group, group_of = _group(scales, inputs, groups, order, read)
    version = declared.get("checkpoint_format", declared.get("format", "gptq"))
    if version not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"The checkpoint is GPTQ in the format {version!r}; implemented: gptq, gptq_v2.")
    return QuantizedEntry(name, version, (outputs, inputs), bits, parts, group=group, group_of=group_of)


def _awq(module: str, tensors: Mapping[str, TensorEntry], read: Reader) -> QuantizedEntry:
    name = f"{module}.weight"
    words = _part(tensors, f"{module}.qweight", name, "I32")
    zeros = _part(tensors, f"{module}.qzeros", name, "I32")
    scales = _part(tensors, f"{module}.scales", name, *_FLOATS)
    (inputs, columns), (groups, outputs) = _matrix(words), _matrix(scales)
    if columns * 8 != outputs:
        raise _misfit(words, scales)
    if zeros.shape != (groups, columns):
        raise _misfit(words, zeros)
    parts = {"weights": words, "zeros": zeros, "scales": scales}
    group, _ = _group(scales, inputs, groups, None, read)
    return QuantizedEntry(name, "awq", (outputs, inputs), 4, parts, group=group)


def _packed(
    module: str, tensors: Mapping[str, TensorEntry], declared: Mapping[str, Any], read: Reader
) -> QuantizedEntry:
    name = f"{module}.weight"
    words = _part(tensors, f"{module}.weight_packed", name, "I32")
    scales = _part(tensors, f"{module}.weight_scale", name, *_FLOATS)
    sides = _part(tensors, f"{module}.weight_shape", name, "I64", "I32")
    outputs, columns = _matrix(words)
    width = 8 if sides.dtype == "I64" else 4
    if sides.nbytes != 2 * width:
        raise _misfit(words, sides)
    raw = read(sides)
    rows, inputs = (int.from_bytes(raw[at : at + width], "little", signed=True) for at in (0, width))
    bits = _bits(columns, inputs)
    # Older files leave bits of each word unused where integers are of 3, 5, 6 or 7 bits.
    if rows != outputs or bits == 0 or bits not in _said(declared, "num_bits", bits):
        raise ModelFileError(
            f"{module}.weight_shape says {rows} × {inputs}, which {words.name} of shape {list(words.shape)} cannot be."
        )
    if _matrix(scales)[0] != outputs:
        raise _misfit(words, scales)
    parts = {"weights": words, "scales": scales, "sides": sides}
    zeros = tensors.get(f"{module}.weight_zero_point")
    if zeros is None and _said(declared, "symmetric", True) == {False}:
        raise _lacks(name, f"{module}.weight_zero_point")
    if zeros is not None:
        parts["zeros"] = _part(tensors, zeros.name, name, "I32")
        if zeros.shape != (-(-outputs * bits // 32), scales.shape[1]):
            raise _misfit(words, zeros)
    order = tensors.get(f"{module}.weight_g_idx")
    if order is None and _said(declared, "actorder", None) == {"group"}:
        raise _lacks(name, f"{module}.weight_g_idx")
    if order is not None:
        parts["group_of"] = _part(tensors, order.name, name, "I32")
        if order.shape != (inputs,):
            raise _misfit(words, order)
    group, group_of = _group(scales, inputs, scales.shape[1], order, read)
    return QuantizedEntry(name, "packed", (outputs, inputs), bits, parts, group=group, group_of=group_of)


def _scaled(name: str, tensors: Mapping[str, TensorEntry], declared: Mapping[str, Any]) -> QuantizedEntry:
    values = tensors[name]
    outputs, inputs = _matrix(values)
    scale = f"{name}_scale_inv" if f"{name}_scale_inv" in tensors else f"{name}_scale"
    scales = _part(tensors, scale, name, *_FLOATS)
    parts = {"values": values, "scales": scales}
    zeros = tensors.get(f"{name}_zero_point")
    if zeros is None and _said(declared, "symmetric", True) == {False}:
        raise _lacks(name, f"{name}_zero_point")
    if zeros is not None:
        parts["zeros"] = _part(tensors, zeros.name, name, "I8")
        if zeros.shape != scales.shape:
            raise _misfit(scales, zeros)
    if math.prod(scales.shape) == 1:
        block = (outputs, inputs)
    elif scales.shape in ((outputs,), (outputs, 1)):
        block = (1, inputs)
    else:
        rows, columns = _matrix(scales)
        if rows == outputs:
            if inputs % columns != 0:
                raise _misfit(values, scales)
            block = (1, inputs // columns)
        else:
            block = _block_of(declared)
            if (-(-outputs // block[0]), -(-inputs // block[1])) != (rows, columns):
                raise _misfit(values, scales)
    return QuantizedEntry(name, "scaled", (outputs, inputs), 8, parts, block)


def _block_of(declared: Mapping[str, Any]) -> tuple[int, int]:
    """The sides of blocks that share a scale, as the FP8 or the compressed-tensors configuration has them."""
    sides = declared.get("weight_block_size")
    groups = declared.get("config_groups")
    if sides is None and isinstance(groups, dict):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, dict) else None
            sides = weights.get("block_structure") if isinstance(weights, dict) else None
            if sides is not None:
                break
    if not (isinstance(sides, list) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides)):
        raise ModelFileError(
            "config.json's quantization_config does not say the blocks of the scales: weight_block_size must be two "
            "sizes."
        )
    return sides[0], sides[1]


@dataclass(frozen=True, slots=True)
class TableState:
    """What bitsandbytes says of a weight: its shape, how many numbers share a magnitude, and, where magnitudes are
    quantized themselves, how many of those share one (else 0) and what is added to them.
    """

    shape: tuple[int, int]
    block: int
    nested: int
    offset: float


def table_state(raw: bytes, name: str) -> TableState:
    """The state in a tensor of JSON; raises ModelFileError where it is none."""
    try:
        said = json.loads(raw)
        (rows, columns), block, nested = said["shape"], said["blocksize"], said.get("nested_blocksize", 0)
        offset = float(said.get("nested_offset", 0.0))
        sound = all(type(side) is int and 0 < side < _LARGEST_SIDE for side in (rows, columns, block))
        sound = sound and type(nested) is int and 0 <= nested < _LARGEST_SIDE and math.isfinite(offset)
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise ModelFileError(f"Tensor {name} does not describe a matrix of four bits; download it again.")
    return TableState((rows, columns), block, nested, offset)


def _table(name: str, tensors: Mapping[str, TensorEntry], read: Reader) -> QuantizedEntry:
    codes = tensors[name]
    states = [f"{name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")]
    found = _part(tensors, next((each for each in states if each in tensors), states[0]), name, "U8")
    state = table_state(read(found), found.name)
    count = math.prod(state.shape)
    blocks = -(-count // state.block)
    table = _part(tensors, f"{name}.quant_map", name, "float32")
    largest = _part(tensors, f"{name}.absmax", name, "U8" if state.nested else "float32")
    if codes.nbytes != -(-count // 2) or table.shape != (16,) or math.prod(largest.shape) != blocks:
        raise _misfit(codes, largest)
    parts = {"codes": codes, "table": table, "largest": largest, "state": found}
    if state.nested:
        outer = _part(tensors, f"{name}.nested_absmax", name, "float32")
        parts |= {"nested_table": _part(tensors, f"{name}.nested_quant_map", name, "float32"), "nested_largest": outer}
        if parts["nested_table"].shape != (256,) or math.prod(outer.shape) != -(-blocks // state.nested):
            raise _misfit(largest, outer)
    return QuantizedEntry(name, "table", state.shape, 4, parts)


def _rows(name: str, tensors: Mapping[str, TensorEntry]) -> QuantizedEntry:
    values = tensors[name]
    outputs, _ = _matrix(values)
    largest = _part(tensors, f"{name.removesuffix('.weight')}.SCB", name, "float32")
    if largest.shape != (outputs,):
        raise _misfit(values, largest)
    parts = {"values": values, "largest": largest}
    order = f"{name.removesuffix('.weight')}.weight_format"
    if order in tensors:
        parts["order"] = _part(tensors, order, name, "U8")
    return QuantizedEntry(name, "rows", (outputs, values.shape[1]), 8, parts)


def _mxfp4(module: str, tensors: Mapping[str, TensorEntry]) -> QuantizedEntry:
    """OCP's: nibbles [outputs, blocks, 16], and an exponent for each block of 32 inputs."""
    name = f"{module}.weight"
    nibbles, exponents = (_part(tensors, f"{name}_{part}", name, "U8") for part in ("blocks", "scales"))
    if len(nibbles.shape) != 3 or nibbles.shape[2] != 16 or nibbles.shape[:2] != exponents.shape or not nibbles.nbytes:
        raise _misfit(nibbles, exponents)
    parts = {"nibbles": nibbles, "exponents": exponents}
    return QuantizedEntry(name, "mxfp4", (nibbles.shape[0], nibbles.shape[1] * 32), 4, parts)


def _affine(name: str, tensors: Mapping[str, TensorEntry], declared: Mapping[str, Any]) -> QuantizedEntry:
    """MLX's: words along the inputs, and for each group of them a scale and what is added."""
    module = name.removesuffix(".weight")
    words, scales = tensors[name], _part(tensors, f"{module}.scales", name, *_FLOATS)
    biases = _part(tensors, f"{module}.biases", name, *_FLOATS)
    (outputs, columns), (rows, groups) = _matrix(words), _matrix(scales)
    if rows != outputs or biases.shape != scales.shape:
        raise _misfit(words, scales if rows != outputs else biases)
    group, said = (_declared_size(module, declared, key) for key in ("group_size", "bits"))
    inputs = groups * group
    if inputs * said != columns * 32:
        raise ModelFileError(
            f"config.json says that {name} has {said} bits in groups of {group}, but it has {columns} words and "
            f"{groups} groups in a row; download both again."
        )
    parts = {"weights": words, "scales": scales, "biases": biases}
    return QuantizedEntry(name, "affine", (outputs, inputs), said, parts)


def _declared_size(module: str, declared: Mapping[str, Any], key: str) -> int:
    """A whole number that is said of all modules, or of one."""
    own = declared.get(module)
    found = own.get(key, declared.get(key)) if isinstance(own, dict) else declared.get(key)
    largest = _MOST_BITS if key == "bits" else _LARGEST_SIDE
    if type(found) is not int or not 1 <= found <= largest:
        raise ModelFileError(
            f"config.json's quantization has {key} = {found!r:.80} for {module}; it must be a whole number from 1 to "
            f"{largest}."
        )
    return found
