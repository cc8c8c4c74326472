"""The mixture in small: its experts do what each row asks for, and what was trained is what Penstock scores."""

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from penstock.assembly.scorer import load_scorer
from penstock.bundled.corpus.generator import STRATA
from penstock.configuration.options import EngineOptions
from training import export, loop
from training.data import Corpus
from training.mixture import BalancedLesson
from training.model import Decoder, Mixture, ModelShape, Routed, balance_loss
from training.recipe import Phase, Recipe
from training.routing import loads, of_chance, permuted, said_in, score, shuffled
from training.train import Lesson

EXPERTS = 4


def shape_of(vocabulary: int, chosen: int = 2) -> ModelShape:
    return ModelShape(
        vocabulary,
        layers=2,
        width=32,
        heads=2,
        kv_heads=1,
        intermediate=16,
        context=2048,
        experts=EXPERTS,
        chosen=chosen,
    )


@pytest.fixture(scope="module")
def trained(work: Path, tokenizer, corpus: Corpus) -> tuple[Path, list[float]]:
    """The directory of a little mixture that has learned a little, and its losses."""
    shape = shape_of(tokenizer.get_vocab_size())
    phases = (Phase(positions=64, rows=4, share=1.0),)
    recipe = Recipe(
        "mixture",
        shape,
        64 * 4 * 40,
        phases,
        matrix_rate=0.02,
        embedding_rate=5e-3,
        warmup_steps=2,
        hint_weight=0.5,
        balance_weight=0.01,
    )
    torch.manual_seed(0)
    model = Decoder(shape)
    lesson = BalancedLesson(Lesson(model, recipe.hint_weight), recipe.balance_weight, corpus.pad)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "WORK", work)
        patch.setattr(export, "WORK", work)
        run = loop.Run(recipe, lesson, lesson, corpus, torch.device("cpu"))
        batches = itertools.islice(loop._batches(corpus, recipe, 0, 0), run.schedule.steps)
        losses = []
        for run.step, batch in enumerate(batches):
            losses.append(run.train_step(batch))
        export.export_model(model, recipe, work / "mixture" / "model")
    return work / "mixture" / "model", losses


def test_rows_get_what_their_own_experts_make() -> None:
    torch.manual_seed(1)
    mixture = Mixture(shape_of(99))
    x = torch.randn(3, 7, 32)
    routed = mixture.gate(x.flatten(0, 1))
    torch.testing.assert_close(routed.weights.sum(-1), torch.ones(21))
    wanted = torch.zeros(21, 32)
    for row, (chosen, weights) in enumerate(zip(routed.chosen.tolist(), routed.weights, strict=True)):
        for expert, weight in zip(chosen, weights, strict=True):
            wanted[row] += weight * mixture.experts[expert](x.flatten(0, 1)[row])
    torch.testing.assert_close(mixture(x).flatten(0, 1), wanted, rtol=1e-4, atol=1e-6)


def test_the_balance_is_one_where_it_is_even_and_the_number_of_experts_where_one_has_all() -> None:
    chosen = torch.arange(EXPERTS)[:, None]
    even = torch.full((EXPERTS, EXPERTS), 1 / EXPERTS)
    assert float(balance_loss(Routed(even, chosen, torch.ones(chosen.shape)))) == pytest.approx(1)
    first = torch.zeros(EXPERTS, EXPERTS)
    first[:, 0] = 1
    alone = Routed(first, torch.zeros_like(chosen), torch.ones(chosen.shape))
    assert float(balance_loss(alone)) == pytest.approx(EXPERTS)


