"""Whether the mixture's router has learned anything: perplexity with it, with experts shuffled, with routers of chance.

    python -m training.routing [--prompts N] [--draws N]

Shuffled: each layer's experts are permuted among themselves, and its router is as it was. Of chance: each row of a
router's matrix is another one, drawn from a normal distribution and as long as the one that was there. Either is done
in a copy of the checkpoint, and all copies are loaded and scored by Penstock in float32, on what the model says in
conversations on topics and in wordings that training never saw.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor

from penstock.assembly.scorer import load_scorer
from penstock.bundled.corpus.generator import STRATA, held_out
from penstock.compression.scoring import TextScorer
from penstock.configuration.options import EngineOptions
from penstock.loading.tokenizers import tokenizer_in
from training.data import learned_positions, render
from training.export import load_model, save_weights, weights_fingerprint, write_json
from training.model import ModelShape, Routed
from training.recipe import BUNDLE, CONTEXT, MIXTURE, MIXTURE_RECIPE, SEED, TARGET_RECIPE, WORK

Tensors = Mapping[str, Tensor]
EXPERT = re.compile(r"(model\.layers\.(\d+)\.mlp\.experts\.)(\d+)(\..+)")
ROUTER = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.weight")


@dataclass(frozen=True)
class Said:
    """A held-out conversation as token ids [n], which of them the model says [n], and how many characters these are."""

    stratum: str
    ids: list[int]
    learned: Tensor
    characters: int


@dataclass(frozen=True)
class Score:
    """Perplexity a token by stratum and over all, bits a character, which tokenizers do not change, and the tokens."""

    tokens: int
    perplexity: dict[str, float]
    bits_per_character: float


def permuted(tensors: Tensors, orders: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """A checkpoint whose expert e of layer l is what was expert orders[l][e]; nothing else changes."""

    def source(name: str) -> str:
        found = EXPERT.fullmatch(name)
        return f"{found[1]}{orders[int(found[2])][int(found[3])]}{found[4]}" if found else name

    return {name: tensors[source(name)] for name in tensors}


def shuffled(tensors: Tensors, draw: int) -> dict[str, Tensor]:
    """Each layer's experts in an order of their own, drawn at random; in no layer all stay where they were."""
    rng = np.random.default_rng([SEED, draw])
    routers = [tensor for name, tensor in sorted(tensors.items()) if ROUTER.fullmatch(name)]
    orders = []
    for router in routers:
        order = list(range(len(router)))
        while order == sorted(order):
            order = rng.permutation(len(router)).tolist()
        orders.append(order)
    return permuted(tensors, orders)


def of_chance(tensors: Tensors, draw: int) -> dict[str, Tensor]:
    """A checkpoint whose routers' rows point anywhere and are as long as they were."""
    generator = torch.Generator().manual_seed(draw)

    def redrawn(router: Tensor) -> Tensor:
        rows = torch.randn(router.shape, generator=generator)
        return F.normalize(rows) * router.float().norm(dim=1, keepdim=True)

    return {name: redrawn(tensor) if ROUTER.fullmatch(name) else tensor for name, tensor in tensors.items()}


def said_in(model: Path, vocabulary: int, count: int) -> list[Said]:
    """`count` held-out conversations of each stratum, in the tokens of a model."""
    tokenizer = tokenizer_in(model, vocabulary)
    assert tokenizer is not None
    assistant, end = (tokenizer.token_id(token) for token in ("<|assistant|>", "<|end|>"))
    assert assistant is not None and end is not None
    found = []
    for stratum in STRATA:
        for index in range(count):
            ids = tokenizer.encode(render(held_out(stratum, index)), add_special_tokens=False)
            assert len(ids) <= CONTEXT, "held-out conversations have a few short turns"
            learned = learned_positions(np.array(ids, dtype=np.uint16), assistant, end)
            text = tokenizer.decode(np.array(ids)[learned].tolist())
            found.append(Said(stratum, ids, torch.from_numpy(learned), len(text)))
    return found


def losses(scorer: TextScorer, said: Said) -> Tensor:
    """Loss in nats of each token that the model says, float64 [n]."""
    # A token is foreseen at the one before it; none that the model says is the first.
    logits = scorer.logits(said.ids)[:-1][said.learned[1:]]
    return F.cross_entropy(logits.double(), torch.tensor(said.ids)[said.learned], reduction="none")


