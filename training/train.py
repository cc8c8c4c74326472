"""Train the target on the corpus.

    python -m training.train [--device auto|cpu|cuda] [--tokens N]

Run again after an interruption it goes on from its last saved state.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from training.data import load_corpus
from training.export import export_model
from training.loop import Run, pick_device
from training.model import Decoder
from training.recipe import SEED, TARGET_RECIPE, WORK


def main() -> None:
    """Train, then write the checkpoint to build/training/haiku/model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=TARGET_RECIPE.tokens, help="tokens to train on, padding included")
    options = parser.parse_args()
    recipe = dataclasses.replace(TARGET_RECIPE, tokens=options.tokens)
    torch.manual_seed(SEED)
    model = Decoder(recipe.shape)

    def loss(hidden: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(model.logits(hidden).float(), rows[:, 1:][mask], reduction="sum")

    run = Run(recipe, model, loss, load_corpus(), pick_device(options.device))
    run.resume()
    run.train()
    export_model(model, recipe, WORK / recipe.name / "model")


if __name__ == "__main__":
    main()