def test_the_balance_takes_rows_from_the_expert_that_has_most() -> None:
    torch.manual_seed(2)
    mixture = Mixture(shape_of(99))
    rows = torch.randn(400, 32) + 1
    optimizer = torch.optim.SGD(mixture.gate.parameters(), lr=1.0)

    def busiest() -> float:
        return float(mixture.gate(rows).chosen.flatten().bincount(minlength=EXPERTS).max()) / 800

    mixture.gate.weight.data[0] += 0.3
    assert busiest() == 0.5
    for _ in range(100):
        balance_loss(mixture.gate(rows)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert busiest() < 0.35


def test_a_router_learns_which_experts_a_row_needs() -> None:
    torch.manual_seed(3)
    kinds, asked = torch.randn(EXPERTS, 32), torch.randn(EXPERTS, 32, 32) / 32**0.5
    mixture = Mixture(shape_of(99))
    optimizer = torch.optim.Adam(mixture.parameters(), lr=1e-2)

    def loss() -> torch.Tensor:
        """Each kind of row is to be turned by a matrix of its own."""
        kind = torch.randint(EXPERTS, (256,))
        rows = kinds[kind] + 0.3 * torch.randn(256, 32)
        made = F.mse_loss(mixture(rows), torch.einsum("nij,nj->ni", asked[kind], rows))
        return made + 0.01 * balance_loss(mixture.gate(rows))

    for _ in range(200):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    experts = list(mixture.experts)
    with torch.no_grad():
        learned = float(loss())
        others = []
        for order in itertools.islice(itertools.permutations(range(EXPERTS)), 1, None):
            mixture.experts = torch.nn.ModuleList(experts[index] for index in order)
            others.append(float(loss()))
    assert learned < 0.5 * min(others)


def tensors_of(shape: ModelShape) -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    return Decoder(shape).state_dict()


@torch.inference_mode()
def logits_of(shape: ModelShape, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    model = Decoder(shape)
    model.load_state_dict(tensors)
    return model.logits(model.hidden(torch.arange(60)[None]))


def test_experts_move_with_their_names_and_routers_stay() -> None:
    shape = shape_of(99)
    tensors = tensors_of(shape)
    orders = [[2, 0, 3, 1], [0, 1, 3, 2]]
    moved = permuted(tensors, orders)
    name = "model.layers.{}.mlp.experts.{}.{}_proj.weight"
    for layer, order in enumerate(orders):
        for expert, source in enumerate(order):
            for part in ("gate", "up", "down"):
                assert moved[name.format(layer, expert, part)] is tensors[name.format(layer, source, part)]
    rest = [key for key in tensors if ".experts." not in key]
    assert moved.keys() == tensors.keys() and all(moved[key] is tensors[key] for key in rest)
    # A router whose rows go the same way finds each expert again.
    followed = dict(moved)
    for layer, order in enumerate(orders):
        router = f"model.layers.{layer}.mlp.gate.weight"
        followed[router] = tensors[router][order]
    wanted = logits_of(shape, tensors)
    torch.testing.assert_close(logits_of(shape, followed), wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits_of(shape, moved), wanted, rtol=1e-2, atol=1e-3)


def test_no_draw_leaves_a_layer_as_it_was() -> None:
    tensors = tensors_of(shape_of(99))
    name = "model.layers.{}.mlp.experts.{}.up_proj.weight"
    # Of four experts one random order in 24 is the old one.
    for draw in range(60):
        changed = shuffled(tensors, draw)
        for layer in range(2):
            assert any(changed[name.format(layer, e)] is not tensors[name.format(layer, e)] for e in range(EXPERTS))


def test_a_router_of_chance_is_as_long_and_points_elsewhere() -> None:
    tensors = tensors_of(shape_of(99))
    changed = of_chance(tensors, 0)
    routers = [name for name in tensors if name.endswith("mlp.gate.weight")]
    assert len(routers) == 2
    for name, tensor in tensors.items():
        if name in routers:
            torch.testing.assert_close(changed[name].norm(dim=1), tensor.norm(dim=1))
            assert float(F.cosine_similarity(changed[name], tensor).abs().max()) < 0.8
        else:
            assert changed[name] is tensor


def test_penstock_gives_the_logits_that_were_trained(trained: tuple[Path, list[float]], tokenizer) -> None:
    directory, losses = trained
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    mine = export.load_model(directory, shape_of(tokenizer.get_vocab_size()))
    scorer = load_scorer(EngineOptions.of(str(directory), dtype="float32", quantization="none"), 256)
    ids = torch.randint(0, tokenizer.get_vocab_size(), (200,), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        wanted = mine.logits(mine.hidden(ids[None]))[0]
    torch.testing.assert_close(scorer.logits(ids.tolist()), wanted, rtol=1e-4, atol=1e-4)


def test_the_score_is_the_perplexity_of_what_the_model_says(trained: tuple[Path, list[float]], tokenizer) -> None:
    directory, _ = trained
    vocabulary = tokenizer.get_vocab_size()
    mine = export.load_model(directory, shape_of(vocabulary))
    sums, characters = [], 0
    for said in said_in(directory, vocabulary, 2):
        ids = torch.tensor(said.ids)
        with torch.inference_mode():
            each = F.cross_entropy(mine.logits(mine.hidden(ids[None]))[0, :-1], ids[1:], reduction="none")
        sums.append((said.stratum, each[said.learned[1:]]))
        characters += said.characters
    found = score(directory, 2)
    assert list(found.perplexity) == [*STRATA, "all"]
    for name, value in found.perplexity.items():
        of_it = torch.cat([part for stratum, part in sums if name in (stratum, "all")])
        assert value == pytest.approx(math.exp(float(of_it.mean())), rel=1e-3)
    assert found.tokens == sum(len(part) for _, part in sums)
    bits = sum(float(part.sum()) for _, part in sums) / math.log(2) / characters
    assert found.bits_per_character == pytest.approx(bits, rel=1e-3)


def test_the_loads_of_a_layer_go_with_its_routers_rows(
    trained: tuple[Path, list[float]], tokenizer, tmp_path: Path
) -> None:
    directory, _ = trained
    shape, order = shape_of(tokenizer.get_vocab_size()), [2, 0, 3, 1]
    said = said_in(directory, shape.vocabulary, 1)
    tensors = load_file(directory / "model.safetensors")
    # Router and experts in another order are the same mixture.
    moved = permuted(tensors, [order, order])
    for layer in range(2):
        router = f"model.layers.{layer}.mlp.gate.weight"
        moved[router] = tensors[router][order]
    export.save_weights(moved, tmp_path)
    found, again = loads(directory, shape, said), loads(tmp_path, shape, said)
    for before, after in zip(found, again, strict=True):
        assert sum(before) == pytest.approx(1) and len(set(before)) > 1
        assert after == pytest.approx([before[index] for index in order], abs=0.01)
