"""Contexts spread over ranks give what one process gives, in every family, whatever the batch and the chunks."""

from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.core.shares import Stripe
from penstock.kernels.reference import REFERENCE
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.json_file import read_json
from penstock.planning.reading import shape_of
from penstock.planning.wire import RANKS, sent_of_contexts
from support import checkpoints, encoders_made
from support.pairing import in_turn
from support.plain import plain
from support.ranks import RanksStepper
from support.stepping import Stepper, all_logits, difference, make_stepper

TOLERANCE = 1e-4
LENGTHS = (150, 1, 2, 17, 48, 5)


@pytest.mark.parametrize("family, size", in_turn([(family,) for family in checkpoints.EVERY], (2, 3)))
def test_logits_are_those_of_one_process(
    paths: dict[str, Path], prompts: list[list[int]], family: str, size: int
) -> None:
    expected = all_logits(make_stepper(paths[family]), prompts, None)
    for chunk in (13, None):
        found = all_logits(RanksStepper(paths[family], size, stripes=True), prompts, chunk)
        assert difference(found, expected) <= TOLERANCE


def _greedy(stepper: Stepper | RanksStepper, prompts: list[list[int]]) -> list[list[int]]:
    """64 tokens behind each prompt, each the likeliest."""
    found: list[list[int]] = [[] for _ in prompts]
    added = dict(enumerate(prompts))
    for _ in range(64):
        logits = stepper.step(added, wanted="last")
        added = {row: [int(last[-1].argmax())] for row, last in logits.items()}
        for row, tokens in added.items():
            found[row] += tokens
    return found


@pytest.mark.one_in(2, each=("size",))
@pytest.mark.parametrize("family, size", in_turn([(family,) for family in checkpoints.EVERY], (3, 2)))
def test_greedy_tokens_are_those_of_one_process(
    paths: dict[str, Path], prompts: list[list[int]], family: str, size: int
) -> None:
    expected = _greedy(make_stepper(paths[family]), prompts[:4])
    assert _greedy(RanksStepper(paths[family], size, stripes=True), prompts[:4]) == expected


def test_reference_operations_have_stripes_too(paths: dict[str, Path], prompts: list[list[int]]) -> None:
    for family in ("llama", "gpt_oss"):
        expected = all_logits(make_stepper(paths[family]), prompts[1:5], None)
        stepper = RanksStepper(paths[family], 2, stripes=True, implementations=REFERENCE, packing=plain)
        assert difference(all_logits(stepper, prompts[1:5], 16), expected) <= TOLERANCE


@pytest.mark.parametrize("family, size", in_turn([(family,) for family in checkpoints.EVERY], (2, 3)))
def test_ranks_write_what_plans_say(paths: dict[str, Path], family: str, size: int) -> None:
    shape = shape_of(read_json(paths[family] / "config.json"))
    stepper = RanksStepper(paths[family], size, stripes=True)
    stepper.step({0: [5, 6, 7], 1: [8]}, wanted="last")
    shares = [Stripe(rank, size).rows(4) for rank in range(size)]
    assert stepper.written == [
        sent_of_contexts(shape, RANKS, size, tokens=4, wanted=2, own=share.stop - share.start).bytes for share in shares
    ]


def test_what_keeps_no_context_is_refused_by_name(tmp_path: Path) -> None:
    whole = model_of(open_checkpoint(encoders_made.make("bert", tmp_path)))
    with pytest.raises(ConfigurationError, match="--context-parallel-size is 2, but BertModel keeps nothing"):
        whole.of_stripe(Stripe(0, 2))
