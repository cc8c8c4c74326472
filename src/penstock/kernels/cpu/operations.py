"""What each operation becomes in a native program."""

from typing import Any, TypedDict

import torch
from torch import Tensor

from penstock.core.kv import KVSpec
from penstock.core.shares import Stripe
from penstock.kernels.bias import bias_table
from penstock.kernels.collective import AllReduce, Gather, GatherRows, MergeStripes, ShareRows
from penstock.kernels.cpu.form import PANEL
from penstock.kernels.cpu.program import NativeCall, ProgramBuilder, Registers
from penstock.kernels.cpu.weights import NativeLinear
from penstock.kernels.dispatch import Binding, Implementation, KVLayout, scale_factor
from penstock.kernels.kv_bytes import kind_of, raw
from penstock.kernels.meeting import in_ranks
from penstock.kernels.mixing import choices_of
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import (
    Activation,
    Add,
    AddRmsNorm,
    Attention,
    Columns,
    Concatenate,
    Embedding,
    Experts,
    GatedActivation,
    GateName,
    HeadLinear,
    HeadNorm,
    LayerNorm,
    Linear,
    Positions,
    QueryScale,
    RmsNorm,
    Rotary,
    Route,
    RowAttention,
    Scale,
    SelectRows,
    SigmoidGate,
    Sinusoids,
    SoftCap,
    SourceAttention,
    Types,
    WriteKV,
)
from penstock.kernels.sines import sine_table

_DTYPES = (torch.float32, torch.bfloat16)
# What keys and values are kept as.
_KEPT = ("float32", "bfloat16", "int8", "float8_e4m3fn", "uint8")
# What a layer keeps, in the order in which native code takes it.
_PLANES = ("key", "value", "key_scale", "value_scale")
# Positions of a tile of the cache; a block is a multiple of them.
_TILE = 16


class _Reads(TypedDict):
    """What is said of weights that an operation reads."""

    weight_bytes: int
    unpacks: bool


def _reads(weight: NativeLinear) -> _Reads:
    unpacks = any(form.format == "int4" for form, _ in weight.form.pieces(weight.shape[0]))
    return {"weight_bytes": weight.memory.nbytes, "unpacks": unpacks}


def kv_layout(spec: KVSpec, dtype: torch.dtype) -> KVLayout:
    """How to lay out keys and values for a model of `dtype`: for the native kernels where they take such."""
    if dtype not in _DTYPES or spec.block_size % _TILE:
        return "slots"
    known = all(
        plane.name in _PLANES and (plane.name in _PLANES[2:] or plane.dtype in _KEPT and plane.shape[-1] % 2 == 0)
        for plane in spec.planes
    )
    return "tiles" if known else "slots"


def _supports(_op: object, binding: Binding) -> str | None:
    return None if binding.dtype in _DTYPES else f"there is no native kernel for {binding.dtype}"


def _supports_packed(op: Linear, binding: Binding) -> str | None:
    packed = isinstance(binding.weight(op.weight), NativeLinear)
    return _supports(op, binding) if packed else "the weight is not packed for it"


def _supports_whole(op: Experts | Route | HeadLinear, binding: Binding) -> str | None:
    refs = (op.gate_up, op.down) if isinstance(op, Experts) else (op.weight,)
    for ref in refs:
        weight = binding.weight(ref)
        if not isinstance(weight, NativeLinear) or len(weight.handles) != 1:
            return "the weights are not packed for it"
    return _supports(op, binding)


def _supports_embedding(op: Embedding | Positions | Types, binding: Binding) -> str | None:
    weight = binding.weight(op.weight)
    plain = isinstance(weight, Tensor) and weight.dtype in _DTYPES
    if plain or (isinstance(op, Embedding) and isinstance(weight, NativeLinear)):
        return _supports(op, binding)
    return "there is no native kernel for such an embedding"


def _supports_cache(op: WriteKV | Attention | SourceAttention, binding: Binding) -> str | None:
    tiles = binding.kv.layout == "tiles"
    return _supports(op, binding) if tiles else "the cache is laid out for other kernels"


def _norm_weight(binding: Binding, ref: WeightRef, unit_offset: bool) -> Tensor:
    weight = binding.tensor(ref).float()
    return (1.0 + weight if unit_offset else weight).contiguous()


def _floats(binding: Binding, ref: WeightRef | None) -> Tensor | None:
    """A vector as native code takes it, in float32; None where there is none."""
    return None if ref is None else binding.tensor(ref).float().contiguous()