def score(model: Path, count: int) -> Score:
    """A checkpoint's on `count` conversations of each stratum, computed by Penstock in float32."""
    scorer = load_scorer(EngineOptions.of(str(model), dtype="float32", quantization="none"), CONTEXT)
    each = said_in(model, scorer.vocab_size, count)
    by_text = [(said.stratum, losses(scorer, said)) for said in each]
    parts = {stratum: torch.cat([found for name, found in by_text if name == stratum]) for stratum in STRATA}
    everything = torch.cat(list(parts.values()))
    perplexity = {name: math.exp(float(part.mean())) for name, part in {**parts, "all": everything}.items()}
    bits = float(everything.sum()) / math.log(2) / sum(said.characters for said in each)
    return Score(len(everything), perplexity, bits)


def score_changed(model: Path, change: Callable[[Tensors], dict[str, Tensor]], count: int) -> Score:
    """The score of a copy of a checkpoint whose tensors are changed."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for file in model.iterdir():
            if file.suffix != ".safetensors":
                (copy / file.name).write_bytes(file.read_bytes())
        save_weights(change(load_file(model / "model.safetensors")), copy)
        return score(copy, count)


@torch.inference_mode()
def loads(model: Path, shape: ModelShape, said: Sequence[Said]) -> list[list[float]]:
    """Each expert's share of the choices that a layer makes on these texts, [layers][experts]; by the training code."""
    decoder = load_model(model, shape)
    layers = decoder.model.layers
    counts = torch.zeros(shape.layers, shape.experts)

    def note(layer: int) -> Callable[[object, object, Routed], None]:
        def add(_router: object, _read: object, routed: Routed) -> None:
            counts[layer] += routed.chosen.flatten().bincount(minlength=shape.experts)

        return add

    for index, layer in enumerate(layers):
        layer.mlp.gate.register_forward_hook(note(index))
    for each in said:
        decoder.hidden(torch.tensor([each.ids]))
    return (counts / counts.sum(dim=1, keepdim=True)).tolist()


def measure(model: Path, count: int, draws: int) -> dict[str, Any]:
    """All figures of the mixture in a directory."""
    console = Console(stderr=True)
    figures: dict[str, Any] = {"prompts": count, "weights": weights_fingerprint(model)}
    with console.status("with its router"):
        figures["router"] = asdict(score(model, count))
        figures["loads"] = loads(model, MIXTURE, said_in(model, MIXTURE.vocabulary, count))
    for name, change in (("shuffled", shuffled), ("chance", of_chance)):
        figures[name] = []
        for draw in range(draws):
            with console.status(f"{name}, draw {draw + 1} of {draws}"):
                scored = score_changed(model, lambda tensors, draw=draw, change=change: change(tensors, draw), count)
            figures[name].append(asdict(scored))
    with console.status("the bundled dense model"):
        figures["dense"] = asdict(score(BUNDLE / TARGET_RECIPE.name, count))
    return figures


def rows(figures: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Of the table that is shown: a name, perplexities by stratum and over all, bits a character."""

    def row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
        return name, *(f"{value:.3f}" for value in found["perplexity"].values()), f"{found['bits_per_character']:.3f}"

    yield row("its router", figures["router"])
    for name, label in (("shuffled", "experts shuffled"), ("chance", "routers of chance")):
        found = sorted(figures[name], key=lambda scored: scored["perplexity"]["all"])
        yield row(f"{label}, most favourable of {len(found)}", found[0])
        yield row(f"{label}, least favourable", found[-1])
    yield row(f"{TARGET_RECIPE.name} (bundled)", figures["dense"])


def main() -> None:
    """Print all figures and write them to build/training/routing.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=200, help="conversations of each stratum")
    parser.add_argument("--draws", type=int, default=8, help="permutations, and routers of chance")
    options = parser.parse_args()
    figures = measure(WORK / MIXTURE_RECIPE.name / "model", options.prompts, options.draws)
    write_json(WORK / "routing.json", figures)
    table = Table("perplexity with", *STRATA, "all", "bits a character")
    for row in rows(figures):
        table.add_row(*row)
    console = Console()
    console.print(table)
    shares = torch.tensor(figures["loads"])
    console.print(
        f"Scored: {figures['router']['tokens']:,} tokens that the model says. An expert's share of its layer's choices "
        f"is {shares.min():.3f} to {shares.max():.3f}; an even one is {1 / MIXTURE.experts:.3f}."
    )


if __name__ == "__main__":
    main()
