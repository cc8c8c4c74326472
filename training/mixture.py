"""Train the mixture of experts on the corpus.

    python -m training.mixture [--device auto|cpu|cuda] [--tokens N]

It learns what the target learns (see `training.train`), and beside that to give all experts about as much to do. Run
again after an interruption it goes on from its last saved state.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from torch import Tensor, nn

from training.data import load_corpus
from training.export import export_model
from training.loop import Batch, Run, pick_device
from training.model import Decoder, Routed, balance_loss
from training.recipe import MIXTURE_RECIPE, SEED, WORK
from training.train import Lesson


class BalancedLesson(nn.Module):
    """A lesson, and the balance of each layer's router on all rows but padding, `weight` times."""

    def __init__(self, lesson: Lesson, weight: float, pad: int) -> None:
        super().__init__()
        self.lesson, self.weight, self.pad = lesson, weight, pad
        self.routed: list[Routed] = []
        for layer in lesson.decoder.model.layers:
            layer.mlp.gate.register_forward_hook(self._note)

    def _note(self, router: nn.Module, read: tuple[Tensor], routed: Routed) -> None:
        self.routed.append(routed)

    def forward(self, batch: Batch, lengths: list[int]) -> Tensor:
        """The sum of the losses (see training.loop.Loss)."""
        self.routed.clear()
        loss = self.lesson(batch, lengths)
        there = (batch.inputs != self.pad).flatten()
        balances = [balance_loss(Routed(*(part[there] for part in routed))) for routed in self.routed]
        # The sum is divided by the learned tokens; balance is a figure of the batch.
        return loss + self.weight * batch.mask.sum() * torch.stack(balances).sum()


def main() -> None:
    """Train, then write the checkpoint to build/training/haiku-moe/model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--tokens", type=int, default=MIXTURE_RECIPE.tokens, help="tokens to train on, padding included"
    )
    options = parser.parse_args()
    recipe = dataclasses.replace(MIXTURE_RECIPE, tokens=options.tokens)
    torch.manual_seed(SEED)
    model = Decoder(recipe.shape)
    corpus = load_corpus()
    lesson = BalancedLesson(Lesson(model, recipe.hint_weight), recipe.balance_weight, corpus.pad)
    run = Run(recipe, lesson, lesson, corpus, pick_device(options.device))
    run.resume()
    run.train()
    export_model(model, recipe, WORK / recipe.name / "model")


if __name__ == "__main__":
    main()
