"""One operation alone, as a native program on random inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.kernels.batch import StepBatch
from penstock.kernels.cases import Case
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.cpu.program import NativeCall
from penstock.kernels.dispatch import Binding, FusedStep, KVLayout, StepState
from penstock.kernels.mixing import route
from penstock.kernels.packing import Weight
from penstock.kernels.places import RopeSpec
from penstock.kernels.rope import RopeTable
from penstock.kernels.signature import (
    Attention,
    Embedding,
    Experts,
    GatedActivation,
    Operation,
    Routing,
    SelectRows,
    SourceAttention,
    WriteKV,
)
from penstock.kernels.tape import Value

KV_TYPE = torch.bfloat16
_BLOCK_SIZE = 16
# Values that are drawn; larger arrays repeat them.
_DRAWN = 1 << 20


def random_values(*shape: int) -> Tensor:
    """Random float32 values that take little time to make."""
    size = torch.Size(shape).numel()
    return torch.randn(min(size, _DRAWN)).repeat(-(-size // _DRAWN))[:size].view(shape)


@dataclass(frozen=True)
class Planes:
    """Keys and values of one layer, each [blocks, block size, KV heads, head_dim]."""

    keys: Tensor
    values: Tensor
    layout: KVLayout = "tiles"

    def planes(self, layer: int) -> Mapping[str, Tensor]:
        return {"key": self.keys, "value": self.values}

    def table_of(self, layer: int) -> int:
        return 0


def routed_rows(case: Case) -> Tensor:
    """float32 [tokens, 2 · chosen]: which experts each row of a case has, as a router chooses them."""
    assert isinstance(case.operation, Experts), "others have no experts"
    logits = torch.randn(case.tokens, case.operation.experts)
    return route(logits, None, Routing(case.operation.experts, case.widths[1] // 2))


def compile_case(case: Case, matrices: Sequence[Mapping[str, Weight]], steps: int) -> Callable[[], object]:
    """A call that carries the case's operation out `steps` times, one after another, in one native call.

    The steps take turns with the `matrices`, which are the case's packed ones by name, and have each
    their own keys and values. Operations that overwrite their input, as they do in a model, work on one another's
    results.
    """
    batch = batch_of(case)
    planes = [
        _planes(case) for _ in range(steps if isinstance(case.operation, Attention | SourceAttention | WriteKV) else 1)
    ]
    rope_tables: dict[RopeSpec, RopeTable] = {}
    made = 0

    def new(width: int, selected: bool = False) -> Value:
        nonlocal made
        made += 1
        return Value(made, width, selected)

    given = tuple(new(width) for width in case.widths)
    inputs, fused = given, []
    for index in range(steps):
        weights: dict[str, Weight] = {}
        for name, shape in case.weights.items():
            packed = matrices[index % len(matrices)].get(name)
            weights[name] = random_values(*shape) if packed is None else packed
        binding = Binding(weights, planes[index % len(planes)], KV_TYPE, (True,) * len(inputs), rope_tables)
        part = _part(case.operation, binding)
        widths = case.output_widths if case.gate is None else (2 * case.output_widths[0],)
        outputs = tuple(new(width, isinstance(case.operation, SelectRows)) for width in widths)
        fused.append(FusedStep(part, inputs, outputs))
        if case.gate is not None:
            gate = _part(GatedActivation(case.gate), binding)
            fused.append(FusedStep(gate, outputs, (new(case.output_widths[0]),)))
        if part.reuses and None not in part.reuses:
            inputs = (*outputs, *inputs[len(outputs) :])
    # Nothing is wanted: results stay in the program's registers, as those between a model's operations do.
    kernel = NativeCall.fuse(fused, given, (), torch.float32)
    state = StepState(batch)
    values = [random_values(case.tokens, value.width) for value in given]
    if isinstance(case.operation, Experts):
        values[1] = routed_rows(case)
    return lambda: kernel(state, *values)


def _part(operation: Operation, binding: Binding) -> NativeCall:
    native = next(entry for entry in NATIVE if entry.operation is type(operation))
    obstacle = native.supports(operation, binding)
    if obstacle is not None:
        raise ValueError(f"{type(operation).__name__} has no native kernel here: {obstacle}.")
    part = native.prepare(operation, binding)
    assert isinstance(part, NativeCall)
    return part


def planes_shape(case: Case) -> tuple[int, int, int, int]:
    """Of keys, and of values, of all the case's contexts and a block that is none's."""
    blocks = 1 + sum(-(-stored // _BLOCK_SIZE) for stored in case.stored)
    return blocks, _BLOCK_SIZE, case.kv.kv_heads, case.kv.head_dim


def _planes(case: Case) -> Planes:
    shape = planes_shape(case)
    return Planes(random_values(*shape).to(KV_TYPE), random_values(*shape).to(KV_TYPE))


def batch_of(case: Case) -> StepBatch:
    """The case's batch, its sequences' blocks in random order."""
    held = [-(-stored // _BLOCK_SIZE) for stored in case.stored]
    order = (1 + torch.randperm(sum(held))).int().split(held)
    tables = torch.zeros((len(held), max(held)), dtype=torch.int32)
    for row, blocks in enumerate(order):
        tables[row, : len(blocks)] = blocks
    positions = [torch.arange(context - added, context) for added, context in case.rows]
    rows = 1
    if isinstance(case.operation, Embedding):
        rows = case.weights[case.operation.weight.name][0]
    return StepBatch(
        token_ids=torch.randint(rows, (case.tokens,)),
        positions=torch.cat(positions),
        query_lengths=[added for added, _ in case.rows],
        context_lengths=[context for _, context in case.rows],
        num_decodes=sum(added == 1 for added, _ in case.rows),
        logit_rows=torch.tensor([token for token in case.wanted if token < case.tokens], dtype=torch.int64),
        block_tables=(tables,),
        block_size=_BLOCK_SIZE,
        sources=list(case.sources),
    )