def _embedding(op: Embedding, binding: Binding) -> NativeCall:
    weight = binding.weight(op.weight)
    if isinstance(weight, NativeLinear):
        handle = weight.handle
        return NativeCall(lambda builder, _, y: builder.program.embedding(handle, y[0], op.first, op.ids))
    table = binding.tensor(op.weight)
    return NativeCall(lambda builder, _, y: builder.program.plain_embedding(table, y[0], op.first, op.ids))


def _positions(op: Positions, binding: Binding) -> NativeCall:
    table = binding.tensor(op.weight)
    return NativeCall(lambda builder, _, y: builder.program.positions(table, *y))


def _sinusoids(op: Sinusoids, _binding: Binding) -> NativeCall:
    table = sine_table(op.sines)
    return NativeCall(lambda builder, _, y: builder.program.positions(table, *y))


def _types(op: Types, binding: Binding) -> NativeCall:
    table = binding.tensor(op.weight)
    return NativeCall(lambda builder, _, y: builder.program.types(table, *y))


def _linear(op: Linear, binding: Binding) -> NativeCall:
    weight = binding.weight(op.weight)
    assert isinstance(weight, NativeLinear)
    bias, reads = _floats(binding, op.bias), _reads(weight)

    def add(builder: ProgramBuilder, x: Registers, y: Registers) -> None:
        (source,), (target,), first = x, y, 0
        for handle, (_, count) in zip(weight.handles, weight.form.pieces(weight.shape[0]), strict=True):
            own = None if bias is None else bias[first : first + count]
            builder.program.linear(handle, own, source, target, first, weight.shape[0])
            first += count

    def with_gate(gate: GateName) -> NativeCall:
        return NativeCall(
            lambda builder, x, y: builder.program.gated_linear(weight.handle, bias, gate, *x, *y), **reads
        )

    whole = len(weight.handles) == 1 and weight.shape[0] % (2 * PANEL) == 0
    return NativeCall(add, with_gate=with_gate if whole else None, **reads)


def _head_linear(op: HeadLinear, binding: Binding) -> NativeCall:
    weight = binding.weight(op.weight)
    assert isinstance(weight, NativeLinear)
    return NativeCall(
        lambda builder, x, y: builder.program.head_linear(weight.handle, op.heads, *x, *y), **_reads(weight)
    )


def _rms_norm(op: RmsNorm, binding: Binding) -> NativeCall:
    weight = _norm_weight(binding, op.weight, op.unit_offset)
    return NativeCall(lambda builder, x, y: builder.program.rms_norm(weight, op.eps, *x, *y), reuses=(0,))


def _layer_norm(op: LayerNorm, binding: Binding) -> NativeCall:
    weight, bias = binding.tensor(op.weight).float().contiguous(), _floats(binding, op.bias)
    return NativeCall(lambda builder, x, y: builder.program.layer_norm(weight, bias, op.eps, *x, *y), reuses=(0,))


def _add_rms_norm(op: AddRmsNorm, binding: Binding) -> NativeCall:
    weight = _norm_weight(binding, op.weight, op.unit_offset)
    return NativeCall(lambda builder, x, y: builder.program.add_rms_norm(weight, op.eps, *x, *y), reuses=(0, 1))


def _head_norm(op: HeadNorm, binding: Binding) -> NativeCall:
    query = _norm_weight(binding, op.query_weight, op.unit_offset)
    key = _norm_weight(binding, op.key_weight, op.unit_offset)
    heads = op.heads.query_heads, op.heads.kv_heads, op.heads.head_dim

    def add(builder: ProgramBuilder, x: Registers, y: Registers) -> None:
        builder.program.head_norm(*heads, query, key, op.values, op.eps, *x, *y)

    return NativeCall(add, reuses=(0,))


def _rotary(op: Rotary, binding: Binding) -> NativeCall:
    table, heads = binding.rope_table(op.rope), op.heads
    sizes = heads.query_heads, heads.kv_heads, heads.head_dim

    def add(builder: ProgramBuilder, x: Registers, y: Registers) -> None:
        builder.program.rotary(*sizes, builder.rope(table), binding.selected, *x, *y, stripe=_pair(binding.stripe))

    return NativeCall(add, reuses=(0,), by_row=binding.stripe is None)


def _query_scale(op: QueryScale, binding: Binding) -> NativeCall:
    settings = op.heads.query_heads, op.heads.kv_heads, op.heads.head_dim, op.beta, op.context, binding.selected
    stripe = _pair(binding.stripe)
    return NativeCall(
        lambda builder, x, y: builder.program.query_scale(*settings, *x, *y, stripe=stripe),
        reuses=(0,),
        by_row=binding.stripe is None,
    )


