"""Torch's kernels: packed weights, and what they refuse."""

import dataclasses

import pytest
import torch

from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV
from penstock.kernels.cases import Case
from penstock.kernels.dispatch import Binding, Dispatcher
from penstock.kernels.places import WeightRef
from penstock.kernels.processor import this_processor
from penstock.kernels.reference import REFERENCE
from penstock.kernels.signature import Linear
from penstock.kernels.torch.operations import TORCH
from penstock.kernels.torch.packing import PackedLinear, pack_linear, packing_obstacle
from support.operations import Bench

CASE = Case("projection", Linear(WeightRef("weight")), (8,), ((1, 1),) * 3, {"weight": (8, 8)})


def _storage() -> object:
    return Bench(CASE, torch.float32).storage


@pytest.mark.skipif(packing_obstacle(torch.float32) is not None, reason="nothing is packed here")
def test_packed_weights_are_used_where_they_are() -> None:
    packed = pack_linear(torch.ones(8, 8))
    assert isinstance(packed, PackedLinear) and packed.shape == (8, 8)
    dispatcher = Dispatcher(this_processor().implementations)
    assert dispatcher.choose(CASE.operation, Binding({"weight": packed}, _storage(), torch.float32)).name == (
        "onednn_packed"
    )
    with pytest.raises(ConfigurationError, match="the weight is packed"):
        Dispatcher(REFERENCE).choose(CASE.operation, Binding({"weight": packed}, _storage(), torch.float32))


def test_packing_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "float16" in (packing_obstacle(torch.float16) or "")
    weight = torch.ones(4, 4, dtype=torch.float16)
    assert pack_linear(weight) is weight
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert "oneDNN" in (packing_obstacle(torch.float32) or "")


def test_storage_of_another_type_is_refused_by_torchs_kernels() -> None:
    from penstock.kernels.cases.attention import CASES

    case = CASES[0]
    storage = Bench(dataclasses.replace(case, kv=LayerKV(2, 8)), torch.bfloat16).storage
    binding = Binding({}, storage, torch.float32, (True,))
    choice = Dispatcher((*TORCH, *REFERENCE)).choose(case.operation, binding)
    assert choice.name == "reference"
