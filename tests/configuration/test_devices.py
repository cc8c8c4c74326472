"""Which device computes, of machines that are made up."""

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.configuration.devices import resolve_device
from penstock.core.devices import Gpu, GpuFacts
from penstock.core.errors import ConfigurationError

CARD = Gpu(0, "Made-up 100", (9, 0), 80 << 30, 79 << 30)
OLD = Gpu(1, "Made-up 10", (7, 5), 16 << 30, 15 << 30)
STAND_IN = replace(CARD, interpreted=True)


def resolved(asked: str, facts: GpuFacts) -> tuple[Gpu | None, str]:
    """The device, and why."""
    notes: list[tuple[str, Any, str]] = []
    gpu = resolve_device(asked, facts, lambda *note: notes.append(note))
    ((setting, value, why),) = notes
    assert setting == "device" and value == ("cpu" if gpu is None else gpu.device)
    return gpu, why


def test_auto_takes_the_first_gpu_that_can() -> None:
    assert resolved("auto", GpuFacts((CARD, OLD)))[0] == CARD
    later = replace(CARD, index=1)
    gpu, why = resolved("auto", GpuFacts((replace(OLD, index=0), later)))
    assert gpu == later and "Made-up 100, compute capability 9.0, 79.0 of 80.0 GiB free" in why


@pytest.mark.parametrize(
    "facts, why",
    [
        (GpuFacts(), "sees no GPU"),
        (GpuFacts((), "there is no driver"), "there is no driver"),
        (GpuFacts((CARD,), "Triton is not installed"), "Triton is not installed"),
        (GpuFacts((OLD,)), "Made-up 10 has compute capability 7.5, below 8.0"),
        (GpuFacts((STAND_IN,)), "sees no GPU"),
    ],
)
def test_auto_says_why_the_cpu_computes(facts: GpuFacts, why: str) -> None:
    gpu, found = resolved("auto", facts)
    assert gpu is None and why in found


def test_what_is_asked_for_is_taken() -> None:
    assert resolved("cpu", GpuFacts((CARD,)))[0] is None
    second = replace(CARD, index=1)
    assert resolved("cuda", GpuFacts((CARD, second)))[0] == CARD
    assert resolved("cuda:1", GpuFacts((CARD, second)))[0] == second
    gpu, why = resolved("cuda", GpuFacts((STAND_IN,)))
    assert gpu == STAND_IN and "interprets" in why


@pytest.mark.parametrize(
    "asked, facts, message",
    [
        ("gpu", GpuFacts((CARD,)), "--device gpu is not one of auto, cpu"),
        ("cuda:x", GpuFacts((CARD,)), "--device cuda:x is not one of"),
        ("cuda:2", GpuFacts((CARD,)), "this process sees cuda:0"),
        ("cuda", GpuFacts(), "this process sees none"),
        ("cuda", GpuFacts((CARD,), "the driver is too old"), "not possible here: the driver is too old"),
        ("cuda:1", GpuFacts((CARD, OLD)), "Made-up 10 of compute capability 7.5, and the kernels need 8.0"),
    ],
)
def test_what_is_not_there_is_refused(asked: str, facts: GpuFacts, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolved(asked, facts)
