"""Train heads that draft from the target's hidden states: EAGLE's decoder layer, or Medusa's.

    python -m training.heads eagle|medusa [--device auto|cpu|cuda] [--tokens N]

Both learn the target's whole distribution at the tokens that the model has to say, on the corpus and on the target's
own answers (see `training.distill`), and are written in the layouts that published heads have. The target is the one
that was trained here, else the one in the package.

EAGLE (Li et al., ICML 2024) learns from the target's states and then, as it will be used, from its own (Li et al.,
"EAGLE-3", 2025, section 3.2); Medusa (Cai et al., ICML 2024, section 2.2) to say a token further ahead with each head.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.data import Corpus
from training.distill import divergence, material
from training.export import config_of, load_model, save_weights, write_json
from training.loop import Batch, Loss, Run, pick_device
from training.model import Decoder, Layer, ModelShape, document_lengths, rotary_tables
from training.recipe import BUNDLE, EAGLE_RECIPE, MEDUSA_HEADS, MEDUSA_RECIPE, SEED, TARGET, TARGET_RECIPE, WORK

# Each head's guess counts for so much of the one's before it: it is used only where that was right.
FURTHER = 0.8
# Passes of EAGLE: the first reads the target's states, the others what the one before has made.
PASSES = 2


class EagleHead(nn.Module):
    """(Embedding of a token, hidden state before it) to the next hidden state; no norm stands before all."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=False)
        # Named as in a model, so that its matrices are optimized as a model's are.
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.model.layers[0].input_layernorm = nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=shape.init_std)

    def forward(self, embedded: Tensor, states: Tensor, lengths: list[int]) -> Tensor:
        """States [rows, positions, width] that follow; a position looks back to the start of its piece."""
        cosines, sines = (table[: states.shape[1]] for table in rotary_tables(self.shape, states.device))
        # The residual stream is float32, as a model's is.
        x = self.fc(torch.cat((embedded, states), dim=-1)).float()
        for layer in self.model.layers:
            x = layer(x, cosines, sines, lengths)
        return x

    def tensors(self) -> dict[str, Tensor]:
        """By their published names."""
        return {name.removeprefix("model."): value for name, value in self.state_dict().items()}

    def config(self) -> dict[str, object]:
        """config.json."""
        return config_of(self.shape)


class MedusaHeads(nn.Module):
    """A hidden state to logits of the tokens further ahead: x + silu(W x + b), then a projection, for each head."""

    def __init__(self, heads: int, target: Decoder) -> None:
        super().__init__()
        self.shape = target.shape
        blocks = [nn.Module() for _ in range(heads)]
        for block in blocks:
            linear = nn.Linear(self.shape.width, self.shape.width)
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
            block.layers = nn.ModuleList([linear])
        self.blocks = nn.ModuleList(blocks)
        self.lm_heads = nn.ModuleList(
            nn.Linear(self.shape.width, self.shape.vocabulary, bias=False) for _ in range(heads)
        )
        for head in self.lm_heads:
            head.weight.data.copy_(target.model.embed_tokens.weight)

    def logits(self, head: int, states: Tensor) -> Tensor:
        """Logits [..., vocabulary] of a head for states [..., width]."""
        return self.lm_heads[head](states + F.silu(self.blocks[head].layers[0](states)))

    def tensors(self) -> dict[str, Tensor]:
        """By their published names."""
        return dict(self.state_dict())

    def config(self) -> dict[str, object]:
        """config.json."""
        return {
            "model_type": "medusa",
            "hidden_size": self.shape.width,
            "vocab_size": self.shape.vocabulary,
            "num_heads": len(self.lm_heads),
            "num_hidden_layers": 1,
        }


def eagle_loss(target: Decoder, head: EagleHead, begin: int) -> Loss:
    """Of the states that it makes, from the target's and from its own."""

    def loss(batch: Batch, lengths: list[int]) -> Tensor:
        with torch.no_grad():
            states = target.hidden(batch.inputs, lengths)
            embedded = target.model.embed_tokens(batch.inputs[:, 1:])
        pieces, mask, wanted = document_lengths(batch.inputs[:, :-1], begin), batch.mask[:, 1:], states[:, 1:]
        read, sums = states[:, :-1], []
        for _ in range(PASSES):
            made = head(embedded, read, pieces)
            sums.append(divergence(target, wanted[mask], target.logits(made[mask])))
            # What it makes at a position is the state that it reads at the next.
            own = torch.cat((states[:, :1], made[:, :-1].to(states.dtype)), dim=1)
            # A conversation begins with the target's.
            read = torch.where((batch.inputs[:, :-1] == begin)[..., None], states[:, :-1], own)
        return torch.stack(sums).mean()

    return loss


def medusa_loss(target: Decoder, heads: MedusaHeads) -> Loss:
    """Of what each head says of the token that is so much further ahead."""

    def loss(batch: Batch, lengths: list[int]) -> Tensor:
        with torch.no_grad():
            states = target.hidden(batch.inputs, lengths)
        sums = []
        for head in range(len(heads.lm_heads)):
            ahead = head + 1
            # Where the model has to say all that is between.
            mask = torch.stack([batch.mask[:, step : batch.mask.shape[1] - ahead + step] for step in range(ahead + 1)])
            chosen = mask.all(dim=0)
            logits = heads.logits(head, states[:, :-ahead][chosen])
            sums.append(FURTHER**head * divergence(target, states[:, ahead:][chosen], logits))
        return torch.stack(sums).mean()

    return loss


def export_heads(heads: EagleHead | MedusaHeads, directory: Path) -> None:
    """Write weights in bfloat16, and configuration."""
    save_weights(heads.tensors(), directory)
    write_json(directory / "config.json", heads.config())


def eagle(target: Decoder, corpus: Corpus) -> tuple[EagleHead, Loss]:
    """A head that knows nothing yet, and what it learns from."""
    head = EagleHead(EAGLE_RECIPE.shape)
    return head, eagle_loss(target, head, corpus.begin)


def medusa(target: Decoder, corpus: Corpus) -> tuple[MedusaHeads, Loss]:
    """Heads that say what the target says of the next token, and what they learn from."""
    heads = MedusaHeads(MEDUSA_HEADS, target)
    return heads, medusa_loss(target, heads)


KINDS: dict[str, Callable[[Decoder, Corpus], tuple[EagleHead | MedusaHeads, Loss]]] = {"eagle": eagle, "medusa": medusa}


def main() -> None:
    """Train heads of one kind and write them to build/training/haiku-KIND/model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, help="tokens to train on, padding included")
    options = parser.parse_args()
    recipe = {"eagle": EAGLE_RECIPE, "medusa": MEDUSA_RECIPE}[options.kind]
    recipe = dataclasses.replace(recipe, tokens=options.tokens or recipe.tokens)
    trained = WORK / TARGET_RECIPE.name / "model"
    directory = trained if trained.exists() else BUNDLE / TARGET_RECIPE.name
    corpus = material(directory)
    device = pick_device(options.device)
    target = load_model(directory, TARGET).to(device).requires_grad_(False)
    torch.manual_seed(SEED)
    heads, loss = KINDS[options.kind](target, corpus)
    run = Run(recipe, heads, loss, corpus, device)
    run.resume()
    run.train()
    export_heads(heads, WORK / recipe.name / "model")


if __name__ == "__main__":
    main()
