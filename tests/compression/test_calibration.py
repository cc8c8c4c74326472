"""Blocks that are run one at a time give what the whole model gives, text by text."""

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.assembly.scorer import load_scorer
from penstock.compression.calibration import BlockRunner, TextState
from penstock.configuration.options import EngineOptions
from penstock.kernels.processor import this_processor
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.weights import load_weights
from support import checkpoints

# Longer than windows, of several lengths, so that what one text has stored is no other's.
TEXTS = [[(7 * text + 3 * place) % 320 for place in range(length)] for text, length in enumerate((70, 1, 33))]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "gemma4": {},
    "gemma4_moe": {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_the_whole_model(family: str, tmp_path: Path) -> None:
    changes = FAMILIES[family]
    if family == "gemma4_moe":
        changes = {**changes, "vocab_size_per_layer_input": checkpoints.VOCAB_SIZE}
    checkpoint = open_checkpoint(checkpoints.make(family, tmp_path, **changes))
    declaration = model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32)
    runner = BlockRunner.for_texts(declaration, this_processor(), max(map(len, TEXTS)), torch.float32)
    states = runner.embed(weights, TEXTS)
    reference = checkpoints.load_reference(tmp_path)
    expected = [states_of(reference, text) for text in TEXTS]
    # What is behind the last block is normed there.
    for index, block in enumerate(declaration.decoder.blocks):
        compare(states, [each[index] for each in expected])
        states = list(runner.run(block, weights, TEXTS, states))
    logits = list(runner.logits(weights, TEXTS))
    for text, found in zip(TEXTS, logits, strict=True):
        assert (found - checkpoints.reference_logits(reference, text)).abs().max() < 1e-4


@torch.inference_mode()
def states_of(reference: Any, text: list[int]) -> list[torch.Tensor]:
    """[tokens, width] before each block."""
    return [
        each[0] for each in reference(torch.tensor([text]), use_cache=False, output_hidden_states=True).hidden_states
    ]


def compare(found: list[TextState], expected: list[torch.Tensor]) -> None:
    for state, stream in zip(found, expected, strict=True):
        torch.testing.assert_close(state.stream, stream, rtol=1e-3, atol=1e-3)


def test_only_what_is_read_later_is_kept(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(checkpoints.make("gemma4", tmp_path))
    declaration = model_of(checkpoint)
    weights = load_weights(checkpoint, declaration, torch.float32)
    runner = BlockRunner.for_texts(declaration, this_processor(), 70, torch.float32)
    states, kept = runner.embed(weights, TEXTS), []
    for block in declaration.decoder.blocks:
        states = list(runner.run(block, weights, TEXTS, states))
        kept.append(sorted(states[0].lent))
    assert kept == [[], [], [2], [2, 3], [2, 3], [2, 3]]


def test_a_scorer_reads_what_earlier_layers_have_stored(tmp_path: Path) -> None:
    """Layers with a window and layers without one store in blocks of their own."""
    model = checkpoints.make("gemma4", tmp_path)
    options = EngineOptions.of(model=str(model), dtype="float32", quantization="none", speculative="off", threads=1)
    scorer = load_scorer(options, 128)
    reference = checkpoints.load_reference(model)
    for text in TEXTS:
        assert (scorer.logits(text) - checkpoints.reference_logits(reference, text)).abs().max() < 1e-4
