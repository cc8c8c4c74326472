"""Tokens chosen on the device are those that the CPU chooses, whatever is asked for."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from penstock.sampling.choice import Choice
from penstock.sampling.native import chooser as host_chooser
from penstock.sampling.noise import Purpose, position_key
from support.device import DEVICE

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda.choosing import chooser
from penstock.kernels.cuda.place import place_on

pytestmark = pytest.mark.cuda

PLACE = place_on(DEVICE, 64)
NARROWED = [
    (1.0, 0, 1.0, -math.inf),
    (0.7, 0, 1.0, -math.inf),
    (1.3, 5, 1.0, -math.inf),
    (1.0, 0, 0.6, -math.inf),
    (0.9, 40, 0.9, -math.inf),
    (1.0, 0, 1.0, math.log(0.1)),
    (2.0, 50, 0.95, math.log(0.02)),
    (1.0, 1, 0.5, -math.inf),
    (1e-3, 3, 0.2, -math.inf),
    (0.0, 0, 1.0, -math.inf),
]


def both(logits: torch.Tensor, narrowed: Sequence[tuple[float, int, float, float]]) -> tuple[list, list]:
    """What the device and the CPU choose for each row at several output positions."""
    asked, choices = [], []
    for index, (temperature, top_k, top_p, log_min_p) in enumerate(narrowed):
        for row in range(len(logits)):
            seed, position = 1000 + index, 7 * row
            key = position_key(seed, 0, Purpose.TOKEN, position)
            asked.append((row, temperature, top_k, top_p, log_min_p, tuple(key)))
            choices.append(
                Choice(row, -1, position, temperature, top_k, top_p, log_min_p, 0, seed, 0, int(Purpose.TOKEN))
            )
    right = host_chooser(logits.shape[1])(
        logits.numpy(), choices, np.empty((0, (logits.shape[1] + 31) // 32), np.uint32)
    )
    return chooser(PLACE)(logits.to(PLACE.device), asked).read(), [tuple(found[:3]) for found in right]


def agree(mine: list, right: list) -> None:
    assert [token for token, *_ in mine] == [token for token, *_ in right]
    for (_, peak, logprob), (_, right_peak, right_logprob) in zip(mine, right, strict=True):
        assert peak == right_peak
        assert logprob == pytest.approx(right_logprob, abs=1e-5)


@pytest.mark.parametrize("width", [50, 5000])
def test_the_same_tokens(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    agree(*both(torch.randn(2, width, generator=generator) * 3, NARROWED))


def test_tokens_are_there_for_the_next_step_before_they_are_read() -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(3))
    asked = [(row, 0.0, 0, 1.0, -math.inf, (1, 2, 3)) for row in (2, 0, 1)]
    chosen = chooser(PLACE)(logits.to(PLACE.device), asked)
    assert chosen.tokens.tolist() == [float(logits[row].argmax()) for row in (2, 0, 1)]
    assert [token for token, *_ in chosen.read()] == chosen.tokens.tolist()
    nothing = chooser(PLACE)(logits[:0].to(PLACE.device), [])
    assert nothing.read() == [] and nothing.tokens.shape == (0,)


def test_ties_go_to_lower_ids() -> None:
    generator = torch.Generator().manual_seed(1)
    few = torch.randint(-2, 3, (3, 300), generator=generator).float()
    few[0] = 0.0
    few[1, ::2] = -0.0
    agree(*both(few, NARROWED[2:8]))


def test_what_is_not_finite_is_seen() -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(2))
    logits[0, 7] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3:] = -torch.inf
    mine, _ = both(logits, NARROWED[:3])
    peaks = [peak for _, peak, _ in mine[:4]]
    assert math.isnan(peaks[0]) and peaks[1] == -math.inf and math.isfinite(peaks[2])
    agree(*both(logits[2:], NARROWED[3:5]))