def _cache(op: WriteKV | Attention | SourceAttention, binding: Binding) -> tuple[list[Tensor], str, str, int]:
    """The layer's planes in the order that native code takes, what they keep, what attention multiplies, its table."""
    planes = binding.kv.planes(op.layer)
    kept = kind_of(planes)
    dtype = str(binding.dtype if kept != "plain" else planes["key"].dtype).removeprefix("torch.")
    return [raw(planes[name]) for name in _PLANES if name in planes], kept, dtype, binding.kv.table_of(op.layer)


def _pair(stripe: Stripe | None) -> tuple[int, int]:
    """As native code takes it: which rank it is of, and how many there are."""
    return (0, 1) if stripe is None else (stripe.rank, stripe.size)


def _write_kv(op: WriteKV, binding: Binding) -> NativeCall:
    planes, kept, dtype, table = _cache(op, binding)
    heads, stripe = (op.heads.query_heads, op.heads.kv_heads), _pair(op.stripe)

    def add(builder: ProgramBuilder, x: Registers, _: Registers) -> None:
        builder.program.write_kv(*heads, planes, kept, dtype, table, *x, stripe=stripe)

    return NativeCall(add, reuses=(), by_row=False)


def _attention(op: Attention, binding: Binding) -> NativeCall:
    planes, kept, dtype, table = _cache(op, binding)
    heads, scale, window, softcap = op.heads.query_heads, op.scale, op.window or 0, op.softcap or 0.0
    own, stripe = (_floats(binding, op.sinks), bias_table(op, binding), binding.selected), _pair(op.stripe)

    def add(builder: ProgramBuilder, x: Registers, y: Registers) -> None:
        builder.program.attention(
            heads, planes, kept, dtype, table, scale, window, softcap, *own, *x, *y, stripe=stripe
        )

    return NativeCall(add, by_row=False)


def _source_attention(op: SourceAttention, binding: Binding) -> NativeCall:
    planes, kept, dtype, table = _cache(op, binding)
    heads, scale, selected = op.heads.query_heads, op.scale, binding.selected

    def add(builder: ProgramBuilder, x: Registers, y: Registers) -> None:
        builder.program.source_attention(heads, planes, kept, dtype, table, scale, selected, *x, *y)

    return NativeCall(add, by_row=False)


def _even_heads(op: RowAttention, binding: Binding) -> str | None:
    return "heads are not of an even size" if op.heads.head_dim % 2 else _supports(op, binding)


def _row_attention(op: RowAttention, binding: Binding) -> NativeCall:
    heads, dtype = op.heads, str(binding.dtype).removeprefix("torch.")
    settings = heads.query_heads, heads.kv_heads, heads.head_dim, dtype, op.scale, op.window or 0
    table = bias_table(op, binding)
    return NativeCall(lambda builder, x, y: builder.program.row_attention(*settings, table, *x, *y), by_row=False)


def _gated_activation(op: GatedActivation, _binding: Binding) -> NativeCall:
    activation = op.activation
    return NativeCall(lambda builder, x, y: builder.program.gated_activation(activation, *x, *y), gate=activation)


def _sigmoid_gate(_op: SigmoidGate, _binding: Binding) -> NativeCall:
    return NativeCall(lambda builder, x, y: builder.program.sigmoid_gate(*x, *y), reuses=(0,))


def _route(op: Route, binding: Binding) -> NativeCall:
    weight, routing = binding.weight(op.weight), op.routing
    assert isinstance(weight, NativeLinear)
    vectors = _floats(binding, op.bias), _floats(binding, op.correction), _floats(binding, op.scales)
    groups = routing.groups, routing.kept_groups, routing.best_of_group

    def add(builder: ProgramBuilder, x: Registers, y: Registers) -> None:
        builder.program.route(
            weight.handle,
            *vectors,
            routing.chosen,
            routing.score == "sigmoid",
            routing.renormalise,
            routing.epsilon,
            routing.scale,
            *groups,
            *x,
            *y,
        )

    return NativeCall(add, by_row=False)


def _experts(op: Experts, binding: Binding) -> NativeCall:
    gate_up, down = binding.weight(op.gate_up), binding.weight(op.down)
    assert isinstance(gate_up, NativeLinear) and isinstance(down, NativeLinear)
    weights = gate_up.handle, down.handle, _floats(binding, op.gate_up_bias), _floats(binding, op.down_bias)
    placement, choices = op.placement, choices_of(op, binding)
    placed = () if placement is None else (placement.holders, placement.group, placement.groups, choices)

    def add(builder: ProgramBuilder, x: Registers, y: Registers) -> None:
        builder.program.experts(*weights, op.experts, op.activation, x[0], x[1], y[0], *placed)

    return NativeCall(add, by_row=False)


