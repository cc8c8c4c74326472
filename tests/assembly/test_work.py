"""What a model's steps must do, from its declaration and weights."""

from pathlib import Path

import torch

from penstock.assembly.work import model_work
from penstock.core.facts import StepFacts
from penstock.core.kv import build_kv_spec
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.weights import load_weights
from support.checkpoints import make
from support.plain import plain


def test_what_only_wanted_rows_reach_is_counted_with_the_head(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make("gemma4", tmp_path / "gemma4"))
    declaration = model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32, packing=plain)
    work = model_work(declaration, weights, build_kv_spec(declaration.kv_layers, "float32", 16))
    head, late = declaration.decoder.output.weight.size, declaration.late_parameters
    assert 0 < late < declaration.used_parameters
    assert work.head_operations == 2 * (head + late) and work.head_bytes == 4 * (head + late)
    assert work.token_operations == 2 * (declaration.used_parameters - late)
    # Six layers, of which the last two store nothing.
    assert [(each.layers, each.late) for each in work.attention] == [(2, False), (2, False), (1, True), (1, True)]
    # A decode passes them all.
    assert work.of(StepFacts(decodes=1, sampled=1))[1] == 2 * (head + declaration.used_parameters)
