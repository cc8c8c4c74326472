"""Obviously right implementations of every operation in torch, which the others are tested against."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.collective import AllReduce, Gather, GatherRows, MergeStripes, ShareRows
from penstock.kernels.dispatch import Binding, Implementation, Kernel, StepState, fits_always, scale_factor
from penstock.kernels.meeting import all_reduce, gather, gather_rows, in_ranks, share_rows
from penstock.kernels.mixing import choices_of, mix, route
from penstock.kernels.reference_attention import (
    attention,
    merge_stripes,
    row_attention,
    source_attention,
    split_heads,
    takes_slots,
    write_kv,
)
from penstock.kernels.rope import cosines_and_sines
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
    PlainActivationName,
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


def rms_norm(x: Tensor, weight: Tensor, eps: float, unit_offset: bool) -> Tensor:
    """RmsNorm over the last dimension, in float32."""
    wide = x.float()
    quotient = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (quotient * (1.0 + weight.float())).to(x.dtype)
    return weight * quotient.to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last dimension, in float32; rounded once, at the end."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    quotient = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    scaled = quotient * weight.float()
    return (scaled if bias is None else scaled + bias.float()).to(x.dtype)


def query_factors(op: QueryScale, positions: Tensor) -> Tensor:
    """What queries at each position are multiplied by, in float32."""
    return 1.0 + op.beta * torch.log1p((positions // op.context).float())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] turned by angles whose cos and sin are [tokens, head_dim / 2]."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _embedding(op: Embedding, binding: Binding) -> Kernel:
    table = binding.tensor(op.weight)
    if op.ids is not None:
        return lambda step: rows_of_part(table, step.batch.token_ids - op.first)
    return lambda step: table[step.batch.token_ids]


def rows_of_part(table: Tensor, places: Tensor) -> Tensor:
    """Rows of a table at their places, zeros where it has none."""
    there = (places >= 0) & (places < len(table))
    return torch.where(there[:, None], table[places.clamp(0, len(table) - 1)], 0)


def _positions(op: Positions, binding: Binding) -> Kernel:
    table = binding.tensor(op.weight)
    return lambda step: table[step.batch.positions]


def _sinusoids(op: Sinusoids, binding: Binding) -> Kernel:
    table = sine_table(op.sines).to(binding.dtype)
    return lambda step: table[step.batch.positions]


def _types(op: Types, binding: Binding) -> Kernel:
    table = binding.tensor(op.weight)

    def run(step: StepState) -> Tensor:
        types = step.batch.types
        return table[torch.zeros_like(step.batch.token_ids) if types is None else types]

    return run


def _linear(op: Linear, binding: Binding) -> Kernel:
    weight = binding.tensor(op.weight)
    bias = None if op.bias is None else binding.tensor(op.bias)
    return lambda _step, x: F.linear(x, weight, bias)


def head_linear(x: Tensor, weight: Tensor, heads: int) -> Tensor:
    """x [rows, heads · inputs] times each head's matrix of the weight [heads · outputs, inputs]."""
    each = x.unflatten(1, (heads, -1)).transpose(0, 1)
    return torch.bmm(each, weight.unflatten(0, (heads, -1)).transpose(1, 2)).transpose(0, 1).flatten(1)


def _head_linear(op: HeadLinear, binding: Binding) -> Kernel:
    weight = binding.tensor(op.weight)
    return lambda _step, x: head_linear(x, weight, op.heads)


def takes_plain(op: Linear | HeadLinear | Embedding | Positions | Types | Route, binding: Binding) -> str | None:
    """`supports` of what needs its weight as a tensor."""
    return None if isinstance(binding.weight(op.weight), Tensor) else "the weight is packed"


def _rms_norm(op: RmsNorm, binding: Binding) -> Kernel:
    weight = binding.tensor(op.weight)
    return lambda _step, x: rms_norm(x, weight, op.eps, op.unit_offset)


