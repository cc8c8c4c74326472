"""Stages of a pipeline give the bits that one process gives, in every family, whatever the batch and the chunks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.core.errors import ConfigurationError
from penstock.core.stages import Stage, stages_of
from penstock.kernels.reference import REFERENCE
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.json_file import read_json
from penstock.loading.packing import PackedWeights
from penstock.models.declaration import ModelDeclaration
from penstock.planning.reading import shape_of
from penstock.planning.wire import RANKS, sent_of_stages
from support import checkpoints
from support.plain import plain
from support.ranks import RanksStepper, StagesStepper
from support.stepping import all_logits, make_stepper

LENGTHS = (70, 1, 2, 17, 48, 5)
REFERENCE_KERNELS = {"implementations": REFERENCE, "packing": plain}


def _most(path: Path) -> int:
    """The number of stages that a model can be divided into."""
    declaration = model_of(open_checkpoint(path))
    stages = 1
    while True:
        try:
            declaration.stage_ends(stages + 1)
        except ConfigurationError as error:
            assert f"--pipeline-parallel-size is {stages + 1}" in error.message
            return stages
        stages += 1


@pytest.mark.one_in(2, each=())
@pytest.mark.parametrize("family", checkpoints.EVERY)
def test_bits_are_those_of_one_process(paths: dict[str, Path], prompts: list[list[int]], family: str) -> None:
    path = paths[family]
    most = _most(path)
    assert most >= 3
    for dtype, chunk, numbers in ((torch.float32, None, (2, most)), (torch.bfloat16, 16, (3,))):
        expected = all_logits(make_stepper(path, dtype=dtype), prompts, chunk)
        for stages in numbers:
            found = all_logits(StagesStepper(path, stages, dtype=dtype), prompts, chunk)
            assert all(torch.equal(mine, right) for mine, right in zip(found, expected, strict=True)), stages


@pytest.mark.parametrize("settings", [{"packing": PackedWeights(body="int8", head="int8")}, REFERENCE_KERNELS])
def test_rounded_weights_and_other_kernels(
    paths: dict[str, Path], prompts: list[list[int]], settings: dict[str, Any]
) -> None:
    for family in ("llama", "gemma4"):
        expected = all_logits(make_stepper(paths[family], **settings), prompts[1:5], 16)
        found = all_logits(StagesStepper(paths[family], 2, **settings), prompts[1:5], 16)
        assert all(torch.equal(mine, right) for mine, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("family", ["llama", "gemma4", "deepseek_v3", "qwen3_moe"])
def test_stages_of_ranks(paths: dict[str, Path], prompts: list[list[int]], family: str) -> None:
    """Two ranks have a part of each layer of two stages: they give what two ranks give without stages."""
    path = paths[family]
    expected = all_logits(RanksStepper(path, 2), prompts[1:5], 16)
    found = all_logits(RanksStepper(path, 2, stages=2), prompts[1:5], 16)
    assert all(torch.equal(mine, right) for mine, right in zip(found, expected, strict=True))


def test_a_stage_loads_its_own_tensors_alone(paths: dict[str, Path]) -> None:
    whole = model_of(open_checkpoint(paths["llama"]))
    names = [{part.tensor for spec in whole.of_stage(stage).weights for part in spec.parts} for stage in _three(whole)]
    first, middle, last = names
    assert set.union(*names) == {part.tensor for spec in whole.weights for part in spec.parts}
    assert not (first & middle or middle & last or first & last)
    assert whole.decoder.embedding_weight.name in first and whole.decoder.output.weight.parts[0].tensor in last


def _three(whole: ModelDeclaration) -> tuple[Stage, ...]:
    return stages_of(whole.stage_ends(3))


@pytest.mark.parametrize("family", checkpoints.EVERY)
def test_stages_give_what_plans_say(paths: dict[str, Path], family: str) -> None:
    shape = shape_of(read_json(paths[family] / "config.json"))
    stepper = StagesStepper(paths[family], 2)
    stepper.step({0: [5, 6, 7], 1: [8]}, wanted="last")
    assert stepper.passed[0] == sent_of_stages(shape, RANKS, tokens=4).bytes
