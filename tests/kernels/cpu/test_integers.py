"""Attention over keys and values kept as int8: integers of 8 and 16 bits, multiplied and added up exactly."""

import functools

import pytest
import torch
from torch import Tensor

from penstock.kernels.bias import buckets
from penstock.kernels.cases import Case
from penstock.kernels.cases.attention import CASES
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.kv_bytes import to_bytes
from penstock.kernels.signature import Attention
from support.operations import Bench

ATTENTION = next(entry for entry in NATIVE if entry.operation is Attention)
DTYPES = (torch.float32, torch.bfloat16)
pytestmark = pytest.mark.usefixtures("instruction_set")


def exact(bench: Bench) -> Tensor:
    """Attention in float64 over what the bytes of an int8 cache stand for, not rounded."""
    op, outputs, first, token = bench.case.operation, [], 0, 0
    for added, context in bench.case.rows:
        own = bench.inputs[0][token : token + added]
        query = own[:, : op.heads.query_width].double().unflatten(1, (op.heads.query_heads, op.heads.head_dim))
        held = bench.context[first : first + context]
        if not op.borrows:
            fresh = own[:, op.heads.query_width :].unflatten(1, (-1, op.heads.kv_heads, op.heads.head_dim))
            # Latent keys are values, too.
            held = torch.cat((held[: context - added], fresh.expand(-1, 2, -1, -1)))
        bytes_, scales = to_bytes(held, torch.int8)
        keys, values = (bytes_.double() * scales.double()[..., None]).unbind(1)
        share = op.heads.query_heads // op.heads.kv_heads
        keys, values = keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * op.scale
        distance = torch.arange(context - added, context)[:, None] - torch.arange(context)
        if op.bias is not None:
            table = bench.weights[op.bias.weight.name].double()
            scores += table[buckets(-distance, op.bias)].permute(2, 0, 1)
        if op.softcap is not None:
            scores = op.softcap * torch.tanh(scores / op.softcap)
        unseen = (distance < 0) | (distance >= (op.window or context))
        scores = scores.masked_fill(unseen, -torch.inf)
        if op.sinks is not None:
            sinks = bench.weights[op.sinks.name].double()[:, None, None].expand(-1, added, 1)
            scores = torch.cat((scores, sinks), 2)
        weights = scores.softmax(-1)[..., :context]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
        first, token = first + context, token + added
    return torch.cat(outputs)


@functools.cache
def exact_of(name: str, dtype: torch.dtype) -> Tensor:
    """Computed once, for all instruction sets."""
    return exact(Bench(next(case for case in CASES if case.name == name), dtype, "int8"))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case.use != "bench"], ids=lambda case: case.name)
def test_is_attention_over_what_bytes_mean(case: Case, dtype: torch.dtype) -> None:
    bench = Bench(case, dtype, "int8")
    found, right = bench.run(ATTENTION).outputs[0].double(), exact_of(case.name, dtype)
    # A query has lost 2^-16 of its largest value at most, and a weight 2^-16 of the largest; what a bfloat16 model
    # makes of sums 2^-9.
    bound = 5e-4 if dtype is torch.float32 else 5e-4 + 2**-8 * right.abs()
    assert bool(((found - right).abs() <= bound).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_of_odd_values(dtype: torch.dtype) -> None:
    """Queries and values that are zero, tiny or not finite: what is computed of them is none, or is seen not to be."""
    case = next(case for case in CASES if case.name == "decodes")
    bench = Bench(case, dtype, "int8")
    op, plain = case.operation, bench.run(ATTENTION).outputs[0]
    width, size = op.heads.query_width, op.heads.head_dim
    own = bench.inputs[0]
    own[3, :size], own[4, :size], own[5, :size] = 0.0, 1e-42, torch.nan
    found = bench.run(ATTENTION).outputs[0]
    # Whoever asks for nothing takes the mean.
    assert bool(((found.double() - exact(bench))[3:5, :size].abs() <= 0.01).all())
    assert bool(found[5, :size].isnan().all())
    assert torch.equal(found[:, size:], plain[:, size:])
    # A value that is not finite is seen by all that see its head, and by no other.
    own.copy_(Bench(case, dtype, "int8").inputs[0])
    own[3, width + op.heads.kv_width] = torch.inf
    found = bench.run(ATTENTION).outputs[0]
    share = op.heads.query_heads // op.heads.kv_heads * size
    assert bool(found[3, :share].isnan().all())
    assert torch.equal(found[3, share:], plain[3, share:])
    assert torch.equal(found[:3], plain[:3])