def _layer_norm(op: LayerNorm, binding: Binding) -> Kernel:
    weight, bias = binding.tensor(op.weight), None if op.bias is None else binding.tensor(op.bias)
    return lambda _step, x: layer_norm(x, weight, bias, op.eps)


def _add_rms_norm(op: AddRmsNorm, binding: Binding) -> Kernel:
    weight = binding.tensor(op.weight)

    def run(_step: StepState, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return rms_norm(total, weight, op.eps, op.unit_offset), total

    return run


def _head_norm(op: HeadNorm, binding: Binding) -> Kernel:
    query_weight, key_weight = binding.tensor(op.query_weight), binding.tensor(op.key_weight)

    def run(_step: StepState, qkv: Tensor) -> Tensor:
        query, key, value = split_heads(qkv, op.heads)
        if op.whole:
            query, key = query.flatten(1), key.flatten(1)
        query = rms_norm(query, query_weight, op.eps, op.unit_offset)
        key = rms_norm(key, key_weight, op.eps, op.unit_offset)
        if op.values:
            value = rms_norm(value, value.new_ones(op.heads.head_dim), op.eps, False)
        return torch.cat((query.flatten(1), key.flatten(1), value.flatten(1)), dim=1)

    return run


def _rotary(op: Rotary, _binding: Binding) -> Kernel:
    def run(step: StepState, qkv: Tensor) -> Tensor:
        query, key, value = split_heads(qkv, op.heads)
        cos, sin = (part.to(qkv.dtype) for part in cosines_and_sines(op.rope, step.batch.positions))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        values = () if op.heads.latent else (value.flatten(1),)
        return torch.cat((query.flatten(1), key.flatten(1), *values), dim=1)

    return run


def _query_scale(op: QueryScale, _binding: Binding) -> Kernel:
    width = op.heads.query_width

    def run(step: StepState, qkv: Tensor) -> Tensor:
        factors = query_factors(op, step.batch.positions)[:, None]
        return torch.cat(((qkv[:, :width].float() * factors).to(qkv.dtype), qkv[:, width:]), dim=1)

    return run


def activate(x: Tensor, activation: PlainActivationName) -> Tensor:
    """The activation of that name, elementwise; `silu`, ReLU, or GELU by tanh or as it is."""
    if activation == "relu":
        return F.relu(x)
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def gated(gate_up: Tensor, name: GateName) -> Tensor:
    """What a gate makes of [gates | ups], half as wide."""
    gate, up = gate_up.chunk(2, dim=1)
    if name != "swigluoai":
        return activate(gate, name) * up
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1.0) * (gate * torch.sigmoid(gate * 1.702))


def _gated_activation(op: GatedActivation, _binding: Binding) -> Kernel:
    return lambda _step, gate_up: gated(gate_up, op.activation)


def _sigmoid_gate(_op: SigmoidGate, _binding: Binding) -> Kernel:
    return lambda _step, x, gate: (x.float() * torch.sigmoid(gate.float())).to(x.dtype)


def _route(op: Route, binding: Binding) -> Kernel:
    weight = binding.tensor(op.weight).float()
    bias, correction, scales = (
        None if ref is None else binding.tensor(ref).float() for ref in (op.bias, op.correction, op.scales)
    )
    return lambda _step, x: route(F.linear(x.float(), weight, bias), correction, op.routing, scales)


def _experts(op: Experts, binding: Binding) -> Kernel:
    gate_ups, downs = (binding.tensor(ref).unflatten(0, (op.experts, -1)) for ref in (op.gate_up, op.down))
    gate_up_biases, down_biases = (
        None if ref is None else binding.tensor(ref).unflatten(0, (op.experts, -1))
        for ref in (op.gate_up_bias, op.down_bias)
    )

    placement, choices = op.placement, choices_of(op, binding)

    def mlp(rows: Tensor, expert: int) -> Tensor:
        both = F.linear(rows, gate_ups[expert], None if gate_up_biases is None else gate_up_biases[expert])
        return F.linear(gated(both, op.activation), downs[expert], None if down_biases is None else down_biases[expert])

    return lambda _step, x, routed: mix(x, routed, mlp, placement, choices)


