"""Several ranks give what one process gives, in every family, whatever the batch and the chunks."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.core.shares import TensorRank
from penstock.kernels.reference import REFERENCE
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.json_file import read_json
from penstock.planning.reading import shape_of
from penstock.planning.wire import RANKS, sent_of_parts
from support import checkpoints
from support.pairing import in_turn
from support.plain import plain
from support.ranks import RanksStepper
from support.stepping import all_logits, difference, make_stepper

TOLERANCE = 1e-4
LENGTHS = (150, 1, 2, 17, 48, 5)
SIZES = (2, 4)
# Families that norm all key heads together, of which there are two.
NORMED_TOGETHER = ("olmo2", "olmo3", "olmoe", "minimax_m2")
# Ranks, and groups of them with whole experts.
LAYOUTS = ((2, 2), (4, 2), (3, 3), (4, 4))


def _refused(path: Path, size: int) -> bool:
    """Whether a model says that this number of ranks cannot have it."""
    try:
        model_of(open_checkpoint(path)).of_rank(TensorRank(0, size))
    except ConfigurationError as error:
        assert f"--tensor-parallel-size is {size}" in error.message
        return True
    return False


@pytest.mark.parametrize("family, size", in_turn([(family,) for family in checkpoints.EVERY], SIZES))
def test_logits_are_those_of_one_process(
    paths: dict[str, Path], prompts: list[list[int]], family: str, size: int
) -> None:
    path = paths[family]
    expected = all_logits(make_stepper(path), prompts, None)
    if _refused(path, size):
        # Its key heads are normed together, and there are two.
        assert family in NORMED_TOGETHER and size == 4
        size = 2
    assert difference(all_logits(RanksStepper(path, size), prompts, 16), expected) <= TOLERANCE
    assert difference(all_logits(RanksStepper(path, size), prompts, None), expected) <= TOLERANCE


@pytest.mark.parametrize(
    "family, layout",
    in_turn(
        [(family,) for family in (*checkpoints.MIXTURES, "deepseek_v2", "deepseek_v3")],
        [(2, 2), (4, 2), (3, 3), (4, 4)],
    ),
)
def test_experts_of_ranks_are_those_of_one_process(
    paths: dict[str, Path], prompts: list[list[int]], family: str, layout: tuple[int, int]
) -> None:
    """Of several ranks in groups; each group has whole experts, and the ranks of a group a part of each of these."""
    path, (size, experts) = paths[family], layout
    if _refused(path, size):
        assert family in NORMED_TOGETHER
        size = experts = 2
    expected = all_logits(make_stepper(path), prompts, None)
    found = all_logits(RanksStepper(path, size, experts=experts), prompts, 16)
    assert difference(found, expected) <= TOLERANCE


def test_reference_operations_have_ranks_too(paths: dict[str, Path], prompts: list[list[int]]) -> None:
    for family, experts in (("llama", 1), ("qwen3_moe", 2)):
        expected = all_logits(make_stepper(paths[family]), prompts[1:5], None)
        stepper = RanksStepper(paths[family], 2, experts=experts, implementations=REFERENCE, packing=plain)
        assert difference(all_logits(stepper, prompts[1:5], 16), expected) <= TOLERANCE


@pytest.mark.parametrize("family, size", in_turn([(family,) for family in checkpoints.EVERY], SIZES))
def test_ranks_write_what_plans_say(paths: dict[str, Path], family: str, size: int) -> None:
    path = paths[family]
    shape, size = shape_of(read_json(path / "config.json")), 2 if _refused(path, size) else size
    for experts in (1, 2) if shape.routes else (1,):
        stepper = RanksStepper(path, size, experts=experts)
        stepper.step({0: [5, 6, 7], 1: [8]}, wanted="last")
        told = [sent_of_parts(shape, RANKS, size, tokens=4, wanted=2, rank=rank).bytes for rank in range(size)]
        assert stepper.written == told


def test_more_groups_than_experts_are_refused_by_name(paths: dict[str, Path]) -> None:
    whole = model_of(open_checkpoint(paths["mixtral"]))
    with pytest.raises(ConfigurationError, match="layers have 5 experts; take 5 or fewer"):
        replace(whole.decoder.blocks[0].mixture, shared=None).of_rank(TensorRank(0, 6, experts=6))
