"""The numbers of the recipe: shapes, data, phases, learning rates. Everything else in this folder is the method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.model import ModelShape

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "src" / "penstock" / "bundled" / "models"
WORK = ROOT / "build" / "training"

VOCABULARY = 4096
CONTEXT = 2048
SEED = 1

TARGET = ModelShape(vocabulary=VOCABULARY, layers=8, width=256, heads=4, kv_heads=2, intermediate=896, context=CONTEXT)
DRAFT = ModelShape(vocabulary=VOCABULARY, layers=2, width=192, heads=3, kv_heads=1, intermediate=448, context=CONTEXT)
# As many parameters as the target has, of which a token takes less than half.
MIXTURE = ModelShape(
    vocabulary=VOCABULARY,
    layers=6,
    width=256,
    heads=4,
    kv_heads=2,
    intermediate=160,
    context=CONTEXT,
    experts=8,
    chosen=2,
)
# A decoder layer over embeddings and hidden states of the target's width, and heads for three tokens ahead.
EAGLE = ModelShape(vocabulary=VOCABULARY, layers=1, width=256, heads=4, kv_heads=1, intermediate=448, context=CONTEXT)
MEDUSA_HEADS = 3


@dataclass(frozen=True)
class Phase:
    """Steps on rows of one length; `share` of all tokens of the run.

    Where `short` is set, half of the text is conversations of more tokens than that, and half are shorter ones.
    """

    positions: int
    rows: int
    share: float
    short: int = 0


@dataclass(frozen=True)
class Recipe:
    """How one model is trained; learning rates are peaks."""

    name: str
    shape: ModelShape
    tokens: int
    phases: tuple[Phase, ...]
    matrix_rate: float
    embedding_rate: float
    warmup_steps: int = 50
    # The rate falls linearly to zero over this last share of the steps.
    decay_share: float = 0.75
    weight_decay: float = 0.01
    gradient_norm: float = 1.0
    # Of the hints beside the next token (see training.hints).
    hint_weight: float = 0.0
    # Of each layer's balance_loss (see training.model) beside the next token.
    balance_weight: float = 0.0


# Most conversations are short; the last phase shows the models a full context.
PHASES = (Phase(positions=256, rows=16, share=0.87), Phase(positions=CONTEXT, rows=2, share=0.13, short=256))
TARGET_RECIPE = Recipe("haiku", TARGET, 12_500_000, PHASES, matrix_rate=0.01, embedding_rate=1.5e-3, hint_weight=0.5)
DRAFT_RECIPE = Recipe("haiku-draft", DRAFT, 16_000_000, PHASES, matrix_rate=0.01, embedding_rate=2e-3)
MIXTURE_RECIPE = Recipe(
    "haiku-moe",
    MIXTURE,
    2_500_000,
    PHASES,
    matrix_rate=0.01,
    embedding_rate=1.5e-3,
    hint_weight=0.5,
    balance_weight=0.01,
)
EAGLE_RECIPE = Recipe("haiku-eagle", EAGLE, 4_000_000, PHASES, matrix_rate=0.01, embedding_rate=2e-3)
MEDUSA_RECIPE = Recipe("haiku-medusa", TARGET, 4_000_000, PHASES, matrix_rate=0.01, embedding_rate=1e-3)
