"""Train the target on the corpus.

    python -m training.train [--device auto|cpu|cuda] [--tokens N]

Run again after an interruption it goes on from its last saved state.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.data import load_corpus
from training.export import export_model
from training.hints import MOST_SYLLABLES
from training.loop import Batch, Run, pick_device
from training.model import Decoder
from training.recipe import SEED, TARGET_RECIPE, WORK


class Lesson(nn.Module):
    """What the target learns: the next token, and beside it what the hints tell (see training.hints).

    They are asked for in the middle of the layers, so that those behind can choose words by them.
    """

    def __init__(self, decoder: Decoder, hint_weight: float) -> None:
        super().__init__()
        width = decoder.shape.width
        self.decoder, self.hint_weight = decoder, hint_weight
        self.counter = nn.Linear(width, MOST_SYLLABLES + 1, bias=False)
        self.namer = nn.Linear(width, width, bias=False)

    def forward(self, batch: Batch, lengths: list[int]) -> Tensor:
        """The sum of the losses (see training.loop.Loss)."""
        *streams, last = self.decoder.streams(batch.inputs, lengths)
        hidden = self.decoder.model.norm(last)[batch.mask]
        loss = F.cross_entropy(self.decoder.logits(hidden).float(), batch.wanted, reduction="sum")
        middle = streams[self.decoder.shape.layers // 2 - 1]
        middle = F.rms_norm(middle, middle.shape[-1:])
        for hints, head in ((batch.syllables, self.counter), (batch.topics, self._topic)):
            wanted = hints[:, :-1]
            there = batch.mask & (wanted > 0)
            said = head(middle[there]).float()
            loss = loss + self.hint_weight * F.cross_entropy(said, wanted[there], reduction="sum")
        return loss

    def _topic(self, middle: Tensor) -> Tensor:
        return self.decoder.logits(self.namer(middle))


def main() -> None:
    """Train, then write the checkpoint to build/training/haiku/model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=TARGET_RECIPE.tokens, help="tokens to train on, padding included")
    options = parser.parse_args()
    recipe = dataclasses.replace(TARGET_RECIPE, tokens=options.tokens)
    torch.manual_seed(SEED)
    model = Decoder(recipe.shape)

    lesson = Lesson(model, recipe.hint_weight)
    run = Run(recipe, lesson, lesson, load_corpus(), pick_device(options.device))
    run.resume()
    run.train()
    export_model(model, recipe, WORK / recipe.name / "model")


if __name__ == "__main__":
    main()