def _activation(op: Activation, _binding: Binding) -> NativeCall:
    activation = op.activation
    return NativeCall(lambda builder, x, y: builder.program.activation(activation, *x, *y), reuses=(0,))


def _add(_op: Add, _binding: Binding) -> NativeCall:
    return NativeCall(lambda builder, x, y: builder.program.add(*x, *y), reuses=(0,))


def _concatenate(op: Concatenate, _binding: Binding) -> NativeCall:
    return NativeCall(lambda builder, x, y: builder.program.concatenate(op.heads, *x, *y))


def _columns(op: Columns, _binding: Binding) -> NativeCall:
    return NativeCall(lambda builder, x, y: builder.program.columns(op.heads, op.first, op.count, *x, *y))


def _scale(op: Scale, binding: Binding) -> NativeCall:
    factor = scale_factor(op, binding)
    return NativeCall(lambda builder, x, y: builder.program.scale(factor, *x, *y), reuses=(0,))


def _soft_cap(op: SoftCap, _binding: Binding) -> NativeCall:
    return NativeCall(lambda builder, x, y: builder.program.soft_cap(op.cap, *x, *y), reuses=(0,))


def _select_rows(op: SelectRows, _binding: Binding) -> NativeCall:
    stripe = _pair(op.stripe)
    return NativeCall(lambda builder, x, y: builder.program.select_rows(*x, *y, stripe=stripe), by_row=False)


def _all_reduce(_op: AllReduce, binding: Binding) -> NativeCall:
    assert binding.ranks is not None
    handle = binding.ranks.handle
    return NativeCall(lambda builder, x, y: builder.program.all_reduce(handle, *x, *y), reuses=(0,), by_row=False)


def _gather(op: Gather, binding: Binding) -> NativeCall:
    assert binding.ranks is not None
    settings, stripe = (binding.ranks.handle, op.widths, op.everywhere), _pair(op.stripe)
    return NativeCall(lambda builder, x, y: builder.program.gather(*settings, *x, *y, stripe=stripe), by_row=False)


def _share_rows(op: ShareRows, _binding: Binding) -> NativeCall:
    stripe = _pair(op.stripe)
    return NativeCall(lambda builder, x, y: builder.program.share_rows(*x, *y, stripe=stripe), by_row=False)


def _gather_rows(_op: GatherRows, binding: Binding) -> NativeCall:
    assert binding.ranks is not None
    handle = binding.ranks.handle
    return NativeCall(lambda builder, x, y: builder.program.gather_rows(handle, *x, *y), by_row=False)


def _merge_stripes(op: MergeStripes, binding: Binding) -> NativeCall:
    settings = op.query_heads, op.head_dim, op.ranks, _floats(binding, op.sinks)
    return NativeCall(lambda builder, x, y: builder.program.merge_stripes(*settings, *x, *y))


def _native(operation: Any, prepare: Any, supports: Any = _supports) -> Implementation:
    return Implementation("native", operation, True, supports, prepare)


NATIVE: tuple[Implementation, ...] = (
    _native(Embedding, _embedding, _supports_embedding),
    _native(Positions, _positions, _supports_embedding),
    _native(Sinusoids, _sinusoids),
    _native(Types, _types, _supports_embedding),
    _native(Linear, _linear, _supports_packed),
    _native(HeadLinear, _head_linear, _supports_whole),
    _native(RmsNorm, _rms_norm),
    _native(LayerNorm, _layer_norm),
    _native(AddRmsNorm, _add_rms_norm),
    _native(HeadNorm, _head_norm),
    _native(Rotary, _rotary),
    _native(QueryScale, _query_scale),
    _native(WriteKV, _write_kv, _supports_cache),
    _native(Attention, _attention, _supports_cache),
    _native(SourceAttention, _source_attention, _supports_cache),
    _native(RowAttention, _row_attention, _even_heads),
    _native(GatedActivation, _gated_activation),
    _native(SigmoidGate, _sigmoid_gate),
    _native(Route, _route, _supports_whole),
    _native(Experts, _experts, _supports_whole),
    _native(Activation, _activation),
    _native(Add, _add),
    _native(Concatenate, _concatenate),
    _native(Columns, _columns),
    _native(Scale, _scale),
    _native(SoftCap, _soft_cap),
    _native(SelectRows, _select_rows),
    _native(AllReduce, _all_reduce, in_ranks),
    _native(Gather, _gather, in_ranks),
    _native(MergeStripes, _merge_stripes),
    _native(ShareRows, _share_rows),
    _native(GatherRows, _gather_rows, in_ranks),
)
"""Every operation, natively."""
