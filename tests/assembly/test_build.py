"""What an engine says of itself when it has been built."""

import time

import pytest

from penstock.assembly import build
from penstock.assembly.prepare import prepare
from penstock.core.config import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.kernels.cpu import operations
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu_torch import CPU_TORCH
from penstock.kernels.reference import REFERENCE
from penstock.loading import packing


def notes(**options: str) -> list[str]:
    config = prepare(EngineOptions(model="haiku", threads=1, **options), api_beside=False).config
    return build.build_engine(config, lambda done, total: None, time.monotonic()).notes


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_the_native_kernels_keep_the_promise(quantization: str) -> None:
    assert build.PROMISE_HOLDS in notes(quantization=quantization)


def test_without_them_the_start_says_why_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "OBSTACLE", "they were not built")
    monkeypatch.setattr(packing, "OBSTACLE", "they were not built")
    monkeypatch.setattr(operations, "OBSTACLE", "they were not built")
    monkeypatch.setattr(build, "IMPLEMENTATIONS", (*CPU_TORCH, *REFERENCE))
    said = notes()
    assert any("attention" in note and "linear" in note for note in said)
    assert any("they were not built" in note for note in said)


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if OBSTACLE is not None:
        pytest.skip(OBSTACLE)
    monkeypatch.setattr(build.native, "instruction_sets", lambda: ["portable"])
    with pytest.raises(ConfigurationError, match="avx512 is not possible here; there are portable"):
        notes(instruction_set="avx512")