def takes_plain_experts(op: Experts, binding: Binding) -> str | None:
    """`supports` of what needs the weights of experts as tensors."""
    plain = all(isinstance(binding.weight(ref), Tensor) for ref in (op.gate_up, op.down))
    return None if plain else "the weights are packed"


def _activation(op: Activation, _binding: Binding) -> Kernel:
    return lambda _step, x: activate(x, op.activation)


def _add(_op: Add, _binding: Binding) -> Kernel:
    return lambda _step, x, y: x + y


def _concatenate(op: Concatenate, _binding: Binding) -> Kernel:
    heads = op.heads, -1
    return lambda _step, x, y: torch.cat((x.unflatten(1, heads), y.unflatten(1, heads)), dim=2).flatten(1)


def _columns(op: Columns, _binding: Binding) -> Kernel:
    return lambda _step, x: x.unflatten(1, (op.heads, -1))[:, :, op.first : op.first + op.count].flatten(1)


def _scale(op: Scale, binding: Binding) -> Kernel:
    factor = scale_factor(op, binding)
    return lambda _step, x: x * factor


def _soft_cap(op: SoftCap, _binding: Binding) -> Kernel:
    return lambda _step, x: op.cap * torch.tanh(x / op.cap)


def _select_rows(op: SelectRows, _binding: Binding) -> Kernel:
    def of_share(step: StepState, x: Tensor) -> Tensor:
        assert op.stripe is not None
        whole = x.new_zeros((len(step.batch.token_ids), x.shape[1]))
        whole[op.stripe.rows(len(whole))] = x
        return whole[step.batch.logit_rows]

    return of_share if op.stripe is not None else lambda step, x: x[step.batch.logit_rows]


def _reference(operation: Any, prepare: Any, supports: Any = fits_always, row_function: bool = True) -> Implementation:
    return Implementation("reference", operation, row_function, supports, prepare)


REFERENCE: tuple[Implementation, ...] = (
    _reference(Embedding, _embedding, takes_plain),
    _reference(Positions, _positions, takes_plain),
    _reference(Sinusoids, _sinusoids),
    _reference(Types, _types, takes_plain),
    # Matrix products of torch choose their inner loops by the number of rows.
    _reference(Linear, _linear, takes_plain, row_function=False),
    _reference(HeadLinear, _head_linear, takes_plain, row_function=False),
    _reference(RmsNorm, _rms_norm),
    _reference(LayerNorm, _layer_norm),
    _reference(AddRmsNorm, _add_rms_norm),
    _reference(HeadNorm, _head_norm),
    _reference(Rotary, _rotary),
    _reference(QueryScale, _query_scale),
    _reference(WriteKV, write_kv, takes_slots),
    _reference(Attention, attention, takes_slots),
    # Its products' inner loops depend on the row's length alone.
    _reference(SourceAttention, source_attention, takes_slots),
    _reference(RowAttention, row_attention),
    # Where a thread's share ends, torch computes the last few values by another routine than full vectors.
    _reference(GatedActivation, _gated_activation, row_function=False),
    _reference(SigmoidGate, _sigmoid_gate, row_function=False),
    _reference(Route, _route, takes_plain, row_function=False),
    _reference(Experts, _experts, takes_plain_experts, row_function=False),
    _reference(Activation, _activation, row_function=False),
    _reference(Add, _add),
    _reference(Concatenate, _concatenate),
    _reference(Columns, _columns),
    _reference(Scale, _scale),
    _reference(SoftCap, _soft_cap),
    _reference(SelectRows, _select_rows),
    _reference(AllReduce, all_reduce, in_ranks),
    _reference(Gather, gather, in_ranks),
    _reference(MergeStripes, merge_stripes),
    _reference(ShareRows, share_rows),
    _reference(GatherRows, gather_rows, in_ranks),
)
