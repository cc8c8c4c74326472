"""Experts are where they are by how often they are chosen: the results of one process, and rows shared out evenly."""

from pathlib import Path

import pytest
import torch

from penstock.core.shares import ExpertPlaces
from penstock.kernels.reference import REFERENCE
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.planning.expert_places import place_experts
from support import checkpoints
from support.plain import plain
from support.ranks import RanksStepper
from support.skewed import EXPERTS, skewed
from support.stepping import all_logits, make_stepper

GROUPS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skewed(tmp_path_factory.mktemp("skewed"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, checkpoints.VOCAB_SIZE, (n,), generator=generator).tolist() for n in (300, 3, 90, 17)]


def _placed(path: Path, found: RanksStepper, room: int) -> tuple[ExpertPlaces, ...]:
    """Where experts go by what was counted in the first rank."""
    names = {mixture.gate_up.ref.name: mixture.name for mixture in model_of(open_checkpoint(path)).mixtures}
    sizes = [EXPERTS // GROUPS] * GROUPS
    counts = found.choices[0].by_layer()
    return tuple(ExpertPlaces(names[layer], place_experts(each, sizes, room)) for layer, each in counts.items())


def _difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(float((mine - right).abs().max()) for mine, right in zip(found, expected, strict=True))


def _balance(found: RanksStepper) -> float:
    rows, busiest = found.choices[0].rows
    return rows / busiest


def test_copies_of_what_is_chosen_most_even_out_what_groups_compute(path: Path, prompts: list[list[int]]) -> None:
    expected = all_logits(make_stepper(path), prompts, None)
    in_order = RanksStepper(path, GROUPS, experts=GROUPS)
    assert _difference(all_logits(in_order, prompts, None), expected) <= 1e-4
    steppers = [in_order]
    for room in (0, 2):
        steppers.append(RanksStepper(path, GROUPS, experts=GROUPS, places=_placed(path, in_order, room)))
        assert _difference(all_logits(steppers[-1], prompts, None), expected) <= 1e-4
    balances = [_balance(each) for each in steppers]
    # Half of all rows are of one expert, which one group has.
    assert balances[0] < 0.5 and balances[1] <= 0.5 and balances[2] >= 0.8
    # All ranks count the same, and each row twice in each layer that has experts.
    assert all(each.rows == stepper.choices[0].rows for stepper in steppers for each in stepper.choices)
    layers = len(model_of(open_checkpoint(path)).mixtures)
    assert all(sum(map(sum, each.choices[0].by_layer().values())) == each.choices[0].rows[0] for each in steppers)
    assert steppers[0].choices[0].rows[0] <= 2 * layers * sum(map(len, prompts))


def test_the_bits_of_a_row_do_not_depend_on_what_is_beside_it(path: Path, prompts: list[list[int]]) -> None:
    """Nor on how a prompt is cut, though several groups have the expert that all rows choose."""
    in_order = RanksStepper(path, GROUPS, experts=GROUPS)
    all_logits(in_order, prompts, None)
    places = _placed(path, in_order, 2)

    def found(prompts: list[list[int]], chunk: int | None) -> list[torch.Tensor]:
        return all_logits(RanksStepper(path, GROUPS, experts=GROUPS, places=places), prompts, chunk)

    together = found([*prompts, prompts[2]], None)
    assert torch.equal(together[2], together[4])
    for number, prompt in enumerate(prompts):
        assert torch.equal(found([prompt], 16)[0], together[number])


def test_the_reference_chooses_the_same_groups_and_counts_the_same(path: Path, prompts: list[list[int]]) -> None:
    native = RanksStepper(path, GROUPS, experts=GROUPS)
    all_logits(native, prompts[1:], None)
    places = _placed(path, native, 2)
    copied = RanksStepper(path, GROUPS, experts=GROUPS, places=places)
    expected = all_logits(copied, prompts[1:], None)
    torch_only = RanksStepper(path, GROUPS, experts=GROUPS, places=places, implementations=REFERENCE, packing=plain)
    found = all_logits(torch_only, prompts[1:], None)
    assert _difference(found, expected) <= 1e-4
    assert torch_only.choices[0].by_layer() == copied.choices[0].by_layer()
