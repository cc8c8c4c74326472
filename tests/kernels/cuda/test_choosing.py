"""Tokens chosen on the device are those that the CPU chooses, whatever is asked for."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from penstock.core.choosing import Asked, Found
from penstock.sampling.choice import Choice, Masks
from penstock.sampling.native import chooser as host_chooser
from penstock.sampling.noise import Purpose, position_key
from penstock.sampling.pipeline import Floats
from penstock.sampling.row import GrammarState, RowState
from penstock.sampling.sampler import Sampler
from support.device import DEVICE
from support.endings import finish_of
from support.sampling_rows import make_row

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.kernels.cuda import choosing
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


@pytest.mark.parametrize(("rows", "width"), [(2, 50), (1, choosing._BLOCK + 904)])
def test_the_same_tokens(rows: int, width: int) -> None:
    """Of what a program reads at once, and of more."""
    generator = torch.Generator().manual_seed(width)
    agree(*both(torch.randn(rows, width, generator=generator) * 3, NARROWED))


@pytest.mark.parametrize("slots", [2, pytest.param(16, marks=pytest.mark.slow)])
def test_what_parts_do_not_hold_is_looked_for_in_the_row(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many likely tokens, with few, with equal ones, and with all of the likely ones in one part."""
    monkeypatch.setattr(choosing, "_BLOCK", 64)
    monkeypatch.setattr(choosing, "_SLOTS", slots)
    generator = torch.Generator().manual_seed(slots)
    logits = torch.randn(5, 200, generator=generator)
    logits[1] *= 8
    logits[2] = torch.randint(-2, 3, (200,), generator=generator).float()
    logits[3] = 0.0
    logits[4] -= 20.0
    logits[4, 128:160] += 20.0
    agree(*both(logits, NARROWED))


def test_noise_that_is_rough_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which the parts are left out that cannot have the token that is drawn: over many positions it is the same."""
    monkeypatch.setattr(choosing, "_BLOCK", 64)
    logits = torch.randn(1, 250, generator=torch.Generator().manual_seed(9))
    agree(*both(logits.expand(2, -1).contiguous(), [(0.5 + at / 8, 0, 1.0, -math.inf) for at in range(12)]))


def test_tokens_are_there_for_the_next_step_before_they_are_read() -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(3))
    asked = [(row, 0.0, 0, 1.0, -math.inf, (1, 2, 3)) for row in (2, 0, 1)]
    chosen = chooser(PLACE)(logits.to(PLACE.device), asked)
    assert chosen.tokens.tolist() == [float(logits[row].argmax()) for row in (2, 0, 1)]
    assert [token for token, *_ in chosen.read()] == chosen.tokens.tolist()
    nothing = chooser(PLACE)(logits[:0].to(PLACE.device), [])
    assert nothing.read() == [] and nothing.tokens.shape == (0,)


def test_ties_go_to_lower_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other blocks among them."""
    monkeypatch.setattr(choosing, "_BLOCK", 64)
    generator = torch.Generator().manual_seed(1)
    few = torch.randint(-2, 3, (3, 100), generator=generator).float()
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


# Rows of every kind in one step; a third and a fifth share one row of logits, as samples of one prompt do.
MIXED = [
    ({"temperature": 0.0}, 4),
    ({"temperature": 0.0, "repetition_penalty": 1.5}, 1),
    ({"temperature": 0.8, "top_k": 9}, 3),
    ({"temperature": 0.7, "logprobs": 3}, 0),
    ({"temperature": 0.9, "logit_bias": {5: 2.0}, "allowed_token_ids": [*range(90)], "bad_words_ids": [[7]]}, 3),
    ({"temperature": 1.1, "min_p": 0.1}, 5),
    ({"temperature": 0.0, "logprobs": 0}, 2),
    ({"temperature": 0.6}, 1),
]
NEED_MORE = {1, 3, 4, 7}


class Even:
    """The last row's grammar."""

    def advance(self, token: int) -> bool:
        assert token % 2 == 0
        return False


def fill_masks(_matchers: Sequence[GrammarState], masks: Masks) -> None:
    masks[:] = 0x55555555


@pytest.mark.parametrize("order", [range(8), [5, 7, 3, 1, 6, 4, 2, 0], [1, 3, 7], [0, 2]])
def test_rows_that_need_more_than_a_choice_bring_only_their_own_logits(
    order: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    width, brought, asked = 300, [], []
    logits = torch.randn(6, width, generator=torch.Generator().manual_seed(3)) * 3
    chooses, as_floats = chooser(PLACE), Sampler._as_floats

    def choose(found: torch.Tensor, wanted: Sequence[Asked]) -> Sequence[Found]:
        asked.extend(row for row, *_ in wanted)
        return chooses(found, wanted)

    def seen(sampler: Sampler, found: torch.Tensor) -> Floats:
        brought.append(len(found))
        return as_floats(sampler, found)

    def rows() -> list[RowState]:
        return [make_row(at, seed=at, grammar=Even() if at == 7 else None, **MIXED[at][0]) for at in order]

    places = [MIXED[at][1] for at in order]
    expected = Sampler(width, fill_masks=fill_masks).sample(logits, rows(), places)
    monkeypatch.setattr(Sampler, "_as_floats", seen)
    mine = Sampler(width, fill_masks=fill_masks, on_device=choose).sample(logits.to(PLACE.device), rows(), places)
    assert [result.tokens for result in mine] == [result.tokens for result in expected]
    for result, right in zip(mine, expected, strict=True):
        assert (result.logprobs is None) == (right.logprobs is None)
        for one, other in zip(result.logprobs or (), right.logprobs or (), strict=True):
            assert one.top_tokens == other.top_tokens and one.logprob == pytest.approx(other.logprob, abs=1e-5)
    on_host = {MIXED[at][1] for at in order if at in NEED_MORE}
    assert brought == ([len(on_host)] if on_host else [])
    assert asked == [MIXED[at][1] for at in order if at not in NEED_MORE]


def test_what_breaks_a_row_is_told_on_either_side() -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(4))
    logits[1, 3] = logits[2, 7] = torch.nan
    rows = [make_row(0), make_row(1), make_row(2, logprobs=2), make_row(3, presence_penalty=1.0)]
    found = Sampler(100, on_device=chooser(PLACE)).sample(logits.to(PLACE.device), rows, range(4))
    assert [finish_of(result) for result in found] == [None, "error", "error", None]
    assert all("NaN" in str(result.ending.error) for result in found[1:3])
