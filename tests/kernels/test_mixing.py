"""What a router chooses: ties, groups, corrections; and experts beside a plain sum over all of them."""

import pytest
import torch
import torch.nn.functional as F

from penstock.kernels.cases import Case
from penstock.kernels.cpu.native import OBSTACLE
from penstock.kernels.cpu.operations import NATIVE
from penstock.kernels.mixing import mix, route
from penstock.kernels.places import WeightRef
from penstock.kernels.signature import Route, Routing, ScoreName
from support.operations import Bench

INFINITE = float("inf")


def chosen(routed: torch.Tensor) -> list[list[int]]:
    return routed[:, : routed.shape[1] // 2].int().tolist()


def test_of_equal_scores_the_first_are_chosen() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 3.0, 1.0]])
    assert chosen(route(logits, None, Routing(4, 2))) == [[1, 2], [0, 1], [0, 2]]
    assert chosen(route(logits, None, Routing(4, 3))) == [[1, 2, 3], [0, 1, 2], [0, 1, 2]]


def test_a_softmax_over_the_chosen_is_one_over_all_that_is_renormalised() -> None:
    logits = torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    routed = route(logits, None, Routing(16, 4))
    best = logits.sort(dim=1, descending=True).values[:, :4].softmax(1)
    assert torch.allclose(routed[:, 4:].sort(dim=1, descending=True).values, best, atol=1e-6)


def test_a_correction_chooses_and_does_not_weigh() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    routed = route(logits, torch.tensor([5.0, 0.0, -5.0]), Routing(3, 2, score="sigmoid", renormalise=False))
    assert chosen(routed) == [[0, 1]]
    assert torch.allclose(routed[0, 2:], torch.sigmoid(logits[0, :2]))


def test_a_masked_group_is_below_negative_scores() -> None:
    """A mask of zeros would let its experts in where corrected scores are negative."""
    logits = torch.tensor([[4.0, 3.0, -4.0, -5.0]])
    correction = torch.tensor([-2.0, -2.0, -2.0, -2.0])
    routing = Routing(4, 2, score="sigmoid", groups=2, kept_groups=1)
    assert chosen(route(logits, correction, routing)) == [[0, 1]]
    best = Routing(4, 2, score="sigmoid", groups=2, kept_groups=1, best_of_group=1)
    lone = torch.tensor([[4.0, -9.0, 3.0, 3.0]])
    assert chosen(route(lone, None, best)) == [[0, 1]] and chosen(route(lone, None, routing)) == [[2, 3]]


@pytest.mark.parametrize("renormalise", [True, False])
def test_experts_add_up(renormalise: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    experts, width, inner = 5, 12, 8
    x, logits = torch.randn(9, width, generator=generator), torch.randn(9, experts, generator=generator)
    gate_up = torch.randn(experts * 2 * inner, width, generator=generator)
    down = torch.randn(experts * width, inner, generator=generator)
    routed = route(logits, None, Routing(experts, 2, renormalise=renormalise, scale=1.5))

    def mlp(rows: torch.Tensor, expert: int) -> torch.Tensor:
        own = gate_up[expert * 2 * inner : (expert + 1) * 2 * inner]
        gate, up = F.linear(rows, own).chunk(2, dim=1)
        return F.linear(F.silu(gate) * up, down[expert * width : (expert + 1) * width])

    expected = torch.zeros(9, width)
    for row in range(9):
        for place in range(2):
            expert = int(routed[row, place])
            expected[row] += routed[row, 2 + place] * mlp(x[row : row + 1], expert)[0]
    assert torch.allclose(mix(x, routed, mlp), expected, atol=1e-5)


def _natively(logits: torch.Tensor, routing: Routing) -> torch.Tensor:
    """What native code chooses by these logits."""
    rows, experts = logits.shape
    case = Case(
        "by logits", Route(WeightRef("weight"), routing), (experts,), ((1, 1),) * rows, {"weight": (experts,) * 2}
    )
    bench = Bench(case, torch.float32)
    bench.inputs, bench.weights = [logits], {"weight": torch.eye(experts)}
    return bench.run(next(each for each in NATIVE if each.operation is Route)).outputs[0]


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_native_code_chooses_the_first_of_equal_ones_too(score: ScoreName) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 3.0, 1.0], [-2.0, -3.0, -2.0, -2.0]])
    for chosen_of_all in (1, 2, 3, 4):
        routing = Routing(4, chosen_of_all, score=score)
        assert torch.allclose(_natively(logits, routing), route(logits, None, routing), atol=1e-6)
    grouped = Routing(4, 2, score=score, groups=2, kept_groups=1)
    assert torch.allclose(_natively(logits, grouped), route(logits, None, grouped), atol=1e-6)


@pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))
@pytest.mark.parametrize("routing", [Routing(64, 6), Routing(64, 6, score="sigmoid", groups=2, kept_groups=1)])
def test_what_is_not_a_number_stays_within_its_row(routing: Routing) -> None:
    logits = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))
    logits[2] = torch.nan
    found = _natively(logits, routing)
    assert chosen(found)[2] == list(range(6)) and found[2, 6:].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.allclose(found[others], route(logits, None, routing)[others], atol=1e-6)
